"""When each curve is half-way, run by run."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.glyphs import escaped
from interp.figures.steps import first_step, step_axes, step_places
from interp.figures.theme import canvas, theme


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
        first = first_step(grid)
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
        x=np.full(len(nowhere), step_places(np.array([0.0]), first=first_step(grid))[0]),
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
    step_axes(figure, grid, 1)
    figure.update_layout(legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0})
    return figure
