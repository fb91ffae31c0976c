"""Lens: what the model would say if it stopped after each sublayer."""

import numpy as np
import streamlit as st
import torch

import interp
from interp import figures
from interp.inputs import to_ids, vocabulary
from literal import literal
from state_choice import choose_state
from token_choice import choose_token
from worksheet import Worksheet

MEASURES = {
    "probability of the top token": "top_probability",
    "probability of the followed token": "probability",
    "rank of the followed token": "rank",
    "loss on the next token": "cross_entropy",
    "entropy": "entropy",
    "distance to the end (KL)": "kl_to_final",
}


MOST_WORDS = 2000


def choose_cell(cell: list) -> None:
    st.session_state["state"], st.session_state["pos"] = str(cell[0]), int(cell[1])


page = Worksheet()
at = page.selection
st.markdown(
    "Read the residual stream after each sublayer as if it were the last. Each cell shows the "
    "token it would say next; click one for its ten best."
)
measure = st.segmented_control(
    "Colour", list(MEASURES), key="measure", bind="query-params", required=True,
    default=next(iter(MEASURES)),
)  # fmt: skip
which = st.container(horizontal=True, vertical_alignment="bottom", gap="large")
with which:
    every = range(len(at.vocabulary))
    if len(every) > MOST_WORDS:
        every = sorted({*to_ids(at.model, at.prompt)[0].tolist(), at.target, at.contrast})
    followed = choose_token(
        "follow", "Follow one token", at.vocabulary, list(every), at.target,
        help="Automatic follows the target.",
    )  # fmt: skip

top = min(10, at.model.cfg.d_vocab)
# All logits at all states are gigabytes for a large vocabulary and a long prompt.
few_words = at.model.cfg.d_vocab <= MOST_WORDS
words = page.ask("words", vocabulary)
lens = page.ask(
    "lens", interp.logit_lens, at.prompt, target=at.token(followed), top=top, logits=few_words
)
states = [str(state) for state in lens["state"].to_numpy()]
with which:
    state = choose_state(states)
page.draw(
    "grid",
    figures.lens_grid,
    lens,
    words,
    show=MEASURES[measure],
    selected=(state, at.pos),
    on_click=choose_cell,
    alt="The top token after each sublayer at each position, coloured by the " + measure + ".",
)

left, right = st.columns(2)
with left:
    st.subheader(f"The {top} likeliest there", anchor=False)
    page.draw(
        "best",
        figures.lens_top,
        lens,
        words,
        state,
        at.pos,
        alt=f"The {top} likeliest tokens at state {state}, position {at.pos}.",
    )
if few_words:
    with left:
        st.subheader("The logit difference on the way", anchor=False)
        page.draw(
            "path",
            figures.lens_path,
            lens,
            words,
            at.pos,
            at.target,
            at.contrast,
            alt=f"The logit difference after each sublayer at position {at.pos}.",
        )
with right:
    st.subheader(f"Following {literal(repr(at.vocabulary[followed]))}", anchor=False)
    page.draw(
        "followed",
        figures.lens_followed,
        lens,
        words,
        at.pos,
        alt=f"Probability and rank of the followed token after each sublayer at position {at.pos}.",
    )

given = at.model(to_ids(at.model, at.prompt))[0].softmax(-1)
last = lens.isel(state=-1, batch=0)
same = given.gather(-1, torch.from_numpy(last["top_ids"].to_numpy())).numpy()
page.check(
    "the last row is what the model itself gives",
    np.abs(last["top_probability"].to_numpy() - same).max(),
    1e-4,
)
page.close()
