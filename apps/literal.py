"""Text from outside, shown as it stands. Streamlit reads markdown in nearly every string."""

from __future__ import annotations

import string

from interp.figures.glyphs import visible

_ESCAPES = str.maketrans({mark: f"\\{mark}" for mark in string.punctuation})


def literal(text: str) -> str:
    """Markdown that shows exactly this text, on one line, nothing in it hidden."""
    words = [visible(word) if word else "" for word in text.split(" ")]
    return " ".join(word.translate(_ESCAPES) for word in words)
