"""Activation patching: how far each patched run went from base to source."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.errors import InputError
from interp.figures.glyphs import quoted, signed
from interp.figures.results import one_prompt, tokens_of
from interp.figures.theme import canvas, diverging, outline, over_cells, theme, token_axis

PatchingShow = Literal["fraction", "change"]


def patching_map(
    patching: xr.Dataset,
    *,
    show: PatchingShow = "fraction",
    pos: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """Layers down, positions or heads across; one patched run in each cell.

    Args:
        patching: what `interp.activation_patching` returned for one pair and one metric, over
            layer and pos or over layer and head.
        show: "fraction", 0 being the base run and 1 the source run, or "change" of the metric in
            its own unit. The colour of a fraction beyond -1 or 1 is clipped, its number is not.
        pos: a position to frame, such as the scored one.

    Each cell carries [layer, position or head] as customdata.

    Raises:
        InputError: other axes, or an unknown `show`.
    """
    result = one_prompt(patching)
    _check_axes(result["raw"])
    if show not in ("fraction", "change"):
        raise InputError(f"show={show!r} came, but 'fraction' and 'change' can be shown.")
    raw, unit = result["raw"].to_numpy(), result["raw"].attrs.get("units", "1")
    change = raw - float(result["base"])
    values = result["fraction"].to_numpy() if show == "fraction" else change
    title = "fraction (0 base, 1 source)" if show == "fraction" else f"change ({unit})"
    limit = 1.0 if show == "fraction" else None
    places = _places(result["raw"])
    layers, fraction = result["layer"].to_numpy(), result["fraction"].to_numpy()
    hover = [
        [int(layers[i]), int(j), places[j], _number(float(fraction[i, j])),
         f"{raw[i, j]:.4f}", signed(float(change[i, j]), 4)]
        for i, j in np.ndindex(*values.shape)
    ]  # fmt: skip
    says = (
        "layer %{customdata[0]}, %{customdata[2]}<br>fraction %{customdata[3]}"
        f"<br>metric %{{customdata[4]}} {unit}, changed by %{{customdata[5]}}"
    )
    return _map(result["raw"], values, title, limit, hover, says, pos, dark)


def patching_estimate(
    estimate: xr.DataArray, *, pos: int | None = None, dark: bool = False
) -> go.Figure:
    """What a gradient says of each patch before it is made; drawn like `patching_map`.

    Args:
        estimate: what `interp.attribution_patching` returned for one pair, over layer and pos or
            over layer and head.
        pos: a position to frame, such as the scored one.

    Raises:
        InputError: other axes.
    """
    result = one_prompt(estimate)
    _check_axes(result)
    values, unit = result.to_numpy(), result.attrs.get("units", "1")
    places, layers = _places(result), result["layer"].to_numpy()
    hover = [
        [int(layers[i]), int(j), places[j], signed(float(values[i, j]), 4)]
        for i, j in np.ndindex(*values.shape)
    ]
    says = (
        "layer %{customdata[0]}, %{customdata[2]}<br>estimate: changed by "
        f"%{{customdata[3]}} {unit}"
    )
    return _map(result, values, f"ESTIMATED change ({unit})", None, hover, says, pos, dark)


def _check_axes(result: xr.DataArray) -> None:
    axes = tuple(result.dims)
    if axes not in (("layer", "pos"), ("layer", "head")):
        raise InputError(
            f"The patching came over {', '.join(map(str, axes))}, but this figure draws layer by "
            "pos or layer by head: call activation_patching with over=('layer', 'pos')."
        )


def _places(result: xr.DataArray) -> list[str]:
    """Each column in words."""
    if result.dims[1] == "head":
        return [f"head {head}" for head in range(result.sizes["head"])]
    return [f"position {i} {quoted(token)}" for i, token in enumerate(tokens_of(result))]


def _map(
    result: xr.DataArray,
    values: np.ndarray,
    title: str,
    limit: float | None,
    hover: list[list[Any]],
    says: str,
    pos: int | None,
    dark: bool,
) -> go.Figure:
    """Layers down, positions or heads across, the title at the colour bar."""
    look, (n_layers, n_columns) = theme(dark), values.shape
    with_text = n_columns <= 16
    heatmap = go.Heatmap(
        z=values.astype(np.float32),
        text=[[signed(v) if np.isfinite(v) else "" for v in row] for row in values.tolist()]
        if with_text
        else None,
        texttemplate="%{text}" if with_text else None,
        colorbar={"title": {"text": title}},
        xgap=1,
        ygap=1,
        **diverging(values, look, limit),
        **over_cells(hover, values.shape, says),
    )
    figure = canvas(dark, height=max(280, 120 + 42 * n_layers), traces=[heatmap])
    over_positions = result.dims[1] == "pos"
    if over_positions:
        tokens = tokens_of(result)
        figure.update_xaxes(**token_axis(tokens, look, "position patched: token of the base run"))
    else:
        figure.update_xaxes(
            title="head patched, at all positions",
            tickvals=list(range(n_columns)),
            ticktext=[f"H{int(head)}" for head in result["head"].to_numpy()],
            showgrid=False,
            zeroline=False,
        )
    figure.update_yaxes(
        title="layer",
        tickvals=list(range(n_layers)),
        ticktext=[f"L{int(layer)}" for layer in result["layer"].to_numpy()],
        range=[n_layers - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    if pos is not None and over_positions:
        figure.add_shape(**outline(look, pos - 0.5, pos + 0.5, -0.5, n_layers - 0.5))
    return figure


def _number(value: float) -> str:
    return signed(value, 4) if np.isfinite(value) else "undefined"
