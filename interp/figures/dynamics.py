"""Through training: curves and maps over log steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from interp.errors import InputError
from interp.figures.glyphs import escaped
from interp.figures.results import hop_labels, state_labels
from interp.figures.steps import cell_edges, first_step, step_axes, step_places
from interp.figures.theme import Theme, canvas, outline, over_cells, sequential, theme

_DASHES = ("solid", "dash", "dot")
_LOGARITHMIC = {"kappa"}
_UNIT_RANGE = {"probability", "share of edges"}


def training_curves(
    curves: xr.DataArray,
    names: Sequence[str],
    *,
    points: xr.Dataset | None = None,
    lowest: xr.Dataset | None = None,
    step: int | None = None,
    pinned: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """Curves over log steps, one panel for each unit; several runs as lines of one colour.

    Args:
        curves: what `interp.training_curves` returned.
        names: which of its curves.
        points: what `interp.change_points` returned, to mark half-way steps with a diamond.
        lowest: what `interp.lowest_points` returned, to mark with a triangle where a curve that
            has no half-way step is lowest.
        step, pinned: steps to mark with a vertical line.

    Each point carries [step] as customdata.

    Raises:
        InputError: a curve that is not among them, or no curve.
    """
    known = [str(name) for name in curves["track"].to_numpy()]
    if not names or not set(names) <= set(known):
        raise InputError(
            f"Curves {list(names)} came, but the result has {', '.join(known)}: choose among these."
        )
    look, shown = theme(dark), curves.sel(track=list(names))
    panels: dict[str, list[str]] = {}
    for name, unit in zip(names, shown["units"].to_numpy(), strict=True):
        panels.setdefault(str(unit), []).append(name)
    n_rows = len(panels)
    figure = canvas(dark, height=130 + (310 if n_rows == 1 else 210 * n_rows))
    make_subplots(
        rows=n_rows, cols=1, shared_xaxes=True, vertical_spacing=0.16 / n_rows, figure=figure
    )
    steps = shown["step"].to_numpy()
    for row, (unit, members) in enumerate(panels.items(), start=1):
        for i, name in enumerate(members):
            place = list(names).index(name) if n_rows > 1 else i
            style = {
                "color": look.kinds[place % len(look.kinds)],
                "dash": _DASHES[place // len(look.kinds) % len(_DASHES)],
            }
            for trace in _lines(shown.sel(track=name), steps, style, points, lowest):
                figure.add_trace(trace, row=row, col=1)
        title = "" if unit == "1" else unit
        figure.update_yaxes(title=title, zeroline=False, row=row, col=1)
    _mark_steps(figure, steps, look, step, pinned)
    step_axes(figure, steps, n_rows)
    figure.update_layout(legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0})
    return figure


def measured(curves: xr.DataArray, group: str) -> list[str]:
    """The curves of a group that hold any number."""
    names = curves["track"].to_numpy()
    there = curves.notnull().any(("run", "step")).to_numpy()
    same = curves["group"].to_numpy() == group
    return [str(name) for name in names[there & same]]


def _lines(
    curve: xr.DataArray,
    steps: np.ndarray,
    style: dict[str, Any],
    points: xr.Dataset | None,
    lowest: xr.Dataset | None,
) -> list[go.Scatter]:
    """One curve of every run; only the first stands in the legend."""
    name, several = str(curve["track"].item()), curve.sizes["run"] > 1
    title = escaped(str(curve["title"].item()))
    traces = []
    for i, run in enumerate(curve["run"].to_numpy()):
        values = curve.isel(run=i).to_numpy()
        there = np.isfinite(values)
        who = f"{escaped(str(run))}<br>{title}" if several else title
        traces.append(
            go.Scatter(
                x=step_places(steps)[there],
                y=values[there],
                mode="lines+markers",
                name=title,
                legendgroup=name,
                showlegend=i == 0,
                line=style | {"width": 1.5 if several else 2},
                marker={"size": 4 if several else 6, "color": style["color"]},
                opacity=0.75 if several else 1,
                customdata=[[int(s)] for s in steps[there]],
                hovertemplate=f"{who}<br>step %{{customdata[0]}}: %{{y:.4g}}<extra></extra>",
            )
        )
        mark = _half_way(points, i, name) or _lowest(lowest, points, i, name)
        if mark is not None:
            symbol, at, value, nearest, words = mark
            traces.append(
                go.Scatter(
                    x=step_places(np.array([at]), first=first_step(steps)),
                    y=[value],
                    mode="markers",
                    legendgroup=name,
                    showlegend=False,
                    marker={
                        "symbol": symbol,
                        "size": 12,
                        "color": style["color"],
                        "line": {"width": 2},
                    },
                    customdata=[[nearest]],
                    hovertemplate=f"{who}<br>{words}<extra></extra>",
                )
            )
    return traces


_Mark = tuple[str, float, float, int, str]
"""symbol, step, value, the snapshot a click leads to, and words"""


def _half_way(points: xr.Dataset | None, run: int, name: str) -> _Mark | None:
    if points is None or name not in points["track"]:
        return None
    point = points.isel(run=run).sel(track=name)
    at, after, by = (float(point[key]) for key in ("step", "after", "by"))
    if not np.isfinite(at):
        return None
    middle = (float(point["start"]) + float(point["end"])) / 2
    words = f"half-way at step {at:.0f} (between {after:.0f} and {by:.0f})"
    return "diamond-open", at, middle, int(after), words


def _lowest(
    lowest: xr.Dataset | None, points: xr.Dataset | None, run: int, name: str
) -> _Mark | None:
    if lowest is None or name not in lowest["track"]:
        return None
    point = lowest.isel(run=run).sel(track=name)
    if not bool(point["inside"]) or (points is not None and name in points["track"]):
        return None
    at = float(point["step"])
    return "triangle-down-open", at, float(point["value"]), int(at), f"lowest at step {at:.0f}"


def training_map(
    measures: xr.Dataset,
    name: str,
    *,
    step: int | None = None,
    pinned: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """One measure of every head, stream state or hop, over log steps.

    Args:
        measures: what `interp.through_training` returned.
        name: a variable over [step, layer, head], [step, state] or [step, hop].
        step, pinned: steps to frame.

    Each cell carries [step] as customdata.

    Raises:
        InputError: a variable that is not there, or of other axes.
    """
    rows = _rows(measures, name)
    look, values = theme(dark), rows.to_numpy()
    steps, labels = rows["step"].to_numpy(), list(rows["row"].to_numpy())
    units = str(measures[name].attrs.get("units", ""))
    title = name.replace("_", " ") + (f" ({units})" if units not in ("", "1") else "")
    colours = np.log10(values) if name in _LOGARITHMIC else values
    finite = colours[np.isfinite(colours)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if units in _UNIT_RANGE:
        scale = sequential(look)
    elif low < 0 < high and name not in _LOGARITHMIC:
        reach = max(-low, high)
        scale = {"colorscale": look.scale(look.diverging), "zmin": -reach, "zmax": reach}
    else:
        scale = {"colorscale": look.scale(look.sequential), "zmin": low, "zmax": high}
    if name in _LOGARITHMIC:
        title = f"log₁₀ {title}"
    edges = cell_edges(step_places(steps))
    hover = [
        [int(step), escaped(label), f"{float(value):.4g}"]
        for label, row in zip(labels, values, strict=True)
        for step, value in zip(steps, row, strict=True)
    ]
    heatmap = go.Heatmap(
        x=edges,
        y=np.arange(len(labels) + 1) - 0.5,
        z=colours.astype(np.float32),
        colorbar={"title": {"text": escaped(title)}},
        xgap=1,
        ygap=1,
        **scale,
        **over_cells(
            hover, values.shape, "%{customdata[1]} at step %{customdata[0]}: %{customdata[2]}"
        ),
    )
    figure = canvas(dark, height=120 + 26 * len(labels), traces=[heatmap])
    figure.update_yaxes(
        tickvals=list(range(len(labels))),
        ticktext=[escaped(label) for label in labels],
        range=[len(labels) - 0.5, -0.5] if "head" in measures[name].dims else None,
        showgrid=False,
        zeroline=False,
    )
    step_axes(figure, steps, 1, n_labels=10)
    figure.update_xaxes(range=[edges[0], edges[-1]], showgrid=False)
    for marked in (step, pinned):
        if marked in steps:
            i = int(np.flatnonzero(steps == marked)[0])
            figure.add_shape(**outline(look, edges[i], edges[i + 1], -0.5, len(labels) - 0.5))
    return figure


def _rows(measures: xr.Dataset, name: str) -> xr.DataArray:
    """A measure as [row, step], its rows named."""
    allowed = [str(n) for n, v in measures.data_vars.items() if _row_axes(v) is not None]
    if name not in allowed:
        raise InputError(
            f"Measure {name!r} came, but there are {', '.join(allowed)}: choose one of these."
        )
    values, axes = measures[name], _row_axes(measures[name])
    if axes == ("layer", "head"):
        stacked = values.transpose("layer", "head", "step")
        labels = [f"L{i}H{j}" for i in values["layer"].values for j in values["head"].values]
        flat = stacked.to_numpy().reshape(-1, values.sizes["step"])
    else:
        assert axes is not None
        kept = [str(row) for row in values[axes[0]].to_numpy()]
        labels = state_labels(kept) if axes == ("state",) else hop_labels(kept)
        flat = values.transpose(axes[0], "step").to_numpy()
    return xr.DataArray(
        flat, dims=("row", "step"), coords={"row": labels, "step": values["step"].to_numpy()}
    )


def _row_axes(values: xr.DataArray) -> tuple[str, ...] | None:
    rest = tuple(str(dim) for dim in values.dims if dim != "step")
    known = (("layer", "head"), ("state",), ("hop",))
    return rest if "step" in values.dims and rest in known else None


def _mark_steps(
    figure: go.Figure, steps: np.ndarray, look: Theme, step: int | None, pinned: int | None
) -> None:
    for marked, dash in ((step, "solid"), (pinned, "dash")):
        if marked is not None:
            place = float(step_places(np.array([marked]), first=first_step(steps))[0])
            figure.add_vline(x=place, line={"color": look.accent, "width": 1.5, "dash": dash})
