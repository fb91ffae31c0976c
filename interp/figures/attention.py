"""Attention: all heads at a glance, one head in full, and what kind of head it is."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from PIL import Image
from plotly.subplots import make_subplots

from interp.errors import InputError
from interp.figures.glyphs import quoted
from interp.figures.results import one_prompt, tokens_of
from interp.figures.theme import (
    ABOVE,
    Theme,
    canvas,
    outline,
    sequential,
    theme,
    token_axis,
    touch_markers,
)

_CLEAR = 255
_MOST_PIXELS_A_HEAD = 128
_BETWEEN = 68
"""pixels between two axes, for ticks and title"""
_SCORE_NAMES = {
    "previous_token": "previous token",
    "first_token": "first token",
    "duplicate_token": "same token, earlier",
    "induction": "after the same token",
    "entropy": "entropy",
    "distance": "distance back",
}


def attention_montage(
    patterns: xr.DataArray,
    *,
    selected: tuple[int, int] | None = None,
    dark: bool = False,
) -> go.Figure:
    """Every head's pattern as a thumbnail, layers down, heads across.

    Args:
        patterns: what `interp.attention_patterns` returned, of one prompt.
        selected: (layer, head) to frame.

    One PNG whatever the number of heads. A pattern over more than 128 positions is thinned: each
    pixel is then the largest of its block of cells. The point over each thumbnail carries
    [layer, head] as customdata.
    """
    values = _thinned(one_prompt(patterns).to_numpy())
    n_layers, n_heads, n, _ = values.shape
    look, pitch = theme(dark), n + max(2, n // 12)
    indices = np.full((n_layers * pitch, n_heads * pitch), _CLEAR, dtype=np.uint8)
    past = np.tril(np.ones((n, n), dtype=bool))
    for layer in range(n_layers):
        for head in range(n_heads):
            tile = np.where(past, np.round(values[layer, head] * 254), _CLEAR)
            top, left = layer * pitch, head * pitch
            indices[top : top + n, left : left + n] = tile.astype(np.uint8)

    side = max(44.0, min(150.0, 520 / n_layers, 900 / n_heads))
    rows, columns = np.divmod(np.arange(n_layers * n_heads), n_heads)
    middle = (n - 1) / 2
    figure = canvas(
        dark,
        height=int(side * n_layers) + 76,
        traces=[
            go.Image(source=_png(indices, look), hoverinfo="skip"),
            touch_markers(
                columns * pitch + middle,
                rows * pitch + middle,
                np.stack([rows, columns], axis=1).tolist(),
                "layer %{customdata[0]}, head %{customdata[1]}<br>click to see it large",
                size=side * 0.85,
            ),
        ],
    )
    ticks = {"showgrid": False, "zeroline": False, "ticks": ""}
    figure.update_xaxes(
        title="head",
        side="top",
        tickvals=np.arange(n_heads) * pitch + middle,
        ticktext=[f"H{head}" for head in range(n_heads)],
        range=[-0.5 - pitch * 0.03, n_heads * pitch - 0.5],
        **ticks,
    )
    figure.update_yaxes(
        title="layer",
        tickvals=np.arange(n_layers) * pitch + middle,
        ticktext=[f"L{layer}" for layer in range(n_layers)],
        range=[n_layers * pitch - 0.5, -0.5 - pitch * 0.03],
        constraintoward="top",
        **ticks,
    )
    frames = []
    for layer, head in zip(rows, columns, strict=True):
        x, y = head * pitch - 0.5, layer * pitch - 0.5
        chosen = (layer, head) == selected
        frame = outline(look, x, x + n, y, y + n)
        if not chosen:
            frame["line"] = {"color": look.grid, "width": 1}
        frames.append(frame)
    # All at once: each shape that is added by itself has plotly make all earlier ones anew.
    figure.update_layout(shapes=frames)
    return figure


def attention_head(
    patterns: xr.DataArray,
    layer: int,
    head: int,
    *,
    query_pos: int | None = None,
    dark: bool = False,
) -> go.Figure:
    """One head's pattern: queries down, keys across, each row a distribution.

    Args:
        patterns: what `interp.attention_patterns` returned, of one prompt.
        query_pos: a query whose row is framed.

    Raises:
        InputError: a layer or head that the result does not have.
    """
    result = one_prompt(patterns)
    _check_head(result, layer, head)
    cell = result.sel(layer=layer, head=head)
    values = cell.to_numpy().astype(np.float32)
    n = len(values)
    values[np.triu_indices(n, 1)] = np.nan
    look = theme(dark)
    heatmap = go.Heatmap(
        z=values,
        hoverongaps=False,
        hovertemplate="query %{y}<br>key   %{x}<br>attention %{z:.4f}<extra></extra>",
        colorbar=ABOVE | {"title": {"text": "attention (probability)", "side": "top"}},
        **sequential(look),
    )
    figure = canvas(dark, height=min(660, max(360, 160 + 24 * n)), traces=[heatmap])
    keys = token_axis(tokens_of(cell, "key_pos"), look, "key: the token looked at")
    queries = token_axis(tokens_of(cell, "query_pos"), look, "query: the token that looks")
    queries["range"] = queries["range"][::-1]
    if n > 40:
        queries["tickfont"] = queries.get("tickfont", {}) | {"size": 9}
    keys["labelalias"] = _hover_names(cell, "key_pos")
    figure.update_xaxes(keys)
    figure.update_xaxes(constrain="domain")
    queries["labelalias"] = _hover_names(cell, "query_pos")
    figure.update_yaxes(queries)
    figure.update_yaxes(scaleanchor="x", constrain="domain", constraintoward="top")
    if query_pos is not None:
        figure.add_shape(**outline(look, -0.5, query_pos + 0.5, query_pos - 0.5, query_pos + 0.5))
    return figure


def head_scores(
    scores: xr.Dataset, *, selected: tuple[int, int] | None = None, dark: bool = False
) -> go.Figure:
    """Each score of every head as a dot, the selected head named, chance as a bar across.

    Args:
        scores: what `interp.head_scores` (of one prompt) or `interp.induction_scores` returned.
        selected: (layer, head) to bring out, with its values.
    """
    result, look = one_prompt(scores), theme(dark)
    if selected is not None:
        _check_head(result["value"], *selected)
    groups: dict[str, list[str]] = {}
    for score, unit in zip(result["score"].to_numpy(), result["units"].to_numpy(), strict=True):
        groups.setdefault(str(unit), []).append(str(score))
    height = 46 * len(result["score"]) + _BETWEEN * len(groups) + 60
    figure = canvas(dark, height=height)
    make_subplots(
        rows=len(groups),
        cols=1,
        row_heights=[len(names) + 0.25 for names in groups.values()],
        vertical_spacing=_BETWEEN / height,
        figure=figure,
    )
    for row, (unit, names) in enumerate(groups.items(), start=1):
        for trace in _score_traces(result, names, selected, look, legend=row == 1):
            figure.add_trace(trace, row=row, col=1)
        title = f"{'mean attention' if unit == 'probability' else names[0]} ({unit})"
        figure.update_xaxes(title=title, row=row, col=1)
        figure.update_yaxes(
            tickvals=list(range(len(names))),
            ticktext=[_SCORE_NAMES.get(name, name) for name in names],
            range=[len(names) - 0.5, -0.75],
            showgrid=False,
            zeroline=False,
            row=row,
            col=1,
        )
        values = [result[name].sel(score=names).to_numpy() for name in ("value", "chance")]
        top = max(float(np.nanmax(v, initial=0.0)) for v in values) or 1.0
        top = 1.0 if unit == "probability" else top
        figure.update_xaxes(range=[-0.02 * top, 1.05 * top], row=row, col=1)
    figure.update_layout(
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        margin={"l": 8, "r": 8, "t": 36, "b": 8},
    )
    return figure


def _score_traces(
    result: xr.Dataset,
    names: list[str],
    selected: tuple[int, int] | None,
    look: Theme,
    *,
    legend: bool,
) -> list[go.Scatter]:
    values = result["value"].sel(score=names)
    n_layers, n_heads = values.sizes["layer"], values.sizes["head"]
    layers, heads = np.divmod(np.arange(n_layers * n_heads), n_heads)
    flat = values.to_numpy().reshape(len(names), -1)
    rows = np.repeat(np.arange(len(names)), flat.shape[1])
    # Dots of one score would hide each other on a line: spread them by layer.
    spread = np.tile((layers - (n_layers - 1) / 2) / max(n_layers, 2) * 0.5, len(names))
    who = [f"L{layer}H{head}" for layer, head in zip(layers, heads, strict=True)] * len(names)
    every = go.Scatter(
        x=flat.ravel(),
        y=rows + spread,
        mode="markers",
        name="every head",
        marker={"color": look.muted, "size": 8, "opacity": 0.55},
        customdata=who,
        hovertemplate="%{customdata}: %{x:.4f}<extra></extra>",
        showlegend=legend,
        legendgroup="every",
    )
    chance = go.Scatter(
        x=result["chance"].sel(score=names).to_numpy(),
        y=np.arange(len(names)),
        mode="markers",
        name="chance: equal attention to every earlier token",
        marker={
            "symbol": "line-ns",
            "size": 30,
            "line": {"color": look.ink, "width": 2},
        },
        hovertemplate="chance: %{x:.4f}<extra></extra>",
        showlegend=legend,
        legendgroup="chance",
    )
    traces = [every, chance]
    if selected is not None:
        layer, head = selected
        mine = values.sel(layer=layer, head=head).to_numpy()
        offset = (layer - (n_layers - 1) / 2) / max(n_layers, 2) * 0.5
        traces.append(
            go.Scatter(
                x=mine,
                y=np.arange(len(names)) + offset,
                mode="markers+text",
                name=f"L{layer}H{head}",
                marker={"color": look.accent, "size": 13, "line": {"color": look.page, "width": 1}},
                text=[f"{value:.2f}" if np.isfinite(value) else "" for value in mine],
                textposition="top center",
                textfont={"color": look.accent, "size": 13},
                hovertemplate=f"L{layer}H{head}: %{{x:.4f}}<extra></extra>",
                showlegend=legend,
                legendgroup="selected",
            )
        )
    return traces


def _check_head(result: xr.DataArray, layer: int, head: int) -> None:
    n_layers, n_heads = result.sizes["layer"], result.sizes["head"]
    if not (0 <= layer < n_layers and 0 <= head < n_heads):
        raise InputError(
            f"Layer {layer}, head {head} came, but the result has layers 0 to {n_layers - 1} and "
            f"heads 0 to {n_heads - 1}: choose among these."
        )


def _hover_names(result: xr.DataArray, dim: str) -> dict[str, str]:
    tokens = tokens_of(result, dim)
    return {str(pos): f"{pos} {quoted(token)}" for pos, token in enumerate(tokens)}


def _thinned(values: np.ndarray) -> np.ndarray:
    n = values.shape[-1]
    step = -(-n // _MOST_PIXELS_A_HEAD)
    if step == 1:
        return values
    padding = -n % step
    padded = np.pad(values, ((0, 0), (0, 0), (0, padding), (0, padding)))
    m = padded.shape[-1] // step
    return padded.reshape(*values.shape[:2], m, step, m, step).max(axis=(3, 5))


def _png(indices: np.ndarray, look: Theme) -> str:
    """A palette image as a data URI: 0 to 254 along the scale, 255 see-through."""
    steps = np.linspace(0, len(look.sequential) - 1, 255)
    stops = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in look.sequential])
    at = np.arange(len(stops))
    palette = np.stack([np.interp(steps, at, stops[:, channel]) for channel in range(3)], axis=1)
    image = Image.fromarray(indices, mode="P")
    image.putpalette([*palette.round().astype(int).ravel().tolist(), 0, 0, 0])
    file: Any = io.BytesIO()
    image.save(file, "png", transparency=_CLEAR, optimize=False)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
