"""Predict: how well each token was foreseen, what comes next, and what the model would write."""

import math
from typing import Any

import numpy as np
import streamlit as st

import interp
from bounded_number import bounded_number
from interp import figures
from interp.inputs import to_ids
from literal import literal
from worksheet import Worksheet


def choose_pos(at: list[int]) -> None:
    st.session_state["pos"] = int(at[0])


def write(text: str, n_tokens: int) -> None:
    """The prompt becomes this text, read at its last token."""
    st.session_state["prompt"], st.session_state["pos"] = text, n_tokens - 1


page = Worksheet()
at = page.selection
n_pos, n_ctx, n_words = len(at.tokens), at.model.cfg.n_ctx, at.model.cfg.d_vocab
st.markdown(
    "The model reads the prompt and says after each token what comes next. The redder a token, the "
    "less it was foreseen. Click a token or its bar to see the whole prediction after it."
)
losses = page.ask("losses", interp.token_losses, at.prompt)
page.draw(
    "foreseen",
    figures.token_losses,
    losses,
    pos=at.pos,
    on_click=choose_pos,
    alt="The loss on each token of the prompt, and the loss that the model expected.",
)

with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
    temperature = st.slider(
        "Temperature", 0.0, 2.0, 1.0, 0.05, key="temperature", bind="query-params", width=260,
        help="0 takes the likeliest token, 1 draws as the model says, more is bolder.",
    )  # fmt: skip
    top_k = bounded_number(
        "top_k", "Top-k", 1, n_words, n_words, help="Only the k likeliest tokens are drawn."
    )
    top_p = st.slider(
        "Top-p", 0.05, 1.0, 1.0, 0.05, key="top_p", bind="query-params", width=260,
        help="Only the fewest tokens that hold this share of the probability are drawn.",
    )  # fmt: skip
settings: dict[str, Any] = {}
if temperature != 1:
    settings["temperature"] = temperature
if top_k < n_words:
    settings["top_k"] = top_k
if top_p < 1:
    settings["top_p"] = top_p

prediction = page.ask("prediction", interp.next_token, at.prompt, pos=at.pos, **settings)
only = prediction.isel(batch=0)
left, right = st.columns([3, 2], gap="large")
with left:
    st.subheader(f"After position {at.pos}", anchor=False)
    page.draw(
        "next_tokens",
        figures.next_token_bars,
        prediction,
        alt=f"The likeliest tokens after position {at.pos} with their probabilities.",
    )
    entropy, drawn = float(only["entropy"]), float(only["sampled_entropy"])
    words = f"Entropy {entropy:.3f} of at most {math.log(n_words):.3f} nats"
    if settings:
        words += f"; as drawn {drawn:.3f} nats, {int(only['kept'])} of {n_words} tokens left"
    if 0 < at.pos + 1 < n_pos:
        came = float(losses["loss"][0, at.pos + 1])
        words += f". What came, {literal(repr(at.tokens[at.pos + 1]))}, cost {came:.3f} nats"
    st.caption(words + ".")
with right:
    st.subheader("Let it write", anchor=False)
    start = at.prompt if at.pos + 1 == n_pos else "".join(at.tokens[: at.pos + 1])
    room = n_ctx - at.pos - 1
    if at.pos + 1 < n_pos:
        st.caption(f"It goes on from position {at.pos}; what stands after that is replaced.")
    if room:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            n_new = bounded_number("n_new", "Tokens", 1, room, min(16, room))
            seed = bounded_number("seed", "Seed", 0, 9999, 0, help="The same seed, the same text.")
        sample = page.ask("sample", interp.continuation, start, n_new, seed=seed, **settings)
        new = [str(token) for token in sample["tokens"].to_numpy()]
        st.code("".join(new), language=None, wrap_lines=True)
        st.caption(
            f"Drawn with a mean loss of {float(sample['loss'].mean()):.3f} nats a token by the "
            "model's own reckoning."
        )
        with st.container(horizontal=True):
            st.button(
                "Append the first",
                key="append_one",
                on_click=write,
                args=(start + new[0], at.pos + 2),
            )
            st.button(
                f"Append all {n_new}" if n_new > 1 else "Append it",
                key="append_all",
                on_click=write,
                args=(start + "".join(new), at.pos + 1 + n_new),
            )
    else:
        st.info(
            f"The prompt fills the context of {n_ctx} tokens: move the position back, or shorten "
            "the prompt, to let the model write."
        )

page.check(
    "the probabilities, the model's own and those drawn with, sum to 1",
    max(abs(float(only[name].sum()) - 1) for name in ("probability", "sampled")),
    1e-5,
)
given = at.model(to_ids(at.model, at.prompt))[0].log_softmax(-1)
ids = to_ids(at.model, at.prompt)[0]
whole = (-given[:-1].gather(-1, ids[1:, None])[:, 0]).numpy()
page.check(
    "each loss is what the model itself gives",
    np.abs(losses["loss"].to_numpy()[0, 1:] - whole).max(initial=0.0),
    1e-3,
)
page.close()
