"""What was measured through training as one page of HTML that opens without a network."""

from __future__ import annotations

import html
from collections.abc import Iterator

import plotly.graph_objects as go
import xarray as xr

from interp.dynamics import TRACKS, change_points, lowest_points, training_curves
from interp.figures import dynamics, timeline

MAPS = {
    "previous_token": "Previous-token attention of each head",
    "induction": "Induction attention of each head, on random blocks read twice",
    "copying": "Copying score of each head's OV circuit",
    "norm": "Length of the stream at each state",
    "hop_angle": "How far each sublayer turns the stream",
    "lens_kl": "Logit lens: divergence of each state from the end",
    "tuned_lens_kl": "Tuned lens: divergence of each state from the end",
}
# plotly's button for sharing would send the chart to another host.
_CONFIG = {"displaylogo": False, "showSendToCloud": False}
_STYLE = """body { font: 15px/1.5 'DejaVu Sans', Arial, sans-serif; color: #1c2430;
margin: 2rem auto; max-width: 1100px; padding: 0 1rem }
td, th { padding: 0.15rem 0.8rem; text-align: right }
td:first-child, th:first-child { text-align: left } table { border-collapse: collapse }
tr + tr { border-top: 1px solid #e3e7ed } .left-out { color: #b2182b }"""


def training_report(*measures: xr.Dataset) -> str:
    """The page, about 5 MB: plotly itself is in it.

    Args:
        measures: what `interp.track_training` returned, of each run; maps show the first.

    Raises:
        InputError: no run.
    """
    curves = training_curves(*measures)
    points, lowest = change_points(curves), lowest_points(curves)
    runs = ", ".join(str(run) for run in curves["run"].to_numpy())
    parts = [f"<h1>Through training: {html.escape(runs)}</h1>", *_left_out(measures)]
    first = True
    for heading, figure in _figures(measures[0], curves, points, lowest):
        drawn = figure.to_html(config=_CONFIG, full_html=False, include_plotlyjs=first)
        parts.append(f"<h2>{html.escape(heading)}</h2>\n{drawn}")
        first = False
    parts.append("<h2>Half-way steps</h2>\n" + _table(points))
    parts.append(
        "<h2>Lowest points</h2>\n<p>Of the curves that fall and rise again.</p>\n"
        + _table(lowest.where(lowest["n_runs"] > 0, drop=True))
    )
    note = (
        "The half-way step of a curve is where it first crosses the middle between its first and "
        "last value, interpolated between two snapshots. Curves that cross together coincide: "
        "that is not evidence that one causes the other."
    )
    parts.append(f"<p>{note}</p>")
    body = "\n".join(parts)
    return (
        f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{html.escape(runs)}</title>"
        f"<style>{_STYLE}</style>\n<body>{body}</body></html>\n"
    )


def _left_out(measures: tuple[xr.Dataset, ...]) -> Iterator[str]:
    for run in measures:
        for step, why in run.attrs.get("skipped", []):
            words = f"{run.attrs['run']}: step {step} is left out: {why}"
            yield f"<p class=left-out>{html.escape(words)}</p>"


def _figures(
    first: xr.Dataset, curves: xr.DataArray, points: xr.Dataset, lowest: xr.Dataset
) -> Iterator[tuple[str, go.Figure]]:
    yield "When each curve is half-way", timeline.change_points(points)
    for group in dict.fromkeys(track.group for track in TRACKS.values()):
        names = dynamics.measured(curves, group)
        if names:
            title = group[0].upper() + group[1:]
            yield title, dynamics.training_curves(curves, names, points=points, lowest=lowest)
    for name, heading in MAPS.items():
        if name in first and bool(first[name].notnull().any()):
            yield heading, dynamics.training_map(first, name)


def _table(points: xr.Dataset) -> str:
    """One row a curve: its step in each run, then median and extremes."""
    runs = [html.escape(str(run)) for run in points["run"].to_numpy()]
    several = len(runs) > 1
    spread = ("median", "earliest", "latest") if several else ()
    rows = ["".join(f"<th>{cell}" for cell in ("curve", *runs, *spread))]
    for name in points["track"].to_numpy():
        point = points.sel(track=name)
        cells = [html.escape(str(point["title"].item()))]
        cells += [_step(value) for value in point["step"].to_numpy()]
        cells += [_step(float(point[each])) for each in spread]
        rows.append("".join(f"<td>{cell}" for cell in cells))
    return "<table>" + "\n".join(f"<tr>{row}" for row in rows) + "</table>"


def _step(value: float) -> str:
    return "–" if value != value else f"{value:,.0f}"
