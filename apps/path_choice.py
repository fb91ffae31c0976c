"""A path for the patching page: choose who sends, then who receives."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

import interp
from interp import figures
from worksheet import Worksheet


def show_paths(page: Worksheet, pair: Any, metric: Any, base: float, source: float) -> None:
    """Two charts and a sentence: senders by estimate, the chosen one's paths exactly.

    Args:
        pair, metric: answers of this page, as `path_patching` takes them.
        base, source: the metric of the unpatched runs.
    """
    # Closed, it costs nothing: every edge of the model takes longer than the map above it.
    asked = any(key in st.query_params for key in ("sender", "receiver"))
    place = st.expander(
        "One path at a time: who sends the difference, and to whom",
        asked,
        key="paths",
        on_change="rerun",
    )
    if place.open:
        with place:
            _show(page, pair, metric, base, source)


def _show(page: Worksheet, pair: Any, metric: Any, base: float, source: float) -> None:
    st.markdown(
        "A path gives one receiver, and nothing else, what one sender wrote in the other run. "
        "Click a sender, then a receiver."
    )
    estimates = page.ask("estimates", interp.edge_attribution, pair, metric)
    edges = estimates.isel(batch=0)
    senders = [str(name) for name in edges["sender"].to_numpy()]
    sizes = np.nansum(np.abs(edges.to_numpy()), axis=1)
    sender = _chosen("sender", senders) or senders[int(sizes.argmax())]
    left, right = st.columns([2, 3], gap="large")
    with left:
        page.draw(
            "senders",
            figures.sender_bars,
            estimates,
            selected=sender,
            on_click=_choose("sender"),
            alt="How much each component's changed output is estimated to matter.",
        )
    paths = page.ask("paths", interp.path_patching, pair, metric, senders=[sender])
    change = paths["change"].isel(batch=0, sender=0)
    heard = [str(name) for name in change["receiver"].to_numpy()[np.isfinite(change.to_numpy())]]
    strongest = max(heard, key=lambda name: abs(float(change.sel(receiver=name))))
    receiver = _chosen("receiver", heard) or strongest
    with right:
        page.draw(
            "receivers",
            figures.receiver_bars,
            paths,
            selected=receiver,
            on_click=_choose("receiver"),
            alt=f"What the change of {sender} does through each receiver by itself.",
        )
        one = float(change.sel(receiver=receiver))
        st.markdown(
            f"**{sender} → {receiver}** alone moves the logit difference by **{one:+.4f}**, of "
            f"{source - base:+.4f} between the runs."
        )
        with st.container(horizontal=True):
            for key, label, names, usual in (
                ("sender", "Sender", senders, senders[int(sizes.argmax())]),
                ("receiver", "Receiver", heard, strongest),
            ):
                st.selectbox(
                    label,
                    [None, *names],
                    key=key,
                    bind="query-params",
                    width=220,
                    format_func=lambda name, usual=usual: (
                        f"the strongest: {usual}" if name is None else name
                    ),
                )
    page.check("paths start from the same base run", abs(float(paths["base"][0]) - base), 1e-4)


def _chosen(key: str, names: list[str]) -> str | None:
    if st.session_state.get(key) not in (None, *names):
        st.session_state[key] = None
    return st.session_state.get(key)


def _choose(key: str) -> Any:
    def choose(bar: list) -> None:
        st.session_state[key] = str(bar[0])

    return choose
