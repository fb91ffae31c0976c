"""Tokens as something to look at: every string shown literally, whitespace and all."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence

WHITESPACE = {" ": "␣", "\n": "↵", "\t": "⇥"}
_WHITESPACE_NAMES = {" ": "space", "\n": "newline", "\t": "tab"}
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"}


def visible(token: str) -> str:
    """The token with nothing hidden in it, one line long.

    Space, newline and tab have their glyphs. What else cannot be seen is spelt U+XXXX, and so are
    characters that look like one of those glyphs. An empty token is ∅.
    """
    return "".join(map(_visible_character, token)) or "∅"


def is_hidden(token: str) -> bool:
    """Whether `visible` puts glyphs in place of the whole token, so that they can be dimmed."""
    return not token or all(_visible_character(character) != character for character in token)


def legend(tokens: Sequence[str]) -> str:
    """What the glyphs in these tokens stand for; empty when there are none."""
    text = set("".join(tokens))
    return "   ".join(
        f"{glyph} {_WHITESPACE_NAMES[character]}"
        for character, glyph in WHITESPACE.items()
        if character in text
    )


def escaped(text: str) -> str:
    """Text that plotly shows as it stands: no markup, no entity, no formula."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def plain(token: str) -> str:
    """The token for 3-D text, where plotly knows markup but no entities."""
    return visible(token).replace("<", "<\N{WORD JOINER}")


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, and none for what rounds to zero."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def quoted(token: str) -> str:
    """The token as Python writes it, safe for a hover."""
    return escaped(repr(token))


def labels(tokens: Sequence[str], dim: str, *, longest: int = 8) -> list[str]:
    """Tokens for an axis or a cell: visible, shortened, safe, with glyphs in the colour `dim`."""
    return [_label(token, dim, longest) for token in tokens]


def _label(token: str, dim: str, longest: int) -> str:
    shown = visible(token)
    shown = escaped(shown if len(shown) <= longest else shown[: longest - 1] + "…")
    return f'<span style="color:{dim}">{shown}</span>' if is_hidden(token) else shown


def _visible_character(character: str) -> str:
    if character in WHITESPACE:
        return WHITESPACE[character]
    category = unicodedata.category(character)
    if category in _INVISIBLE or character in (*WHITESPACE.values(), "∅"):
        return f"U+{ord(character):04X}"
    # A combining mark by itself would sit on its neighbour.
    return f"◌{character}" if category.startswith("M") else character
