"""Attention: where each head looks, and what kind of head it is."""

import numpy as np
import streamlit as st

import interp
from attention_lines import attention_lines
from head_edits import show_edit_of_a_cell, show_without_the_head
from interp import figures
from worksheet import Worksheet

SCORED_ON = {"this prompt": interp.head_scores, "random repeated tokens": interp.induction_scores}


def choose_head(layer_and_head: list[int]) -> None:
    st.session_state["layer"], st.session_state["head"] = layer_and_head[:2]


page = Worksheet()
at = page.selection
head = (at.layer, at.head)
st.markdown(
    "Each small square is a head: rows are tokens that look, columns the tokens they look at. "
    "Click one to see it large."
)

patterns = page.ask("patterns", interp.attention_patterns, at.prompt)
left, right = st.columns([2, 3])
with left:
    page.draw(
        "montage",
        figures.attention_montage,
        patterns,
        selected=head,
        on_click=choose_head,
        alt=f"Attention of every head; layer {at.layer}, head {at.head} is framed.",
    )
with right:
    page.draw(
        "pattern",
        figures.attention_head,
        patterns,
        *head,
        query_pos=at.pos,
        alt=f"Attention of layer {at.layer}, head {at.head}: how much each token looks at each "
        "earlier one.",
    )

st.caption("Point at a token of the lower row to see where this head looks from there.")
attention_lines(at.tokens, patterns[0, at.layer, at.head].to_numpy(), at.pos)

st.subheader("What the prediction owes to this head", anchor=False)
left, right = st.columns(2, gap="large")
with left:
    show_without_the_head(page)
with right:
    show_edit_of_a_cell(page, patterns)

st.subheader("What kind of head", anchor=False)
scored_on = st.segmented_control(
    "Scores on", list(SCORED_ON), key="scored", bind="query-params", default="this prompt",
    required=True,
)  # fmt: skip
prompt = (at.prompt,) if scored_on == "this prompt" else ()
scores = page.ask("scores", SCORED_ON[scored_on], *prompt)
page.draw(
    "dots",
    figures.head_scores,
    scores,
    selected=head,
    alt=f"Scores of every head beside chance; layer {at.layer}, head {at.head} is named.",
)

weights = patterns.to_numpy()
page.check("each token's attention sums to 1", np.abs(weights.sum(-1) - 1).max(), 1e-5)
page.check("no token looks ahead", np.abs(np.triu(weights, 1)).max(), 0.0)
page.close()
