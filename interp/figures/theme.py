"""The look of every figure: colours for light and dark pages, templates, axes of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go

from interp.figures.glyphs import labels

MONOSPACE = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
SANS = "'Source Sans', 'Source Sans Pro', 'DejaVu Sans', Arial, sans-serif"
ABOVE = {
    "orientation": "h",
    "x": 0.5,
    "xanchor": "center",
    "y": 1.0,
    "yanchor": "bottom",
    "thickness": 9,
    "len": 0.6,
}
"""a colour bar on top of the picture, where the width is needed for cells"""
LABEL_EACH_UP_TO = 96
"""tokens on an axis; with more of them only every 16th or 32nd position is numbered"""


@dataclass(frozen=True, kw_only=True)
class Theme:
    page: str
    ink: str
    muted: str
    grid: str
    accent: str
    """what is selected"""
    towards: str
    away: str
    sequential: tuple[str, ...]
    """from the page's own colour to the strongest"""
    diverging: tuple[str, ...]
    """away from the target, the page's colour, towards the target"""
    kinds: tuple[str, ...]
    """for categories, told apart by colour-blind readers (Okabe & Ito 2008)"""

    def scale(self, colours: Sequence[str]) -> list[list[Any]]:
        return [
            [float(at), c] for at, c in zip(np.linspace(0, 1, len(colours)), colours, strict=True)
        ]


LIGHT = Theme(
    page="#ffffff",
    ink="#1c2430",
    muted="#66707f",
    grid="#e3e7ed",
    accent="#d55e00",
    towards="#2166ac",
    away="#b2182b",
    sequential=("#ffffff", "#d6e6f4", "#9fcae3", "#4f9bcb", "#1f68ad", "#08306b"),
    diverging=("#8e1426", "#d6604d", "#f6c5ae", "#ffffff", "#b7d7ea", "#4393c3", "#1b5a9c"),
    kinds=("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"),
)
DARK = Theme(
    page="#0e1117",
    ink="#e8ebf0",
    muted="#98a2b3",
    grid="#2a303b",
    accent="#ff9d4d",
    towards="#62b0f0",
    away="#ff7b6b",
    sequential=("#0e1117", "#14304f", "#1d5a94", "#3b8ad0", "#86c0f2", "#eaf5ff"),
    diverging=("#ffb3a7", "#e5604f", "#6e2a28", "#0e1117", "#1c4468", "#3f8fd0", "#a6d5ff"),
    kinds=("#56b4e9", "#e69f00", "#2cc295", "#e29ac3", "#f0e442", "#ff7f3f"),
)


def theme(dark: bool) -> Theme:
    return DARK if dark else LIGHT


@cache
def _template(dark: bool) -> go.layout.Template:
    look = theme(dark)
    axis = {
        "gridcolor": look.grid,
        "linecolor": look.grid,
        "zerolinecolor": look.muted,
        "tickcolor": look.muted,
        "tickfont": {"color": look.muted, "size": 12},
        "title": {"font": {"color": look.ink, "size": 13}, "standoff": 8},
        "automargin": True,
        "ticks": "",
        "ticklabelstandoff": 5,
    }
    bar = {"outlinewidth": 0, "thickness": 12, "tickfont": {"color": look.muted, "size": 11}}
    colorbar = bar | {"title": {"side": "right", "font": {"size": 12, "color": look.ink}}}
    return go.layout.Template(
        layout={
            "paper_bgcolor": look.page,
            "plot_bgcolor": look.page,
            "font": {"family": SANS, "color": look.ink, "size": 13},
            "colorway": list(look.kinds),
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {
                "bgcolor": look.page,
                "bordercolor": look.muted,
                "font": {"color": look.ink, "size": 13, "family": MONOSPACE},
                "align": "left",
                "namelength": -1,
            },
            "legend": {"font": {"color": look.ink, "size": 12}, "bgcolor": "rgba(0,0,0,0)"},
            "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
            "scene": {
                f"{name}axis": {
                    "gridcolor": look.grid,
                    "zerolinecolor": look.grid,
                    "linecolor": look.grid,
                    "backgroundcolor": look.page,
                }
                for name in "xyz"
            },
        },
        data={"heatmap": [{"colorbar": colorbar}]},
    )


def canvas(dark: bool, *, height: int, traces: Sequence[Any] = ()) -> go.Figure:
    """An empty figure of this house: explicit template, no plotly default left to the page."""
    layout = {"template": _template(dark), "height": height, "dragmode": False}
    return go.Figure(data=list(traces), layout=layout)


def token_axis(tokens: Sequence[str], look: Theme, title: str) -> dict[str, Any]:
    """An axis over positions. Numbers underneath, tokens as labels: tokens repeat."""
    n = len(tokens)
    axis: dict[str, Any] = {
        "title": {"text": title},
        "range": [-0.5, n - 0.5],
        "tickmode": "array",
        "showgrid": False,
        "zeroline": False,
    }
    if n > LABEL_EACH_UP_TO:
        every = 16 if n <= 512 else 32
        return axis | {"tickvals": list(range(0, n, every))}
    shown = labels(tokens, look.muted)
    one_wide = max(map(len, tokens)) <= 1
    return axis | {
        "tickvals": list(range(n)),
        "ticktext": shown,
        "tickangle": 0 if one_wide else -60,
        "tickfont": {
            "family": MONOSPACE,
            "size": 13 if n <= 32 else 11,
            "color": look.ink,
        },
    }


def diverging(values: np.ndarray, look: Theme, limit: float | None = None) -> dict[str, Any]:
    """Colour settings for signed values: 0 in the middle, both sides equally far.

    Args:
        limit: where the colour saturates; the largest |value| by default. Values beyond keep
            their numbers, only their colour is clipped.
    """
    finite = np.abs(values[np.isfinite(values)])
    limit = float(finite.max(initial=0.0)) if limit is None else limit
    limit = limit or 1.0
    return {"colorscale": look.scale(look.diverging), "zmin": -limit, "zmax": limit}


def sequential(look: Theme, top: float = 1.0) -> dict[str, Any]:
    return {"colorscale": look.scale(look.sequential), "zmin": 0.0, "zmax": top}


def outline(look: Theme, x0: float, x1: float, y0: float, y1: float) -> dict[str, Any]:
    """A frame around what is selected."""
    corners = {"x0": x0, "x1": x1, "y0": y0, "y1": y1}
    return {"type": "rect", "line": {"color": look.accent, "width": 2}, **corners}


def over_cells(
    customdata: Sequence[Sequence[Any]], shape: tuple[int, ...], words: str
) -> dict[str, Any]:
    """What a heatmap says of the cell under the pointer, and gives, as text, when it is clicked.

    Args:
        customdata: of each cell, row after row; numbers as they are to be read.
        shape: rows and columns.
        words: plotly's hover template.
    """
    # One array: plotly copies lists of lists cell by cell, half a second for a large map.
    told = np.array([[str(each) for each in cell] for cell in customdata])
    return {
        "customdata": told.reshape(*shape, -1),
        "hovertemplate": words + "<extra></extra>",
    }


def touch_markers(
    x: np.ndarray, y: np.ndarray, customdata: Any, hovertemplate: str, *, size: float = 14
) -> go.Scatter:
    """Invisible points where clicks count: a picture reports none, and a bar only its own."""
    return go.Scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"opacity": 0, "size": size, "symbol": "square"},
        customdata=customdata,
        hovertemplate=hovertemplate + "<extra></extra>",
        showlegend=False,
    )
