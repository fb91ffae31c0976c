"""Activation patching: how far each patched run went from base to source."""

from __future__ import annotations

from typing import Literal

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.errors import InputError
from interp.figures.glyphs import quoted, signed
from interp.figures.results import one_prompt, tokens_of
from interp.figures.theme import canvas, cell_markers, diverging, outline, theme, token_axis

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

    The point over each cell carries [layer, position or head] as customdata.

    Raises:
        InputError: other axes, or an unknown `show`.
    """
    result, look = one_prompt(patching), theme(dark)
    axes = tuple(result["raw"].dims)
    if axes not in (("layer", "pos"), ("layer", "head")):
        raise InputError(
            f"The patching came over {', '.join(map(str, axes))}, but this figure draws layer by "
            "pos or layer by head: call activation_patching with over=('layer', 'pos')."
        )
    if show not in ("fraction", "change"):
        raise InputError(f"show={show!r} came, but 'fraction' and 'change' can be shown.")
    raw, unit = result["raw"].to_numpy(), result["raw"].attrs.get("units", "1")
    change = raw - float(result["base"])
    values = result["fraction"].to_numpy() if show == "fraction" else change
    title = "fraction (0 base, 1 source)" if show == "fraction" else f"change ({unit})"
    n_layers, n_columns = values.shape
    with_text = n_columns <= 16
    heatmap = go.Heatmap(
        z=values.astype(np.float32),
        text=[[signed(v) if np.isfinite(v) else "" for v in row] for row in values.tolist()]
        if with_text
        else None,
        texttemplate="%{text}" if with_text else None,
        hoverinfo="skip",
        colorbar={"title": {"text": title}},
        xgap=1,
        ygap=1,
        **diverging(values, look, 1.0 if show == "fraction" else None),
    )
    over_positions = axes[1] == "pos"
    tokens = tokens_of(result) if over_positions else []
    columns = [
        f"position {i} {quoted(tokens[i])}" if over_positions else f"head {i}"
        for i in range(n_columns)
    ]
    layers = result["layer"].to_numpy()
    fraction = result["fraction"].to_numpy()
    rows, across = (axis.ravel() for axis in np.indices(values.shape))
    hover = [
        [int(layers[i]), int(j), columns[j], _number(float(fraction[i, j])),
         float(raw[i, j]), signed(float(change[i, j]), 4)]
        for i, j in zip(rows, across, strict=True)
    ]  # fmt: skip
    markers = cell_markers(
        across,
        rows,
        hover,
        "layer %{customdata[0]}, %{customdata[2]}<br>fraction %{customdata[3]}"
        f"<br>metric %{{customdata[4]:.4f}} {unit}, changed by %{{customdata[5]}}",
    )
    figure = canvas(dark, height=max(280, 120 + 42 * n_layers), traces=[heatmap, markers])
    if over_positions:
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
        ticktext=[f"L{int(layer)}" for layer in layers],
        range=[n_layers - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    if pos is not None and over_positions:
        figure.add_shape(**outline(look, pos - 0.5, pos + 0.5, -0.5, n_layers - 0.5))
    return figure


def _number(value: float) -> str:
    return signed(value, 4) if np.isfinite(value) else "undefined"
