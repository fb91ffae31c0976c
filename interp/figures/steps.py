"""Axes of log steps."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float


def step_places(steps: np.ndarray, *, first: float | None = None) -> Float[np.ndarray, " step"]:
    """Where steps stand on a log axis: log2, and step 0 one doubling before the first other one.

    Args:
        first: the first step after 0; the smallest of `steps` by default.
    """
    steps = np.asarray(steps, dtype=float)
    later = steps[steps > 0]
    first = float(later.min(initial=np.inf)) if first is None else first
    if not np.isfinite(first):
        return steps
    # Half-way steps between 0 and the first snapshot lie between the two places.
    below = np.log2(first) - 1 + steps / first
    return np.where(steps < first, below, np.log2(np.maximum(steps, first)))


def first_step(steps: np.ndarray) -> float:
    """The first step after 0; infinite when there is none."""
    return float(steps[steps > 0].astype(float).min(initial=np.inf))


def cell_edges(places: Float[np.ndarray, " step"]) -> Float[np.ndarray, " edge"]:
    """The borders of cells around these places."""
    if len(places) < 2:
        return np.array([places[0] - 0.5, places[0] + 0.5])
    middle = (places[1:] + places[:-1]) / 2
    return np.concatenate(
        [[places[0] - (middle[0] - places[0])], middle, [2 * places[-1] - middle[-1]]]
    )


def step_axes(figure: go.Figure, steps: np.ndarray, n_rows: int, n_labels: int = 22) -> None:
    """Log steps on the lowest axis; labels where they have room."""
    places = step_places(steps)
    room = (places[-1] - places[0]) / n_labels
    kept: list[int] = []
    for i in reversed(range(len(places))):
        if not kept or places[kept[-1]] - places[i] >= room:
            kept.append(i)
    figure.update_xaxes(
        tickvals=places[kept],
        ticktext=[f"{int(steps[i]):,}" for i in kept],
        tickangle=0,
        zeroline=False,
    )
    title = "training step (log scale)"
    if n_rows == 1:
        figure.update_xaxes(title=title)
    else:
        figure.update_xaxes(title=title, row=n_rows, col=1)
