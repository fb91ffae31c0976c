"""The prompt as a row of tokens: click one, or walk with the arrow keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamlit.components.v2 import component

from interp.figures.glyphs import is_hidden, legend, visible

_CSS = """
.strip { display: flex; flex-wrap: wrap; gap: 2px; padding: 3px; border-radius: 6px;
  font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace; font-size: 15px; outline: none; }
.strip:focus-visible { box-shadow: 0 0 0 2px var(--st-primary-color); }
.token { min-width: 13px; padding: 2px 3px; text-align: center; border-radius: 4px; cursor: pointer;
  white-space: pre; color: var(--st-text-color); background: var(--st-secondary-background-color);
  border: 2px solid transparent; }
.token:hover { border-color: var(--st-primary-color); }
.token.hidden { opacity: 0.55; }
.token.shaded { opacity: 1; background:
  color-mix(in srgb, #d55e00 var(--shade), var(--st-secondary-background-color)); }
.token.changed { border-bottom-color: #d55e00; }
.token.chosen { border-color: #d55e00; opacity: 1; font-weight: 700; }
.legend { font-size: 12.5px; opacity: 0.7; padding: 2px 4px 0; color: var(--st-text-color);
  white-space: pre-wrap; }
"""

# Tokens reach the page as textContent only: whatever they hold, they are shown, never read.
_JS = """
export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".root");
  let strip = root.querySelector(".strip");
  if (!strip) {
    strip = document.createElement("div");
    strip.className = "strip";
    strip.setAttribute("role", "listbox");
    strip.tabIndex = 0;
    const legend = document.createElement("div");
    legend.className = "legend";
    root.append(strip, legend);
  }
  const state = strip.orrery ?? (strip.orrery = {});
  const mark = (pos) => {
    [...strip.children].forEach((span, i) => {
      span.classList.toggle("chosen", i === pos);
      span.setAttribute("aria-selected", String(i === pos));
    });
    if (strip.children[pos]) {
      strip.setAttribute("aria-activedescendant", strip.children[pos].id);
    }
  };
  Object.assign(state, { layer: data.layer, n: data.tokens.length });
  // While somebody walks on, what the server says is where they were.
  if (!state.timer) state.pos = data.pos;
  strip.setAttribute("aria-label", data.name);
  strip.replaceChildren(...data.tokens.map((text, i) => {
    const span = document.createElement("span");
    span.textContent = text;
    span.title = `position ${i}` + (data.notes[i] ? `: ${data.notes[i]}` : "");
    span.id = `${data.id}-${i}`;
    span.setAttribute("role", "option");
    span.className = "token" + (data.hidden[i] ? " hidden" : "")
      + (data.changed.includes(i) ? " changed" : "") + (data.shades.length ? " shaded" : "");
    if (data.shades.length) span.style.setProperty("--shade", `${65 * data.shades[i]}%`);
    span.onclick = () => { strip.focus(); move(i); };
    return span;
  }));
  mark(state.pos);
  root.querySelector(".legend").textContent = data.legend;

  function move(pos) {
    if (pos < 0 || pos >= state.n) return;
    state.pos = pos;
    mark(pos);
    // A held key moves the mark at once; the server is asked at the start and where it stops.
    if (!state.timer) setTriggerValue("pos", state.asked = pos);
    clearTimeout(state.timer);
    state.timer = setTimeout(() => {
      state.timer = null;
      if (state.pos !== state.asked) setTriggerValue("pos", state.asked = state.pos);
    }, 120);
  }
  strip.onkeydown = (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    const levels = { ArrowUp: -1, ArrowDown: 1 };
    if (event.key in steps) move(state.pos + steps[event.key]);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(state.n - 1);
    else if (event.key in levels && data.n_layers > 0) {
      const layer = state.layer + levels[event.key];
      if (layer >= 0 && layer < data.n_layers) {
        state.layer = layer;
        setTriggerValue("layer", layer);
      }
    } else return;
    event.preventDefault();
  };
}
"""


def token_strip(
    tokens: Sequence[str],
    pos: int,
    *,
    key: str,
    name: str,
    layer: int = 0,
    n_layers: int = 0,
    changed: Sequence[int] = (),
    shades: Sequence[float] = (),
    notes: Sequence[str] = (),
    on_pos: Callable[[], None],
    on_layer: Callable[[], None] | None = None,
) -> None:
    """Show tokens literally, the chosen one framed.

    Args:
        key: `st.session_state[key].pos` and `.layer` hold what was asked for, in the callbacks.
        name: what the row is, for screen readers.
        n_layers: how far the up and down keys reach; 0 leaves them alone.
        changed: positions to underline.
        shades: how strongly each token is coloured, 0 to 1.
        notes: what is shown of each token when it is pointed at.
    """
    shown = [visible(token) for token in tokens]
    hidden = [is_hidden(token) for token in tokens]
    keys = "← → move the position" + (", ↑ ↓ the layer" if n_layers > 1 else "")
    glyphs = legend(tokens)
    words = f"click a token or press {keys}" + (f"   ·   {glyphs}" if glyphs else "")
    # Registering again under one name replaces the last registration, which is the same one;
    # at import it would reach only the first server of a process.
    strip = component("orrery_token_strip", html='<div class="root"></div>', css=_CSS, js=_JS)
    strip(
        key=key,
        data={
            "tokens": shown,
            "hidden": hidden,
            "changed": list(changed),
            "shades": list(shades),
            "notes": list(notes),
            "pos": pos,
            "layer": layer,
            "n_layers": n_layers,
            "id": key,
            "name": name,
            "legend": words,
        },
        on_pos_change=on_pos,
        on_layer_change=on_layer or (lambda: None),
    )
