"""Circuits read from weights alone: token tables, singular values, who reads from whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.errors import InputError
from interp.figures.glyphs import labels, quoted, signed
from interp.figures.theme import (
    ABOVE,
    MONOSPACE,
    Theme,
    canvas,
    diverging,
    outline,
    over_cells,
    theme,
)

_AXES = {
    "QK": ("query: the token that looks", "key: the token looked at", "likes"),
    "OV": ("the token attended to", "the logit that this moves", "moves"),
}


def circuit_map(
    table: xr.DataArray, *, selected: tuple[int, int] | None = None, dark: bool = False
) -> go.Figure:
    """A head's token circuit as a map, token by token.

    Args:
        table: what `interp.circuit_table` returned.
        selected: the ids of a row and a column to frame.

    Each cell carries [row's id, column's id] as customdata.
    """
    look, circuit = theme(dark), str(table.name)
    values = table.to_numpy().astype(np.float32)
    rows, columns = table["token"].to_numpy().tolist(), table["other_token"].to_numpy().tolist()
    row_words = [str(word) for word in table["tokens"].to_numpy()]
    column_words = [str(word) for word in table["other_tokens"].to_numpy()]
    row_title, column_title, verb = _AXES[circuit]
    across_names = [quoted(word) for word in column_words]
    hover = [
        [row, column, f"{name} {verb} {across_name}: {signed(value, 3)}"]
        for row, name, line in zip(rows, map(quoted, row_words), values.tolist(), strict=True)
        for column, across_name, value in zip(columns, across_names, line, strict=True)
    ]
    heatmap = go.Heatmap(
        z=values,
        colorbar=ABOVE | {"title": {"text": f"{circuit} ({_unit(table)})", "side": "top"}},
        **diverging(values, look),
        **over_cells(
            hover,
            values.shape,
            "%{customdata[2]}<br>click to find it in the prompt",
        ),
    )
    height = 130 + min(720, max(300, 10 * len(rows)))
    figure = canvas(dark, height=height, traces=[heatmap])
    figure.update_xaxes(**_words(column_words, look, column_title))
    figure.update_yaxes(**_words(row_words, look, row_title))
    figure.update_yaxes(autorange=False, range=[len(rows) - 0.5, -0.5])
    if selected is not None and selected[0] in rows and selected[1] in columns:
        y, x = rows.index(selected[0]), columns.index(selected[1])
        frame = outline(look, x - 0.5, x + 0.5, y - 0.5, y + 0.5)
        figure.add_shape(**frame)
        # A cell of a large table is small: lines lead to it.
        faint = {"type": "line", "line": {"color": look.accent, "width": 1, "dash": "dot"}}
        figure.add_shape(x0=-0.5, x1=x - 0.5, y0=y, y1=y, **faint)
        figure.add_shape(x0=x, x1=x, y0=len(rows) - 0.5, y1=y + 0.5, **faint)
    return figure


def pair_bars(places: xr.Dataset, *, most: int = 12, dark: bool = False) -> go.Figure:
    """The places where a pair meets, by the attention that the head pays there.

    Args:
        places: what `interp.pair_places` returned for one prompt, with at least one place.
        most: how many places have a bar.

    Each bar carries [query_pos, key_pos] as customdata.

    Raises:
        InputError: no place at all.
    """
    look = theme(dark)
    if not places.sizes["place"]:
        raise InputError("The pair does not meet in this prompt, so there is nothing to draw.")
    shown = places.isel(place=slice(most))
    query, key = shown["query_pos"].to_numpy(), shown["key_pos"].to_numpy()
    attention, weight = shown["attention"].to_numpy(), shown["weight"].to_numpy()
    rows = np.arange(len(query))
    unit = places["weight"].attrs["units"]
    bars = go.Bar(
        x=attention,
        y=rows,
        orientation="h",
        marker={"color": look.towards},
        text=[f" {a:.3f}   weights: {signed(float(w))} {unit}"
              for a, w in zip(attention, weight, strict=True)],
        textposition="outside",
        cliponaxis=False,
        customdata=np.stack([query, key], axis=1).tolist(),
        hovertemplate="query %{customdata[0]}, key %{customdata[1]}: attention %{x:.4f}"
        "<extra></extra>",
    )  # fmt: skip
    figure = canvas(dark, height=90 + 28 * len(rows), traces=[bars])
    figure.update_xaxes(title="attention (probability)", range=[0, 1.35], tickvals=[0, 0.5, 1])
    figure.update_yaxes(
        title="position that looks → looked at",
        tickvals=rows,
        ticktext=[f"{q} → {k}" for q, k in zip(query, key, strict=True)],
        range=[len(rows) - 0.5, -0.5],
        showgrid=False,
    )
    return figure


def head_spectra(spectra: xr.Dataset, layer: int, head: int, *, dark: bool = False) -> go.Figure:
    """The singular values of one head's QK and OV circuits, every other head's behind them.

    Args:
        spectra: what `interp.circuit_spectra` returned.

    Raises:
        InputError: a head that the result does not have.
    """
    look = theme(dark)
    _check_head(spectra.sizes["layer"], spectra.sizes["head"], layer, head)
    figure = canvas(dark, height=340)
    n_axes = spectra.sizes["axis"]
    x = np.arange(1, n_axes + 1)
    for column, name in enumerate(("QK", "OV")):
        place = {"xaxis": f"x{column + 1}", "yaxis": f"y{column + 1}"}
        values = spectra[name].to_numpy()
        others = values.reshape(-1, n_axes)
        gap = np.full((len(others), 1), np.nan)
        figure.add_scatter(
            x=np.tile(np.append(x, n_axes), len(others)),
            y=np.concatenate([others, gap], axis=1).ravel(),
            mode="lines",
            line={"color": look.grid, "width": 1},
            hoverinfo="skip",
            name="every head",
            showlegend=column == 0,
            **place,
        )
        figure.add_scatter(
            x=x,
            y=values[layer, head],
            mode="lines+markers",
            line={"color": look.accent, "width": 2},
            marker={"size": 5},
            name=f"L{layer}H{head}",
            hovertemplate="value %{x}: %{y:.4g}<extra></extra>",
            showlegend=column == 0,
            **place,
        )
        unit = _unit(spectra[name])
        figure.update_layout(
            {
                f"xaxis{column + 1}": {
                    "title": {"text": "singular value, largest first"},
                    "domain": [0.57 * column, 0.43 + 0.57 * column],
                    "anchor": f"y{column + 1}",
                },
                f"yaxis{column + 1}": {
                    "title": {"text": f"{name} ({unit})"},
                    "anchor": f"x{column + 1}",
                    "rangemode": "tozero",
                },
            }
        )
    figure.update_layout(legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0})
    return figure


def composition_map(scores: xr.Dataset, layer: int, head: int, *, dark: bool = False) -> go.Figure:
    """One head among all others: earlier heads that it reads from, later ones that read it.

    Args:
        scores: what `interp.composition_scores` returned.

    Each cell carries [layer, head] of the other head as customdata. Colours are
    the score above chance; heads of the same layer are left out.

    Raises:
        InputError: a head that the result does not have.
    """
    look = theme(dark)
    n_layers, n_heads = scores.sizes["layer"], scores.sizes["head"]
    _check_head(n_layers, n_heads, layer, head)
    excess, value = scores["excess"].to_numpy(), scores["value"].to_numpy()
    others = [(a, h) for a in range(n_layers) for h in range(n_heads) if a != layer]
    kinds = [str(kind) for kind in scores["kind"].to_numpy()]

    def cell(array: np.ndarray, kind: int, other: tuple[int, int]) -> float:
        mine = (layer, head)
        return float(array[(kind, *other, *mine) if other[0] < layer else (kind, *mine, *other)])

    z = np.array([[cell(excess, k, other) for other in others] for k in range(len(kinds))])
    z = z.reshape(len(kinds), len(others)).astype(np.float32)
    hover = [
        [*other, f"L{other[0]}H{other[1]}", kinds[k],
         "is read by" if other[0] < layer else "reads",
         f"{cell(value, k, other):.3f}", signed(cell(excess, k, other), 3)]
        for k in range(len(kinds)) for other in others
    ]  # fmt: skip
    with_text = len(others) <= 16
    heatmap = go.Heatmap(
        z=z,
        text=[[signed(v) for v in row] for row in z.tolist()] if with_text else None,
        texttemplate="%{text}" if with_text else None,
        colorbar={"title": {"text": "above chance"}},
        xgap=2,
        ygap=2,
        **diverging(z, look),
        **over_cells(
            hover,
            z.shape,
            f"%{{customdata[2]}} %{{customdata[4]}} L{layer}H{head} (%{{customdata[3]}})"
            "<br>score %{customdata[5]}, above chance %{customdata[6]}<br>click to see that head",
        ),
    )
    figure = canvas(dark, height=300, traces=[heatmap])
    every = -(-len(others) // 36)
    figure.update_xaxes(
        title="the other head",
        tickvals=list(range(0, len(others), every)),
        ticktext=[f"L{a}H{h}" for a, h in others[::every]],
        tickangle=0 if with_text else -60,
        showgrid=False,
        zeroline=False,
    )
    figure.update_yaxes(
        title="read as",
        tickvals=list(range(len(kinds))),
        ticktext=[{"Q": "query", "K": "key", "V": "value"}.get(kind, kind) for kind in kinds],
        range=[len(kinds) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    n_before = layer * n_heads
    if 0 < n_before < len(others):
        figure.add_vline(n_before - 0.5, line={"color": look.ink, "width": 2})
    for first, stop, words in (
        (0, n_before, f"L{layer}H{head} reads from"),
        (n_before, len(others), f"L{layer}H{head} is read by"),
    ):
        if stop > first:
            figure.add_annotation(
                x=(first + stop - 1) / 2, y=1.0, yref="paper", yanchor="bottom", text=words,
                showarrow=False, font={"color": look.ink, "size": 13},
            )  # fmt: skip
    return figure


def _words(words: Sequence[str], look: Theme, title: str) -> dict:
    size = 12 if len(words) <= 40 else 9
    axis = {"title": {"text": title}, "showgrid": False, "zeroline": False, "constrain": "domain"}
    if len(words) > 100:
        return axis | {"showticklabels": False}
    return axis | {
        "tickvals": list(range(len(words))),
        "ticktext": labels(words, look.muted, longest=6),
        "tickfont": {"family": MONOSPACE, "size": size, "color": look.ink},
        "tickangle": 0 if max(map(len, words), default=1) <= 1 else None,
    }


def _unit(values: xr.DataArray) -> str:
    return str(values.attrs.get("units", "1")).replace("s^2", "s²")


def _check_head(n_layers: int, n_heads: int, layer: int, head: int) -> None:
    if not (0 <= layer < n_layers and 0 <= head < n_heads):
        raise InputError(
            f"Layer {layer}, head {head} came, but the result has layers 0 to {n_layers - 1} and "
            f"heads 0 to {n_heads - 1}: choose among these."
        )
