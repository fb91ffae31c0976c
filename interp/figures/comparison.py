"""Two results and their difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.errors import InputError
from interp.figures.glyphs import escaped, labels, quoted
from interp.figures.results import component_names, hop_labels, state_labels, tokens_of
from interp.figures.theme import (
    MONOSPACE,
    Theme,
    canvas,
    diverging,
    outline,
    sequential,
    theme,
    token_axis,
)

_POSITIONS = ("pos", "query_pos", "key_pos")
_TITLES = {
    "pos": "position",
    "query_pos": "query",
    "key_pos": "key",
    "token": "next token",
    "component": "component",
    "state": "stream state, after",
    "hop": "moved by",
}


def comparison(
    compared: xr.Dataset,
    *,
    names: tuple[str, str] = ("first", "second"),
    pos: int | None = None,
    most: int = 16,
    dark: bool = False,
) -> go.Figure:
    """Both results in one scale, and the second minus the first in a diverging one.

    Args:
        compared: what `interp.compare` returned, over one axis (bars) or two (maps).
        names: what the two are.
        pos: a position to frame.
        most: how many rows of an axis without order, such as tokens, are drawn: those that are
            largest in either or differ most.

    Raises:
        InputError: a comparison over no axis, or over more than two.
    """
    n_axes = compared["difference"].ndim
    if n_axes not in (1, 2):
        raise InputError(
            f"The comparison is over {n_axes} axes, but one or two can be drawn: give compare(...) "
            "more labels to cut at."
        )
    look = theme(dark)
    shown = tuple(escaped(name) for name in names)
    draw = _bars if n_axes == 1 else _maps
    return draw(compared, (shown[0], shown[1]), pos, most, look, dark)


def _bars(
    compared: xr.Dataset,
    names: tuple[str, str],
    pos: int | None,
    most: int,
    look: Theme,
    dark: bool,
) -> go.Figure:
    (dim,) = map(str, compared["difference"].dims)
    over_positions = dim in _POSITIONS
    if not over_positions and compared.sizes[dim] > most:
        size = np.abs([compared[name].to_numpy() for name in compared.data_vars]).max(0)
        kept = np.sort(np.argsort(-np.nan_to_num(size), kind="stable")[:most])
        compared = compared.isel({dim: kept})
    first, second, difference = (
        compared[name].to_numpy() for name in ("first", "second", "difference")
    )
    if dim == "token":
        order = np.argsort(-np.maximum(first, second), kind="stable")
        compared = compared.isel(token=order)
        first, second, difference = first[order], second[order], difference[order]
    at = np.arange(len(first))
    hover = _hover_words(compared, dim)
    across = {"orientation": "v"} if over_positions else {"orientation": "h"}

    def bar(values: np.ndarray, name: str, colour: Any, panel: int) -> go.Bar:
        numbers = {"x": at, "y": values} if over_positions else {"x": values, "y": at}
        value = "y" if over_positions else "x"
        axes = {"xaxis": "x", "yaxis": f"y{panel}"} if over_positions else {
            "xaxis": f"x{panel}", "yaxis": "y"}  # fmt: skip
        return go.Bar(
            **numbers, **across, **axes, name=name, marker={"color": colour}, customdata=hover,
            hovertemplate=f"%{{customdata}}<br>{name}: %{{{value}:.4f}}<extra></extra>",
            showlegend=panel == 1,
        )  # fmt: skip

    signs = [look.towards if v >= 0 else look.away for v in np.nan_to_num(difference)]
    figure = canvas(
        dark,
        height=460 if over_positions else 110 + 28 * len(at),
        traces=[
            bar(first, names[0], look.kinds[0], 1),
            bar(second, names[1], look.kinds[1], 1),
            bar(difference, f"{names[1]} − {names[0]}", signs, 2),
        ],
    )
    unit = _quantity(compared)
    titles = (unit, "second − first")
    if over_positions:
        tokens = tokens_of(compared, dim)
        figure.update_layout(xaxis=token_axis(tokens, look, f"position: token of {names[0]}"))
        figure.update_layout(
            xaxis={"anchor": "y2"},
            yaxis={"title": {"text": titles[0]}, "domain": [0.45, 1.0]},
            yaxis2={"title": {"text": titles[1]}, "domain": [0.0, 0.36], "zeroline": True},
        )
        if pos is not None:
            frame = outline(look, pos - 0.5, pos + 0.5, 0.0, 1.0) | {"yref": "paper"}
            figure.add_shape(**frame)
    else:
        figure.update_layout(
            xaxis={"title": {"text": titles[0]}, "domain": [0.0, 0.58]},
            xaxis2={"title": {"text": titles[1]}, "domain": [0.64, 1.0], "anchor": "y",
                    "zeroline": True},
            yaxis=_ticks(compared, dim, look) | {"range": [len(at) - 0.4, -0.6]},
        )  # fmt: skip
    figure.update_layout(
        bargap=0.25, legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0}
    )
    return figure


def _maps(
    compared: xr.Dataset,
    names: tuple[str, str],
    pos: int | None,
    most: int,
    look: Theme,
    dark: bool,
) -> go.Figure:
    down, across = map(str, compared["difference"].dims)
    values = [
        compared[name].to_numpy().astype(np.float32) for name in ("first", "second", "difference")
    ]
    if (down, across) == ("query_pos", "key_pos"):
        for each in values:
            each[np.triu_indices(len(each), 1)] = np.nan
    both = np.stack(values[:2])
    signed_values = bool(np.nanmin(both, initial=0.0) < 0)
    top = float(np.nanmax(both, initial=0.0)) or 1.0
    scale = diverging(both, look) if signed_values else sequential(look, top)
    square = down in _POSITIONS and across in _POSITIONS
    n_down, n_across = values[0].shape
    height = 440 if square else 150 + 3 * max(150, 22 * n_down + 40)
    figure = canvas(dark, height=height)
    hover = np.array(
        [[f"{a}<br>{b}" for b in _hover_words(compared, across)]
         for a in _hover_words(compared, down)], dtype=object,
    )  # fmt: skip
    unit = _quantity(compared)
    panels = zip(values, (*names, f"{names[1]} − {names[0]}"), strict=True)
    for i, (z, title) in enumerate(panels):
        last = i == 2
        title_of_bar: dict[str, Any] = {"text": unit if not last else "difference"}
        bar: dict[str, Any] = {"title": title_of_bar, "thickness": 10}
        if square:
            bar |= {"orientation": "h", "x": 0.32 if not last else 0.86, "y": -0.16,
                    "yanchor": "top", "len": 0.5 if not last else 0.28,
                    "title": title_of_bar | {"side": "top"}}  # fmt: skip
        else:
            bar |= {"y": 0.68 if not last else 0.14, "len": 0.6 if not last else 0.3}
        figure.add_trace(
            go.Heatmap(
                z=z,
                text=hover,
                hovertemplate=f"%{{text}}<br>{title}: %{{z:.4f}}<extra></extra>",
                hoverongaps=False,
                colorbar=bar,
                showscale=i != 1,
                xaxis=f"x{i + 1}",
                yaxis=f"y{i + 1}",
                **(diverging(z, look) if last else scale),
            )
        )
        start = i * (1 / 3)
        span = [start, start + 0.29] if square else [1 - start - 0.26, 1 - start]
        y: dict[str, Any] = _ticks(compared, down, look) | {"range": [n_down - 0.5, -0.5]}
        if down in ("state", "hop"):
            y["range"] = y["range"][::-1]
        x = _ticks(compared, across, look)
        if square:
            y |= {"showticklabels": i == 0, "title": {"text": y["title"]["text"] if i == 0 else ""}}
            every = max(1, n_down // 6)
            numbers = {
                "tickvals": list(range(0, n_down, every)),
                "ticktext": None,
                "tickmode": "array",
            }
            x |= numbers
            y |= numbers
        else:
            x |= {"showticklabels": last, "title": {"text": x["title"]["text"] if last else ""}}
        x |= {"anchor": f"y{i + 1}", "range": [-0.5, n_across - 0.5]}
        y |= {"anchor": f"x{i + 1}"}
        place = {"domain": span}
        x, y = (x | place, y) if square else (x, y | place)
        figure.update_layout({f"xaxis{i + 1}": x, f"yaxis{i + 1}": y})
        top_of = 1.0 if square else span[1]
        figure.add_annotation(
            x=(span[0] if square else 0.0), xref="paper", xanchor="left", y=top_of, yref="paper",
            yanchor="bottom", text=title, showarrow=False, font={"size": 14, "color": look.ink},
        )  # fmt: skip
        if pos is not None and down not in _POSITIONS and across in _POSITIONS:
            frame = outline(look, pos - 0.5, pos + 0.5, -0.5, n_down - 0.5)
            figure.add_shape(**frame, xref=f"x{i + 1}", yref=f"y{i + 1}")
    if square:
        figure.update_layout(margin={"b": 110})
    return figure


def _quantity(compared: xr.Dataset) -> str:
    name, unit = compared.attrs["quantity"], compared["first"].attrs["units"]
    return name if name == unit else f"{name} ({unit})"


def _ticks(compared: xr.Dataset, dim: str, look: Theme) -> dict[str, Any]:
    """An axis over any dimension, with its labels as words."""
    if dim in _POSITIONS:
        return token_axis(tokens_of(compared, dim), look, _TITLES[dim])
    names = _words(compared, dim)
    axis: dict[str, Any] = {
        "title": {"text": _TITLES.get(dim, dim)},
        "tickmode": "array",
        "tickvals": list(range(len(names))),
        "ticktext": names,
        "showgrid": False,
        "zeroline": False,
    }
    if dim == "token":
        axis["ticktext"] = labels(names, look.muted)
        axis["tickfont"] = {"family": MONOSPACE, "size": 14, "color": look.ink}
    else:
        axis["ticktext"] = [escaped(name) for name in names]
    return axis


def _words(compared: xr.Dataset, dim: str) -> list[str]:
    values = [str(v) for v in compared["tokens" if dim == "token" else dim].to_numpy()]
    if dim == "state":
        return state_labels(values)
    if dim == "component":
        return component_names(values)
    if dim == "hop":
        return hop_labels(values)
    return values


def _hover_words(compared: xr.Dataset, dim: str) -> list[str]:
    if dim in _POSITIONS:
        other = {"pos": "other_tokens", "query_pos": "other_query_tokens"}.get(
            dim, "other_key_tokens"
        )
        words = [f"{_TITLES[dim]} {i} {quoted(t)}" for i, t in
                 enumerate(tokens_of(compared, dim))]  # fmt: skip
        if other not in compared.coords:
            return words
        others = [quoted(str(t)) for t in compared[other].to_numpy()]
        return [f"{word} / {o}" for word, o in zip(words, others, strict=True)]
    words = _words(compared, dim)
    return [quoted(word) if dim == "token" else escaped(word) for word in words]
