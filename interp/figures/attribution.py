"""Direct logit attribution: who wrote the logit, part by part."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.errors import InputError
from interp.figures.glyphs import escaped, quoted, signed, visible
from interp.figures.results import component_names, one_prompt, tokens_of
from interp.figures.theme import canvas, diverging, outline, over_cells, theme, token_axis

_KIND_NAMES = {"attn_bias": "bias", "mlp": "MLP"}


def attribution_bars(
    attribution: xr.Dataset,
    pos: int,
    *,
    by_size: bool = False,
    whole_sublayers: bool = False,
    selected: str | None = None,
    most: int = 40,
    dark: bool = False,
) -> go.Figure:
    """The parts at one position, from the embedding on, each starting where the last one ended.

    The final bar is their sum, the diamond on it what the model really gave. Each bar carries
    [component] as customdata.

    Args:
        attribution: what `interp.direct_logit_attribution` returned with a target, of one prompt.
        pos: a position it holds.
        by_size: largest first, each bar from 0, instead of in forward order.
        whole_sublayers: the heads and the bias of a layer's attention as one bar, "0_attn_out".
        selected: a component to frame.
        most: how many parts have a bar; the smaller ones share one.

    Raises:
        InputError: a position that the result does not have, or an attribution of all tokens.
    """
    result, look = _at(attribution, pos), theme(dark)
    names = [str(name) for name in result["component"].to_numpy()]
    values = result["part"].to_numpy()
    if whole_sublayers:
        names, values = _whole(names, values, result)
    kept = np.sort(np.argsort(-np.abs(values), kind="stable")[:most])
    names, rest = [names[i] for i in kept], len(values) - len(kept)
    shown = values[kept]
    if by_size:
        order = np.argsort(-np.abs(shown), kind="stable")
        names, shown = [names[i] for i in order], shown[order]
    if rest:
        names.append(f"{rest} others")
        shown = np.append(shown, values.sum() - values[kept].sum())
    starts = np.zeros(len(shown)) if by_size else np.concatenate([[0.0], np.cumsum(shown)[:-1]])
    total = float(values.sum())
    rows = np.arange(len(shown))
    ends = starts + shown
    bars = go.Bar(
        base=starts,
        x=shown,
        y=rows,
        orientation="h",
        marker={"color": [look.towards if v >= 0 else look.away for v in shown]},
        customdata=[[name] for name in names],
        hovertemplate="%{customdata[0]}: %{x:+.4f} logits<br>click to open it<extra></extra>",
        showlegend=False,
        unselected={"marker": {"opacity": 1}},
    )
    numbers = go.Scatter(
        x=np.where(shown >= 0, np.maximum(starts, ends), np.minimum(starts, ends)),
        y=rows,
        mode="text",
        text=[f" {signed(v)} " for v in shown.tolist()],
        textposition=["middle right" if v >= 0 else "middle left" for v in shown],
        textfont={"size": 11, "color": look.muted},
        hoverinfo="skip",
        showlegend=False,
    )
    whole = go.Bar(
        x=[total],
        y=[len(shown)],
        orientation="h",
        marker={"color": look.muted},
        name="sum of the parts",
        hovertemplate="sum of the parts: %{x:+.4f} logits<extra></extra>",
    )
    truth = go.Scatter(
        x=[float(result["logit"])],
        y=[len(shown)],
        mode="markers+text",
        marker={"symbol": "diamond", "size": 12, "color": look.accent},
        text=[f"  {signed(float(result['logit']))}"],
        textposition="middle right",
        textfont={"color": look.accent},
        name="what the model gave",
        hovertemplate="what the model gave: %{x:+.4f} logits<extra></extra>",
    )
    figure = canvas(dark, height=112 + 20 * len(shown), traces=[bars, numbers, whole, truth])
    low = min(0.0, float(np.minimum(starts, ends).min()), total)
    high = max(0.0, float(np.maximum(starts, ends).max()), total)
    room = 0.12 * (high - low or 1.0)
    figure.update_xaxes(
        title=f"{'contribution' if by_size else 'running sum of contributions'} to "
        f"{_difference(attribution)} (logits)",
        range=[low - room, high + room],
        zeroline=True,
    )
    figure.update_yaxes(
        tickvals=list(range(len(shown) + 1)),
        ticktext=[*component_names(names), "<b>sum</b>"],
        range=[len(shown) + 0.6, -0.6],
        showgrid=False,
    )
    if selected in names:
        row = names.index(selected)
        frame = outline(look, 0.0, 1.0, row - 0.5, row + 0.5) | {"xref": "paper"}
        figure.add_shape(**frame)
    figure.update_layout(
        bargap=0.25,
        barmode="overlay",
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
    )
    return figure


def attribution_heads(attribution: xr.Dataset, pos: int, *, dark: bool = False) -> go.Figure:
    """The parts at one position as a map: layers down; heads, attention bias and MLP across.

    Each cell carries [component] as customdata.

    Raises:
        InputError: as `attribution_bars`.
    """
    result, look = _at(attribution, pos), theme(dark)
    kinds = result["kind"].to_numpy()
    layers = result["layer"].to_numpy()
    values = result["part"].to_numpy()
    components = [str(name) for name in result["component"].to_numpy()]
    n_layers = int(layers.max()) + 1
    columns: dict[str, list[float]] = {}
    members: dict[str, list[str]] = {}
    for layer in range(n_layers):
        head = 0
        inside = np.flatnonzero(layers == layer)
        for kind, value, at in zip(kinds[inside], values[inside], inside, strict=True):
            name = f"H{head}" if kind == "head" else _KIND_NAMES.get(str(kind), str(kind))
            head += kind == "head"
            columns.setdefault(name, []).append(float(value))
            members.setdefault(name, []).append(components[at])
    # Heads first, whatever order the layer wrote in.
    names = sorted(columns, key=lambda name: (not name.startswith("H"), list(columns).index(name)))
    grid = np.array([columns[name] for name in names], dtype=np.float32).T
    heatmap = go.Heatmap(
        z=grid,
        text=[[signed(value) for value in row] for row in grid.tolist()],
        texttemplate="%{text}",
        textfont={"size": 13},
        colorbar={"title": {"text": "logits: blue towards, red away"}},
        xgap=2,
        ygap=2,
        **diverging(grid, look),
        **over_cells(
            [
                [members[name][i], f"layer {i}, {name}", signed(float(columns[name][i]), 4)]
                for i in range(n_layers)
                for name in names
            ],
            grid.shape,
            "%{customdata[1]}: %{customdata[2]} logits<br>click to open it",
        ),
    )
    figure = canvas(dark, height=max(260, 100 + 44 * n_layers), traces=[heatmap])
    figure.update_xaxes(
        tickvals=list(range(len(names))), ticktext=names, showgrid=False, zeroline=False
    )
    figure.update_yaxes(
        title="layer",
        tickvals=list(range(n_layers)),
        ticktext=[f"L{layer}" for layer in range(n_layers)],
        range=[n_layers - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    return figure


def attribution_positions(
    attribution: xr.Dataset, *, pos: int | None = None, dark: bool = False
) -> go.Figure:
    """The parts at every position: components down, positions across.

    Args:
        attribution: what `interp.direct_logit_attribution` returned with a target and for all
            positions, of one prompt.
        pos: a position to frame.
    """
    result, look = _with_target(attribution), theme(dark)
    values = result["part"].to_numpy().astype(np.float32)
    names = component_names(result["component"].to_numpy())
    tokens = tokens_of(result)
    heatmap = go.Heatmap(
        z=values,
        customdata=[[f"{i} {quoted(token)}" for i, token in enumerate(tokens)]] * len(names),
        text=np.repeat(np.array(names)[:, None], len(tokens), axis=1),
        hovertemplate="%{text} at %{customdata}: %{z:+.4f} logits<extra></extra>",
        colorbar={"title": {"text": f"{_difference(attribution)} (logits)"}},
        **diverging(values, look),
    )
    figure = canvas(dark, height=110 + 18 * len(names), traces=[heatmap])
    figure.update_xaxes(**token_axis(tokens, look, "position: where the logits are read"))
    figure.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=names,
        range=[len(names) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    if pos is not None:
        figure.add_shape(**outline(look, pos - 0.5, pos + 0.5, -0.5, len(names) - 0.5))
    return figure


def _whole(
    names: list[str], values: np.ndarray, result: xr.Dataset
) -> tuple[list[str], np.ndarray]:
    """The parts with each layer's heads and attention bias added up, in forward order."""
    kinds, layers = result["kind"].to_numpy(), result["layer"].to_numpy()
    sums: dict[str, float] = {}
    for name, kind, layer, value in zip(names, kinds, layers, values, strict=True):
        whole = f"{layer}_attn_out" if kind in ("head", "attn_bias") else name
        sums[whole] = sums.get(whole, 0.0) + float(value)
    return list(sums), np.array(list(sums.values()))


def _difference(attribution: xr.Dataset) -> str:
    """The attributed quantity in words, safe for plotly."""
    settings = attribution.attrs.get("settings", {})

    def name(token: Any) -> str:
        return visible(token) if isinstance(token, str) else f"id {token}"

    text = f"logit({name(settings.get('target'))})"
    if settings.get("contrast") is not None:
        text += f" − logit({name(settings['contrast'])})"
    return escaped(text)


def _with_target(attribution: xr.Dataset) -> xr.Dataset:
    if "token" in attribution.dims:
        raise InputError(
            "The attribution is of all tokens, but a figure shows one logit or difference: "
            "call direct_logit_attribution with a target."
        )
    return one_prompt(attribution)


def _at(attribution: xr.Dataset, pos: int) -> xr.Dataset:
    result = _with_target(attribution)
    here = result["pos"].to_numpy().tolist()
    if pos not in here:
        raise InputError(
            f"Position {pos} came, but the result holds positions {here[0]} to {here[-1]}: "
            "choose one of these."
        )
    return result.sel(pos=pos)
