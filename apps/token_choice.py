"""One token of the vocabulary, chosen by name or left to the page."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from interp.figures.glyphs import visible

AUTOMATIC = None


def option_names(words: Sequence[str]) -> list[str]:
    """Visible tokens, made different where they look alike: options must be."""
    shown = [visible(word) for word in words]
    seen: dict[str, int] = {}
    for name in shown:
        seen[name] = seen.get(name, 0) + 1
    return [
        f"{name} (id {id})" if seen[name] > 1 or name == "automatic" else name
        for id, name in enumerate(shown)
    ]


def choose_token(
    key: str, label: str, words: Sequence[str], ids: Sequence[int], usual: int, *, help: str = ""
) -> int:
    """A select box over the tokens `ids`, bound to the URL; `usual` while nothing is chosen."""
    names = option_names(words)
    if st.session_state.get(key) not in (AUTOMATIC, *ids):
        st.session_state[key] = AUTOMATIC

    def name(id: int | None) -> str:
        return "automatic" if id is None else names[id]

    chosen = st.selectbox(
        label, [AUTOMATIC, *ids], format_func=name, key=key, bind="query-params", width=200,
        help=help or None,
    )  # fmt: skip
    return usual if chosen is None else chosen
