"""One head over the prompt: point at a token to see where it looks."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from streamlit.components.v2 import component

from interp.figures.glyphs import is_hidden, visible

_CSS = """
.lines { position: relative; font-size: 15px;
  font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace; }
.row { display: flex; flex-wrap: wrap; gap: 2px; }
.row.keys { margin-bottom: 46px; }
.token { min-width: 13px; padding: 2px 3px; text-align: center; border-radius: 4px;
  white-space: pre; color: var(--st-text-color); background:
  color-mix(in srgb, var(--st-primary-color) var(--weight, 0%),
  var(--st-secondary-background-color)); }
.token.hidden { color: color-mix(in srgb, var(--st-text-color) 55%, transparent); }
.token.looks { outline: 2px solid #d55e00; }
svg { position: absolute; inset: 0; width: 100%; height: 100%; pointer-events: none; }
line { stroke: var(--st-primary-color); stroke-width: 2.5; }
.said { font-size: 12.5px; opacity: 0.75; color: var(--st-text-color); min-height: 1.5em;
  white-space: pre-wrap; padding-top: 4px; }
"""

# Tokens reach the page as textContent only: whatever they hold, they are shown, never read.
_JS = """
export default function ({ data, parentElement }) {
  const root = parentElement.querySelector(".lines");
  const svgs = "http://www.w3.org/2000/svg";
  const weights = Uint8Array.from(atob(data.weights), (c) => c.charCodeAt(0));
  const row = (kind) => {
    const div = document.createElement("div");
    div.className = `row ${kind}`;
    div.append(...data.tokens.map((text, i) => {
      const span = document.createElement("span");
      span.textContent = text;
      span.className = "token" + (data.hidden[i] ? " hidden" : "");
      return span;
    }));
    return div;
  };
  const keys = row("keys"), queries = row("queries");
  const svg = document.createElementNS(svgs, "svg");
  const said = document.createElement("div");
  said.className = "said";
  root.replaceChildren(keys, queries, svg, said);

  function show(i) {
    const own = root.getBoundingClientRect();
    const box = (e) => e.getBoundingClientRect();
    const from = box(queries.children[i]);
    svg.replaceChildren();
    [...queries.children].forEach((e, j) => e.classList.toggle("looks", j === i));
    const best = [];
    [...keys.children].forEach((e, j) => {
      const weight = j <= i ? weights[(i * (i + 1)) / 2 + j] / 255 : 0;
      e.style.setProperty("--weight", `${100 * weight}%`);
      if (weight < 0.02) return;
      best.push([weight, j]);
      const line = document.createElementNS(svgs, "line");
      const to = box(e);
      line.setAttribute("x1", from.left + from.width / 2 - own.left);
      line.setAttribute("y1", from.top - own.top);
      line.setAttribute("x2", to.left + to.width / 2 - own.left);
      line.setAttribute("y2", to.bottom - own.top);
      line.setAttribute("stroke-opacity", weight);
      svg.append(line);
    });
    best.sort((a, b) => b[0] - a[0]);
    const words = best.slice(0, 4).map(([w, j]) => `${data.tokens[j]} at ${j}: ${w.toFixed(2)}`);
    said.textContent = `${data.tokens[i]} at ${i} looks at  ${words.join("  ·  ")}`;
  }
  [...queries.children].forEach((e, i) => { e.onpointerenter = () => show(i); });
  // Once the rows have their places.
  requestAnimationFrame(() => show(data.pos));
}
"""


def attention_lines(
    tokens: Sequence[str], pattern: Float[np.ndarray, "query_pos key_pos"], pos: int
) -> None:
    """The prompt twice: a token of the lower row that is pointed at, tied to what it looks at.

    Args:
        pattern: one head's attention weights.
        pos: the token whose lines are there at first.
    """
    past = np.tril_indices(len(tokens))
    weights = np.round(255 * pattern[past]).astype(np.uint8)
    lines = component("orrery_attention_lines", html='<div class="lines"></div>', css=_CSS, js=_JS)
    lines(
        key="attention_lines",
        data={
            "tokens": [visible(token) for token in tokens],
            "hidden": [is_hidden(token) for token in tokens],
            "weights": base64.b64encode(weights.tobytes()).decode(),
            "pos": pos,
        },
    )
