"""The slider over training steps, which drives every page, and playing it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import streamlit as st

A_FRAME = 0.45
"""seconds that each step stays on the screen at least"""
_TO_THE_SCREEN = 0.15
"""seconds: what has not been sent when the next run begins is never sent"""


def choose_step(steps: Sequence[int]) -> int:
    """A slider bound to the URL, and a button that plays it from here to the end."""
    coming = st.session_state.pop("coming_step", None)
    if coming in steps:
        st.session_state["step"] = coming
    if st.session_state.get("step", steps[-1]) not in steps:
        st.session_state["step"] = steps[-1]
    if len(steps) == 1:
        st.session_state.pop("playing", None)
        return steps[-1]
    step = st.select_slider(
        "Training step", steps, steps[-1], key="step", bind="query-params",
        help="Every page shows the model as it was at this step.",
    )  # fmt: skip
    playing = bool(st.session_state.get("playing"))
    # One button with two names: of two, the one before would stay on the screen beside the other.
    st.button(
        "Pause" if playing else "Play",
        icon=":material/pause:" if playing else ":material/play_arrow:",
        key="play",
        on_click=_pause if playing else _play,
        args=() if playing else (steps,),
    )
    st.session_state["steps"] = list(steps)
    return step


def go_on(since: float) -> None:
    """At the end of a page: the next step, while it is being played.

    Args:
        since: when the page began, by `time.monotonic`.
    """
    if not st.session_state.get("playing"):
        return
    steps = st.session_state["steps"]
    at = steps.index(st.session_state["step"])
    if at + 1 == len(steps):
        _pause()
    else:
        st.session_state["coming_step"] = steps[at + 1]
        time.sleep(max(_TO_THE_SCREEN, since + A_FRAME - time.monotonic()))
    st.rerun()


def _play(steps: Sequence[int]) -> None:
    st.session_state["playing"] = True
    if st.session_state.get("step") == steps[-1]:
        st.session_state["step"] = steps[0]


def _pause() -> None:
    st.session_state.pop("playing", None)
