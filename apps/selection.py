"""What everybody looks at: one model, prompt, position, target and contrast for all pages.

Every item is a widget in the sidebar bound to the URL, so that a link opens the same view. A widget
keeps out of the URL what equals its own default, so each is always given its default, and session
state is written only to correct it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4
from weakref import WeakKeyDictionary

import streamlit as st
import torch

from bringing import brought, offer_bringing
from certificate_table import has_certificate, show_certificate
from interp import InputError
from interp.engine import trace
from interp.figures.glyphs import visible
from interp.inputs import to_id, to_ids, token_strings, vocabulary, without_padding
from literal import literal
from model import ModelError, Run
from playing import choose_step
from runs import open_model
from token_choice import AUTOMATIC, option_names
from token_strip import token_strip

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

PROMPT = "JULIET:\nGood night! Parting is such sweet sorr"
CORRUPT = "JULIET:\nGood night! Parting is such sweet merr"
"""differs from PROMPT in the two letters that decide between "sorrow" and "merry" """
_identities: WeakKeyDictionary[HookedTransformer, str] = WeakKeyDictionary()
_MOST_OPTIONS = 2000
"""a larger vocabulary offers its likeliest tokens only"""


@dataclass(frozen=True, eq=False)
class Selection:
    """The state of the page. `target` and `contrast` make the logit difference of all pages."""

    run: Run
    step: int
    model: HookedTransformer
    prompt: str
    tokens: list[str]
    vocabulary: list[str]
    pos: int
    target: int
    contrast: int
    corrupt: str
    layer: int
    head: int
    dark: bool

    def token(self, id: int) -> str | int:
        """A token as one would write it in code: its string where that names it, else its id."""
        text = self.vocabulary[id]
        try:
            return text if to_id(self.model, text) == id else id
        except InputError:
            return id

    @property
    def difference(self) -> str:
        """The logit difference in words, not escaped."""
        a, b = visible(self.vocabulary[self.target]), visible(self.vocabulary[self.contrast])
        return f"logit({a}) − logit({b})"


def current() -> Selection:
    """The selection that `choose` made in this run of the script."""
    return st.session_state["selection"]


def choose(runs: dict[str, Path], needs: Sequence[str]) -> Selection:
    """Draw the sidebar and the token strip, and keep the selection for the page.

    Args:
        runs: what can be opened, by name.
        needs: what the page uses beyond the common items: layer, head, corrupt, loss.

    Raises:
        InputError, ModelError: what was chosen cannot be shown; one sentence says why.
    """
    if "asked" not in st.session_state:
        st.session_state["asked"] = st.query_params.to_dict()
    asked = st.session_state["asked"]
    with st.sidebar:
        run, step, model = _choose_model(runs, asked)
        usual = PROMPT if _reads(model, PROMPT) else _plain(model)
        # A prompt that nobody touched follows the model.
        before = st.session_state.get("usual_prompt", usual)
        if before != usual and st.session_state.get("prompt") == before:
            st.session_state["prompt"] = usual
        st.session_state["usual_prompt"] = usual
        prompt = st.text_area(
            "Prompt",
            usual,
            key="prompt",
            bind="query-params",
            height=140,
            help="Ctrl+Enter or a click elsewhere.",
        )
        ids = to_ids(model, prompt)
        tokens, n_pos = token_strings(model, ids[0]), ids.shape[1]
        pos = _number("pos", "Position", n_pos, n_pos - 1, asked)
        words = _vocabulary(model)
        ranked = _next_logits(model, prompt, pos).argsort(descending=True)
        target, contrast = _choose_tokens(words, ranked, asked)
        n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
        layer = _number("layer", "Layer", n_layers, n_layers // 2, asked, "layer" in needs)
        head = _number("head", "Head", n_heads, n_heads // 2, asked, "head" in needs)
        corrupt = _choose_corrupt(model, prompt, pos, "corrupt" in needs)
    st.session_state["asked"] = {}
    selection = Selection(
        run, step, model, prompt, tokens, words, pos, target, contrast, corrupt, layer, head,
        dark=st.context.theme.type == "dark",
    )  # fmt: skip
    st.session_state["selection"] = selection
    return selection


def set_from(strip: str, item: str) -> Callable[[], None]:
    """A callback that moves a bound item to what the token strip asked for."""

    def move() -> None:
        value = st.session_state[strip].get(item)
        if value is not None:
            st.session_state[item] = int(value)

    return move


def show_prompt(selection: Selection, needs: Sequence[str]) -> None:
    """The token strip above every page's charts; coloured by loss where the page needs it."""
    losses = _losses(selection) if "loss" in needs else []
    most = math.log(max(selection.model.cfg.d_vocab, 2))
    token_strip(
        selection.tokens,
        selection.pos,
        key="strip",
        name="tokens of the prompt",
        layer=selection.layer,
        n_layers=selection.model.cfg.n_layers if "layer" in needs else 0,
        shades=[min(loss / most, 1.0) for loss in losses],
        notes=[f"loss {loss:.2f} nats" if at else "" for at, loss in enumerate(losses)],
        on_pos=set_from("strip", "pos"),
        on_layer=set_from("strip", "layer"),
    )


def _losses(selection: Selection) -> list[float]:
    """The loss on each token of the prompt, in nats; 0 for the first, which nothing foretells."""
    model, prompt = selection.model, selection.prompt
    log_probs = _all_logits(model, prompt)[:-1].log_softmax(-1)
    given = log_probs.gather(-1, to_ids(model, prompt)[0, 1:, None])
    return [0.0, *(-given[:, 0]).tolist()]


