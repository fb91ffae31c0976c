"""Neurons: which wrote the prediction, where one fires, and what its removal does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

import interp
from interp import InputError, figures
from interp.direct import need_mlp
from interp.figures.glyphs import signed
from literal import literal
from model import Run
from runs import CHECKPOINTS, FIRST, shown_path
from worksheet import Worksheet

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

OPERATIONS = 1e10
"""multiplications that reading a piece of text may take: tokens times parameters"""


def choose_neuron(bar: list) -> None:
    st.session_state["neuron"] = f"L{int(bar[0])}N{int(bar[1])}"


def choose_pos(bar: list) -> None:
    st.session_state["pos"] = int(bar[0])


def named(text: str) -> tuple[int, int]:
    """Layer and neuron of a name such as L2N345."""
    match = re.fullmatch(r"\s*[lL](\d{1,4})[nN](\d{1,6})\s*", text)
    if match is None:
        raise InputError(
            f"Neuron {text!r} came, but a neuron is written as layer and number: L0N0 to "
            f"L{at.model.cfg.n_layers - 1}N{(at.model.cfg.d_mlp or 1) - 1}."
        )
    return int(match[1]), int(match[2])


def readable_text() -> tuple[Run, str] | None:
    """A held-out text that the model can read: the run's own, else the shipped one."""
    for path in (at.run.path, CHECKPOINTS / FIRST):
        text = Run(path).text
        if text is None:
            continue
        try:
            n_tokens = length(text, page.asked_of, at.model)
        except InputError:
            continue
        if n_tokens >= at.model.cfg.n_ctx:
            return Run(path), text
    return None


@st.cache_data(max_entries=32, show_spinner=False)
def length(text: str, asked_of: str, _model: HookedTransformer) -> int:
    """Tokens of a text, counted once for each run and checkpoint."""
    return len(interp.inputs.text_ids(_model, text))


page = Worksheet()
at = page.selection
need_mlp(at.model)
st.markdown(
    f"Each neuron of an MLP adds its own vector to the stream when it fires. These wrote most of "
    f"{literal(at.difference)} at position {at.pos}. Click one to look into it."
)
top = page.ask(
    "top", interp.top_neurons, at.prompt, at.token(at.target), at.token(at.contrast), pos=at.pos
)
typed = st.text_input(
    "Neuron", "", key="neuron", bind="query-params", width=260, placeholder="automatic: the first",
    help="As layer and number, such as L2N345.",
)  # fmt: skip
layer, neuron = named(typed) if typed.strip() else (int(top["layer"][0]), int(top["neuron"][0]))
name = f"L{layer}N{neuron}"
activation = page.ask("activation", interp.neuron_activation, at.prompt, layer, neuron)
page.draw(
    "neurons",
    figures.neuron_bars,
    top,
    selected=(layer, neuron),
    on_click=choose_neuron,
    alt=f"The neurons that wrote most of the logit difference at position {at.pos}, and the tokens "
    "that each writes for and against.",
)
shown = float(top["part"].sum())
st.caption(
    f"These {top.sizes['rank']} wrote {shown:+.3f} of the {float(top['whole']):+.3f} logits that "
    "all neurons wrote. A neuron below zero writes against what its weights promote."
)

st.subheader(f"{name} in this prompt", anchor=False)
page.draw(
    "activity",
    figures.neuron_activity,
    activation,
    pos=at.pos,
    on_click=choose_pos,
    alt=f"The activation of neuron {name} at each position of the prompt.",
)
words = page.ask(
    "words", interp.neuron_vocabulary, layer, neuron, top=min(8, at.model.cfg.d_vocab)
).isel(neuron=0)


def listed(which: str) -> str:
    return " ".join(literal(repr(str(token))) for token in words[f"{which}_tokens"].to_numpy())


st.markdown(
    f"Firing, it writes for {listed('promoted')} and against {listed('suppressed')}. Its input "
    f"weights lie along {listed('read')}."
)

found = readable_text()
statistics = None
st.subheader(f"{name} in a text", anchor=False)
if found is None:
    st.info(
        "The run brings no text that this model reads and that fills its context: put one beside "
        "its weights as text.txt to see where its neurons fire."
    )
