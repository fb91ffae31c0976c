"""Through training: curves, maps and change points over log steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from jaxtyping import Float
from plotly.subplots import make_subplots

from interp.errors import InputError
from interp.figures.glyphs import escaped
from interp.figures.results import hop_labels, state_labels
from interp.figures.theme import Theme, canvas, cell_markers, outline, sequential, theme

_DASHES = ("solid", "dash", "dot")
_LOGARITHMIC = {"kappa"}
_UNIT_RANGE = {"probability", "share of edges"}


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
    _step_axes(figure, steps, n_rows)
    figure.update_layout(legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0})
    return figure


def measured(curves: xr.DataArray, group: str) -> list[str]:
    """The curves of a group that hold any number."""
    names = curves["track"].to_numpy()
    there = np.isfinite(curves).any(("run", "step")).to_numpy()
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
                    x=step_places(np.array([at]), first=_first(steps)),
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

    The point over each cell carries [step] as customdata.

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
    places = step_places(steps)
    edges = _edges(places)
    heatmap = go.Heatmap(
        x=edges,
        y=np.arange(len(labels) + 1) - 0.5,
        z=colours.astype(np.float32),
        hoverinfo="skip",
        colorbar={"title": {"text": escaped(title)}},
        xgap=1,
        ygap=1,
        **scale,
    )
    ys, xs = (axis.ravel() for axis in np.indices(values.shape))
    hover = [
        [int(steps[x]), escaped(labels[y]), f"{float(values[y, x]):.4g}"]
        for y, x in zip(ys, xs, strict=True)
    ]
    words = "%{customdata[1]} at step %{customdata[0]}: %{customdata[2]}"
    markers = cell_markers(places[xs], ys, hover, words)
    figure = canvas(dark, height=120 + 26 * len(labels), traces=[heatmap, markers])
    figure.update_yaxes(
        tickvals=list(range(len(labels))),
        ticktext=[escaped(label) for label in labels],
        range=[len(labels) - 0.5, -0.5] if "head" in measures[name].dims else None,
        showgrid=False,
        zeroline=False,
    )
    _step_axes(figure, steps, 1, n_labels=10)
    figure.update_xaxes(range=[edges[0], edges[-1]], showgrid=False)
    for marked in (step, pinned):
        if marked in steps:
            i = int(np.flatnonzero(steps == marked)[0])
            figure.add_shape(**outline(look, edges[i], edges[i + 1], -0.5, len(labels) - 0.5))
    return figure


def change_points(points: xr.Dataset, *, dark: bool = False) -> go.Figure:
    """Half-way steps, earliest first: a diamond a run, on a line between its two snapshots.

    Curves without a change stand at the bottom, empty; those that were not measured are left out.

    Args:
        points: what `interp.change_points` returned.
    """
    look = theme(dark)
    points = points.sel(track=points["start"].notnull().any("run"))
    order = np.argsort(np.nan_to_num(points["median"].to_numpy(), nan=np.inf), kind="stable")
    points = points.isel(track=order)
    titles = [escaped(str(title)) for title in points["title"].to_numpy()]
    grid = np.unique(
        np.concatenate([points[name].to_numpy().ravel() for name in ("after", "by")] + [[0.0]])
    )
    grid = grid[np.isfinite(grid)]
    figure = canvas(dark, height=120 + 24 * len(titles))
    for i, run in enumerate(points["run"].to_numpy()):
        of_run = points.isel(run=i)
        step, after, by = (of_run[name].to_numpy() for name in ("step", "after", "by"))
        there = np.flatnonzero(np.isfinite(step))
        colour = look.kinds[i % len(look.kinds)]
        n_runs = points.sizes["run"]
        y = there + (i - (n_runs - 1) / 2) * min(0.2, 0.7 / n_runs)
        first = _first(grid)
        spans = np.stack([after[there], by[there], np.full(len(there), np.nan)], axis=1).ravel()
        figure.add_scatter(
            x=step_places(spans, first=first),
            y=np.repeat(y, 3),
            mode="lines",
            line={"color": colour, "width": 2},
            legendgroup=str(run),
            showlegend=False,
            hoverinfo="skip",
        )
        figure.add_scatter(
            x=step_places(step[there], first=first),
            y=y,
            mode="markers",
            marker={"symbol": "diamond", "size": 9, "color": colour},
            name=escaped(str(run)),
            legendgroup=str(run),
            showlegend=n_runs > 1,
            customdata=[
                [int(after[k]), f"{step[k]:.0f}", f"{after[k]:.0f}", f"{by[k]:.0f}",
                 titles[k], "" if int(of_run["crossings"][k]) == 1 else
                 f"<br>crosses its middle {int(of_run['crossings'][k])} times"]
                for k in there
            ],
            hovertemplate=f"{escaped(str(run))}<br>%{{customdata[4]}}<br>half-way at step "
            "%{customdata[1]}, between %{customdata[2]} and %{customdata[3]}%{customdata[5]}"
            "<extra></extra>",
        )  # fmt: skip
    nowhere = [k for k in range(len(titles)) if not int(points["n_runs"][k])]
    figure.add_scatter(
        x=np.full(len(nowhere), step_places(np.array([0.0]), first=_first(grid))[0]),
        y=nowhere,
        mode="text",
        text="no change",
        textposition="middle right",
        textfont={"color": look.muted, "size": 11},
        showlegend=False,
        hoverinfo="skip",
    )
    figure.update_yaxes(
        tickvals=list(range(len(titles))),
        ticktext=titles,
        range=[len(titles) - 0.5, -0.5],
        zeroline=False,
    )
    _step_axes(figure, grid, 1)
    figure.update_layout(legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0})
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


def _first(steps: np.ndarray) -> float:
    return float(steps[steps > 0].astype(float).min(initial=np.inf))


def _edges(places: Float[np.ndarray, " step"]) -> Float[np.ndarray, " edge"]:
    """The borders of cells around these places."""
    if len(places) < 2:
        return np.array([places[0] - 0.5, places[0] + 0.5])
    middle = (places[1:] + places[:-1]) / 2
    return np.concatenate(
        [[places[0] - (middle[0] - places[0])], middle, [2 * places[-1] - middle[-1]]]
    )


def _step_axes(figure: go.Figure, steps: np.ndarray, n_rows: int, n_labels: int = 22) -> None:
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
    lowest = {"row": n_rows, "col": 1} if n_rows > 1 else {}
    figure.update_xaxes(title="training step (log scale)", **lowest)


def _mark_steps(
    figure: go.Figure, steps: np.ndarray, look: Theme, step: int | None, pinned: int | None
) -> None:
    for marked, dash in ((step, "solid"), (pinned, "dash")):
        if marked is not None:
            place = float(step_places(np.array([marked]), first=_first(steps))[0])
            figure.add_vline(x=place, line={"color": look.accent, "width": 1.5, "dash": dash})
