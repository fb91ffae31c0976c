"""One stream state, for the pages that look at the stream."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from interp.figures.results import state_labels


def choose_state(states: Sequence[str]) -> str:
    """A select box over stream states, the last one at first, bound to the URL."""
    names = dict(zip(states, state_labels(states), strict=True))
    if st.session_state.get("state", states[-1]) not in states:
        st.session_state["state"] = states[-1]
    return st.selectbox(
        "Stream after",
        states,
        len(states) - 1,
        format_func=lambda state: f"{names[state]} ({state})",
        key="state",
        bind="query-params",
        width=320,
    )