def _choose_model(
    runs: dict[str, Path], asked: dict[str, str]
) -> tuple[Run, int, HookedTransformer]:
    if not runs:
        raise ModelError(
            "there is no run to open: train one with `orrery train` or give a folder of runs with "
            "`streamlit run apps/explorer.py -- --runs DIR`."
        )
    _warn_unless(asked.get("model"), list(runs), "model")
    name = st.selectbox("Model", list(runs), key="model", bind="query-params")
    run = Run.open(runs[name])
    if has_certificate(run.path):
        with st.popover("Certificate", width="stretch"):
            show_certificate(run.path)
    offer_bringing(list(runs))
    steps = run.steps
    _warn_unless(asked.get("step"), steps, "step")
    step = choose_step(steps)
    return run, step, open_model(run, step, own=name in brought())


def _number(
    key: str, label: str, n: int, seed: int, asked: dict[str, str], shown: bool = True
) -> int:
    """A whole number from 0 to n - 1, clamped when a shorter prompt or a smaller model came."""
    value = st.session_state.get(key, seed)
    if not 0 <= value < n:
        value = st.session_state[key] = n - 1
    if not shown:
        return value
    _warn_unless(asked.get(key), range(n), key)
    return st.slider(label, 0, n - 1, seed, key=key, bind="query-params") if n > 1 else value


def _choose_tokens(
    words: list[str], ranked: torch.Tensor, asked: dict[str, str]
) -> tuple[int, int]:
    order = ranked.tolist()
    options = [AUTOMATIC, *(range(len(words)) if len(words) <= _MOST_OPTIONS else order[:200])]
    names = option_names(words)

    def name(id: int | None) -> str:
        return "automatic" if id is None else names[id]

    chosen = []
    labels = {"target": "Target: what the model should say", "contrast": "Contrast: instead of"}
    for key, label in labels.items():
        _warn_unless(asked.get(key), [name(id) for id in options], key)
        if st.session_state.get(key) not in options:
            st.session_state[key] = AUTOMATIC
        chosen.append(st.selectbox(label, options, format_func=name, key=key, bind="query-params"))
    target, contrast = chosen
    target = order[0] if target is None else target
    contrast = next(id for id in order if id != target) if contrast is None else contrast
    if target == contrast:
        raise InputError(
            f"Target and contrast are both {words[target]!r}, so their difference is 0 everywhere: "
            "choose two different tokens."
        )
    st.text(f"logit({visible(words[target])}) − logit({visible(words[contrast])})")
    return target, contrast


def _choose_corrupt(model: HookedTransformer, prompt: str, pos: int, shown: bool) -> str:
    typed = st.session_state.get("corrupt", "")
    if shown:
        typed = st.text_area(
            "Corrupt prompt",
            "",
            key="corrupt",
            bind="query-params",
            height=110,
            placeholder="automatic: one token of the prompt changed",
            help="As many tokens as the prompt. Patching carries activations between the two.",
        )
    return typed or (CORRUPT if prompt == PROMPT else _one_token_changed(model, prompt, pos))


def _one_token_changed(model: HookedTransformer, prompt: str, pos: int) -> str:
    """The prompt with the token before `pos` replaced by what the model would have said there."""
    ids = to_ids(model, prompt)[0].clone()
    at = max(pos - 1, 0)
    order = (
        _next_logits(model, prompt, at - 1).argsort(descending=True).tolist()
        if at > 0
        else range(model.cfg.d_vocab)
    )
    ids[at] = next(id for id in order if id != int(ids[at]))
    return "".join(token_strings(model, ids))


def _warn_unless(asked: str | None, allowed: Sequence, item: str) -> None:
    if asked is not None and asked not in map(str, allowed):
        st.warning(f"The link asks for {item} {literal(repr(asked))}, which is not there.")


def _reads(model: HookedTransformer, text: str) -> bool:
    try:
        to_ids(model, text)
    except InputError:
        return False
    return True


def _plain(model: HookedTransformer) -> str:
    """A prompt for a model that cannot read the usual one: some tokens, twice over."""
    n = max(1, min(12, model.cfg.n_ctx // 2))
    printable = [word for word in _vocabulary(model) if word and word.isprintable()]
    words = [word for word in printable if len(word) == 1] or printable
    return "".join((words[:n] * 2)[: model.cfg.n_ctx])


def _identity(model: HookedTransformer) -> str:
    """A loaded model's own name: weights alone do not say how their tokens are written."""
    return _identities.setdefault(model, uuid4().hex)


@st.cache_resource(max_entries=12, show_spinner=False)
def _words(identity: str, _model: HookedTransformer) -> list[str]:
    return vocabulary(_model)


def _vocabulary(model: HookedTransformer) -> list[str]:
    return _words(_identity(model), model)


@st.cache_resource(max_entries=256, show_spinner=False)
def _logits(identity: str, prompt: str, _model: HookedTransformer) -> torch.Tensor:
    return without_padding(_model, trace(_model, prompt, sites=[]).logits[0])


def _all_logits(model: HookedTransformer, prompt: str) -> torch.Tensor:
    return _logits(_identity(model), prompt, model)


def _next_logits(model: HookedTransformer, prompt: str, pos: int) -> torch.Tensor:
    return _all_logits(model, prompt)[pos]