else:
    source, text = found
    written = f"Run.open({shown_path(source.path)!r}).text"
    # A moment's work, before anybody asks for more.
    tokens = int(OPERATIONS / max(at.model.cfg.n_params or 0, 1))
    n_ctx = at.model.cfg.n_ctx
    examples_shown = min(8, max(3, tokens // n_ctx))
    piece = max(examples_shown * n_ctx, tokens)
    if piece < len(text) and not st.toggle(
        "Read all of the text", False, key="whole_text", bind="query-params",
        help=f"{len(text)} characters; at first {piece} of them are read.",
    ):  # fmt: skip
        text, written = text[:piece], f"{written}[:{piece}]"
    text = page.given("text", text, written, str(hash(text)), "Run")
    with st.spinner("Reading the text …"):
        statistics = page.ask("statistics", interp.neuron_statistics, text, top=examples_shown)
    examples = page.ask("examples", interp.neuron_examples, text, statistics, layer, neuron)
    page.draw(
        "windows",
        figures.neuron_windows,
        examples,
        alt=f"The pieces of the text in which neuron {name} fires most, token by token.",
    )
    settings = statistics.attrs["settings"]
    st.caption(
        f"The strongest of {settings['windows']} windows of {settings['length']} tokens of "
        "held-out text; the frame is the peak."
    )

st.subheader(f"Without {name}", anchor=False)
options = ["zero", "mean"] if statistics is not None else ["zero"]
if st.session_state.get("held_at", "zero") not in options:
    st.session_state["held_at"] = "zero"
held_at = st.segmented_control(
    "Held at", options, key="held_at", bind="query-params", default="zero", required=True,
    help="At every position. The mean over the text removes what the neuron says and keeps what "
    "it always says.",
)  # fmt: skip
to = 0.0
if held_at == "mean" and statistics is not None:
    to = round(float(statistics["mean"].sel(layer=layer, neuron=neuron)), 6)
effect = page.ask(
    "effect",
    interp.neuron_ablation,
    at.prompt,
    layer,
    neuron,
    at.token(at.target),
    at.token(at.contrast),
    pos=at.pos,
    **({"to": to} if to else {}),
)
left, right = st.columns([3, 2], gap="large")
with left:
    page.draw(
        "change",
        figures.prediction_change,
        effect,
        alt=f"The likeliest tokens after position {at.pos} with and without neuron {name}.",
    )
with right:
    one = {key: float(effect[key][0]) for key in ("base", "held", "total", "frozen", "rescale",
                                                  "downstream")}  # fmt: skip
    st.markdown(
        f"{literal(at.difference)} goes from **{one['base']:+.4f}** to **{one['held']:+.4f}**: the "
        f"neuron was worth **{one['total']:+.4f}** logits."
    )
    st.table(
        [
            {"how": "written directly", "logits": signed(one["frozen"], 4)},
            {"how": "by the final LayerNorm's scale", "logits": signed(one["rescale"], 4)},
            {"how": "through later layers", "logits": signed(one["downstream"], 4)},
        ]
    )
    if statistics is not None:
        page.draw(
            "histogram",
            figures.neuron_histogram,
            statistics,
            layer,
            neuron,
            alt=f"How often neuron {name} takes each value over the text.",
        )

whole = page.ask(
    "whole", interp.direct_logit_attribution, at.prompt, at.token(at.target), at.token(at.contrast),
    pos=at.pos,
)  # fmt: skip
parts = page.ask(
    "parts", interp.neuron_attribution, at.prompt, at.token(at.target), at.token(at.contrast),
    pos=at.pos,
)  # fmt: skip
of_neurons = (parts["part"].sum("neuron") + parts["bias"]).to_numpy()[:, 0, 0]
of_mlps = whole["part"].isel(batch=0, pos=0).to_numpy()[whole["kind"].to_numpy() == "mlp"]
page.check(
    f"the {at.model.cfg.d_mlp} neurons of each layer and its bias sum to its MLP's part",
    np.abs(of_neurons - of_mlps).max(),
    1e-3,
)
if not to:
    mine = float(parts["part"].sel(layer=layer, neuron=neuron)[0, 0])
    page.check(
        "what the removal loses directly is what attribution says the neuron wrote",
        abs(mine - one["frozen"]),
        1e-3,
    )
page.close()
