"""A head taken away, or one of its attention weights changed: what becomes of the prediction."""

from __future__ import annotations

import warnings

import numpy as np
import streamlit as st
import xarray as xr

import interp
from interp.figures.glyphs import signed
from interp.inputs import to_ids
from literal import literal
from worksheet import Worksheet

INSTEAD = {
    "zero": "Nothing: the head writes zeros.",
    "mean": "Its mean over this prompt: what it writes whatever the position.",
}


def show_without_the_head(page: Worksheet) -> None:
    """The logit difference when the chosen head writes zeros, or its mean, in its place."""
    at = page.selection
    by = st.segmented_control(
        "In the head's place", list(INSTEAD), key="instead", bind="query-params", required=True,
        default="zero", help="  \n".join(f"{by}: {words}" for by, words in INSTEAD.items()),
    )  # fmt: skip
    settings = {"reference": at.prompt, "each_position": False} if by == "mean" else {}
    metric = page.ask(
        "metric", interp.logit_difference, at.token(at.target), at.token(at.contrast), pos=at.pos
    )
    with warnings.catch_warnings():
        # That zeros overstate what a head does is said below.
        warnings.simplefilter("ignore", UserWarning)
        ablated = page.ask(
            "ablated",
            interp.ablation,
            at.prompt,
            metric,
            "z",
            by=by,
            over={"layer": [at.layer], "head": [at.head]},
            **settings,
        )
    base, change = (float(ablated[name].to_numpy().item()) for name in ("base", "change"))
    _show_change(page, f"without L{at.layer}H{at.head}", base, base + change)
    words = "Zeros also remove what the head writes everywhere, so they overstate it. "
    st.caption((words if by == "zero" else "") + INSTEAD[str(by)])


def show_edit_of_a_cell(page: Worksheet, patterns: xr.DataArray) -> None:
    """The logit difference when the chosen position looks more, or less, at one token."""
    at = page.selection
    if at.pos == 0:
        st.caption("Position 0 sees only itself, so there is nothing to edit in its row.")
        return
    row = patterns[0, at.layer, at.head, at.pos].to_numpy()
    if not 0 <= st.session_state.get("key_pos", 0) <= at.pos:
        st.session_state["key_pos"] = at.pos
    usual = int(row[: at.pos + 1].argmax())
    key = int(
        st.number_input(
            f"Position {at.pos} looks at position", 0, at.pos, usual, key="key_pos",
            bind="query-params",
        )
    )  # fmt: skip
    is_now = float(row[key])
    shown = round(is_now, 2)
    # A weight that nobody moved follows the head and the token.
    place = f"{at.layer} {at.head} {at.pos} {key} {at.prompt} {at.step}"
    weight = st.slider(
        f"Attention weight on {literal(repr(at.tokens[key]))}; the row's others share the rest",
        0.0, 1.0, shown, 0.01, key=f"weight {place}",
    )  # fmt: skip
    weight = is_now if weight == shown else weight
    cell = (at.layer, at.head, at.pos, key)
    edited = page.ask("edited", interp.edit_pattern, at.prompt, {cell: weight}, pos=at.pos)
    base, after = (
        float(logits[at.target] - logits[at.contrast])
        for logits in (edited[name][0].to_numpy() for name in ("base", "edited"))
    )
    _show_change(page, f"with weight {weight:.2f} in place of {is_now:.4f}", base, after)
    given = edited["base"][0].to_numpy()
    page.check(
        "the run that is edited is what the model itself gives",
        np.abs(given - at.model(to_ids(at.model, at.prompt))[0, at.pos].numpy()).max(),
        1e-3,
    )


def _show_change(page: Worksheet, how: str, base: float, after: float) -> None:
    st.metric(
        f"{literal(page.selection.difference)} {how}",
        signed(after, 3),
        f"{after - base:+.3f}",
        border=True,
    )
    st.caption(f"It is {signed(base, 3)} as the model stands.")
