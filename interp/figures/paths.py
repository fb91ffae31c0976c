"""Paths: what one component's change does through one other."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.errors import InputError
from interp.figures.glyphs import signed
from interp.figures.results import component_names, one_prompt
from interp.figures.theme import canvas, outline, theme


def sender_bars(
    estimates: xr.DataArray, *, selected: str | None = None, dark: bool = False
) -> go.Figure:
    """How much each sender's changed output is estimated to matter, over all that hear it.

    Args:
        estimates: what `interp.edge_attribution` returned for one pair.
        selected: a sender to bring out.

    Each bar carries [sender] as customdata.
    """
    look, result = theme(dark), one_prompt(estimates)
    senders = [str(name) for name in result["sender"].to_numpy()]
    size = np.nansum(np.abs(result.to_numpy()), axis=1)
    rows = np.arange(len(senders))
    bars = go.Bar(
        x=size,
        y=rows,
        orientation="h",
        marker={"color": [look.accent if name == selected else look.muted for name in senders]},
        customdata=[[name] for name in senders],
        hovertemplate="%{customdata[0]}: %{x:.4f}<br>click to see where it goes<extra></extra>",
        unselected={"marker": {"opacity": 1}},
    )
    figure = canvas(dark, height=90 + 20 * len(senders), traces=[bars])
    unit = estimates.attrs.get("units", "1")
    figure.update_xaxes(title=f"estimate: sizes of its paths, summed ({unit})", rangemode="tozero")
    figure.update_yaxes(
        title="sender", tickvals=rows, ticktext=component_names(senders),
        range=[len(senders) - 0.5, -0.5], showgrid=False,
    )  # fmt: skip
    return figure


def receiver_bars(
    paths: xr.Dataset,
    *,
    selected: str | None = None,
    most: int = 24,
    dark: bool = False,
) -> go.Figure:
    """What one sender's change does through each receiver by itself, exactly.

    Args:
        paths: what `interp.path_patching` returned for one pair and one sender.
        selected: a receiver to bring out; it is always among those drawn.
        most: how many receivers have a bar, those with the largest change.

    Each bar carries [receiver] as customdata.

    Raises:
        InputError: several senders.
    """
    look, result = theme(dark), one_prompt(paths)
    if result.sizes["sender"] != 1:
        raise InputError(
            f"The paths start at {result.sizes['sender']} senders, but a figure shows one: call "
            "path_patching with senders=[...] of one name."
        )
    change = result["change"].isel(sender=0).to_numpy()
    names = np.array([str(name) for name in result["receiver"].to_numpy()])
    heard = np.flatnonzero(np.isfinite(change))
    order = heard[np.argsort(-np.abs(change[heard]), kind="stable")]
    kept = np.sort(np.array([i for n, i in enumerate(order) if n < most or names[i] == selected]))
    kept = kept.astype(int)
    shown, values = names[kept].tolist(), change[kept]
    rows = np.arange(len(shown))
    bars = go.Bar(
        x=values,
        y=rows,
        orientation="h",
        marker={"color": [look.towards if v >= 0 else look.away for v in values]},
        text=[signed(float(v), 3) for v in values],
        textposition="outside",
        cliponaxis=False,
        customdata=[[name] for name in shown],
        hovertemplate="through %{customdata[0]}: %{x:+.4f}<br>click to choose it<extra></extra>",
        unselected={"marker": {"opacity": 1}},
    )
    figure = canvas(dark, height=90 + 24 * max(len(shown), 2), traces=[bars])
    low, high = (float(v) for v in (values.min(initial=0.0), values.max(initial=0.0)))
    room = 0.16 * ((high - low) or 1.0)
    unit = paths["change"].attrs.get("units", "1")
    figure.update_xaxes(
        title=f"change of the metric ({unit})", range=[low - room, high + room], zeroline=True
    )
    figure.update_yaxes(
        title="receiver", tickvals=rows, ticktext=shown, range=[len(shown) - 0.5, -0.5],
        showgrid=False,
    )  # fmt: skip
    if selected in shown:
        row = shown.index(selected)
        figure.add_shape(**outline(look, 0.0, 1.0, row - 0.5, row + 0.5) | {"xref": "paper"})
    return figure
