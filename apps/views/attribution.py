"""Attribution: which component wrote how much of the logit difference."""

import numpy as np
import streamlit as st

import interp
from interp import figures
from literal import literal
from worksheet import Worksheet

page = Worksheet()
at = page.selection
st.markdown(
    f"Every component adds a vector to the residual stream. Read by the unembedding, its share of "
    f"{literal(at.difference)} at position {at.pos} is a number, and the numbers sum to the whole."
)
order = st.segmented_control(
    "Order", ["as written", "by size"], key="order", bind="query-params", required=True,
    default="as written",
)  # fmt: skip

parts = page.ask(
    "parts",
    interp.direct_logit_attribution,
    at.prompt,
    at.token(at.target),
    at.token(at.contrast),
)
left, right = st.columns([3, 2])
with left:
    page.draw(
        "bars",
        figures.attribution_bars,
        parts,
        at.pos,
        by_size=order == "by size",
        alt=f"The part that each component wrote of the logit difference at position {at.pos}.",
    )
with right:
    page.draw(
        "heads",
        figures.attribution_heads,
        parts,
        at.pos,
        alt=f"The same parts by layer and head at position {at.pos}.",
    )
    st.caption("Blue pushes towards the target, red towards the contrast.")
st.subheader("At every position", anchor=False)
page.draw(
    "positions",
    figures.attribution_positions,
    parts,
    pos=at.pos,
    alt="The part that each component wrote at every position.",
)

logit, remainder = (parts[name].isel(batch=0).to_numpy() for name in ("logit", "remainder"))
page.check(
    f"{parts.sizes['component']} parts sum to the logit difference {logit[at.pos]:+.4f}",
    np.abs(remainder).max(),
    1e-3,
)
page.close()
