"""Tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_WITHOUT_TERMINAL = 120


def console() -> Console:
    """Where results are printed; without a terminal, wide enough that no cell is cut."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)


def table(
    title: str, rows: pd.DataFrame, *, formats: Mapping[str, Callable[[Any], str]] | None = None
) -> Table:
    """A data frame with one column each; numbers to the right."""
    drawn = _titled(title)
    for name in rows.columns:
        numeric = pd.api.types.is_numeric_dtype(rows[name])
        drawn.add_column(str(name), justify="right" if numeric else "left", overflow="fold")
    write = [(formats or {}).get(name, str) for name in rows.columns]
    for row in rows.itertuples(index=False):
        drawn.add_row(*(Text(f(value)) for f, value in zip(write, row, strict=True)))
    return drawn


def key_value_table(title: str, pairs: Mapping[str, Any]) -> Table:
    drawn = _titled(title)
    drawn.show_header = False
    drawn.add_column(style="dim")
    drawn.add_column(overflow="fold")
    for key, value in pairs.items():
        drawn.add_row(Text(key), Text(str(value)))
    return drawn


def _titled(title: str) -> Table:
    return Table(title=Text(title), title_justify="left", title_style="bold")
