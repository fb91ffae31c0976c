"""Widgets for numbers whose limits move with the model and the prompt."""

from __future__ import annotations

import streamlit as st


def bounded_number(
    key: str, label: str, least: int, most: int, usual: int, *, help: str | None = None
) -> int:
    """A whole number from `least` to `most`, bound to the URL; one that is out of reach by now,
    or came so in a link, becomes the nearest that is not."""
    value = st.session_state.get(key, usual)
    if not least <= value <= most:
        st.session_state[key] = max(least, min(most, value))
    return int(
        st.number_input(
            label, least, most, usual, key=key, bind="query-params", help=help, width=130
        )
    )
