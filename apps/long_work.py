"""Work that takes long: how far it is, a Stop button, and nothing kept of what was stopped.

The work runs in the script of the page. A click on Stop, like any other, ends that script at the
next report of progress, and the work with it; only a finished answer is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import streamlit as st

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

    from interp.replay import Progress

Answer = TypeVar("Answer")
SLOW = 0.4
"""seconds after which work is long: what is faster is shown at once"""
_A_MOMENT = 2e10
"""floating-point operations between two reports of progress"""


def batch_of_a_moment(model: HookedTransformer, n_pos: int) -> int:
    """How many runs of a prompt take about as long as a person waits for a button."""
    a_run = 2 * (model.cfg.n_params or 0) * n_pos
    return max(1, int(_A_MOMENT / max(a_run, 1)))


def long_work(
    question: str,
    kept: list[Answer],
    work: Callable[[Progress], Answer],
    meanwhile: Callable[[], None],
    *,
    begin: str,
    of: str,
    unasked: bool,
) -> Answer | None:
    """The answer, or None while nobody has asked for the work, or when the person stopped it.

    Args:
        question: what tells this work from all other.
        kept: where the answer is, or will be.
        work: given a function to report progress to.
        meanwhile: shows what can be had at once; called when the work turns out to be long.
        begin: what the button says that starts the work.
        of: what the work does one after the other, in the plural.
        unasked: start without that button.
    """
    if kept:
        return kept[0]
    if not st.session_state.get("wanted_work", {}).get(question, unasked):
        st.button(begin, key="begin", on_click=_want, args=(question, True))
        return None
    place, began = st.empty(), time.monotonic()
    bar = None

    def progress(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            if done == total or time.monotonic() - began < SLOW:
                return
            with place.container():
                bar = st.progress(0.0)
                st.button("Stop", key="stop", on_click=_want, args=(question, False))
                meanwhile()
        bar.progress(done / total, text=f"{done} of {total} {of}")

    kept.append(work(progress))
    place.empty()
    return kept[0]


def _want(question: str, wanted: bool) -> None:
    st.session_state.setdefault("wanted_work", {})[question] = wanted
