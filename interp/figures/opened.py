"""One component of an attribution, opened: into effects, source positions or neurons."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.errors import InputError
from interp.figures.glyphs import quoted, signed
from interp.figures.results import component_names, one_prompt, tokens_of
from interp.figures.theme import canvas, diverging, outline, over_cells, theme, token_axis


def effect_bars(
    effects: xr.Dataset,
    pos: int,
    *,
    selected: str | None = None,
    most: int = 40,
    dark: bool = False,
) -> go.Figure:
    """Each component's direct effect with LayerNorm's scale let go, beside its frozen part.

    Args:
        effects: what `interp.direct_effect` returned for a target, of one prompt.
        pos: a position it holds.
        selected: a component to bring out.
        most: how many components have bars, those with the largest exact effect.

    Each bar carries [component] as customdata.

    Raises:
        InputError: a position that the result does not have.
    """
    look, result = theme(dark), _at(one_prompt(effects), pos)
    exact, frozen = result["exact"].to_numpy(), result["frozen"].to_numpy()
    kept = np.sort(np.argsort(-np.abs(exact), kind="stable")[:most])
    labels = [str(label) for label in result["component"].to_numpy()[kept]]
    rows = np.arange(len(kept))
    figure = canvas(dark, height=110 + 30 * len(kept))
    for name, values, colour in (
        ("frozen scale: adds up to the logit", frozen[kept], look.muted),
        ("exact: what its absence would do", exact[kept], look.towards),
    ):
        figure.add_bar(
            x=values,
            y=rows,
            orientation="h",
            name=name,
            marker={"color": colour},
            text=[signed(float(v)) for v in values],
            textposition="outside",
            cliponaxis=False,
            customdata=[[label] for label in labels],
            hovertemplate=f"%{{customdata[0]}} {name.split(':')[0]}: %{{x:+.4f}} logits"
            "<br>click to open it<extra></extra>",
            unselected={"marker": {"opacity": 1}},
        )
    reach = [float(v) for v in (min(exact.min(), frozen.min(), 0), max(exact.max(), frozen.max()))]
    room = 0.14 * ((reach[1] - reach[0]) or 1.0)
    figure.update_xaxes(
        title="direct effect (logits)", range=[reach[0] - room, reach[1] + room], zeroline=True
    )
    figure.update_yaxes(
        tickvals=rows,
        ticktext=component_names(labels),
        range=[len(rows) - 0.4, -0.6],
        showgrid=False,
    )
    if selected in labels:
        row = labels.index(selected)
        frame = outline(look, 0.0, 1.0, row - 0.5, row + 0.5) | {"xref": "paper"}
        figure.add_shape(**frame)
    figure.update_layout(
        bargap=0.25, legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0}
    )
    return figure


def source_map(
    sources: xr.DataArray,
    pos: int,
    *,
    selected: tuple[int, int] | None = None,
    dark: bool = False,
) -> go.Figure:
    """What every head wrote at one position, by the position that it read it from.

    Args:
        sources: what `interp.source_attribution` returned for a target, of one prompt.
        pos: a query position it holds.
        selected: (layer, head) to frame.

    Each cell carries [layer, head, key_pos] as customdata.

    Raises:
        InputError: a position that the result does not have.
    """
    result, look = one_prompt(sources), theme(dark)
    _check_pos(result["query_pos"].to_numpy().tolist(), pos)
    here = result.sel(query_pos=pos)
    tokens = tokens_of(here, "key_pos")[: pos + 1]
    values = here.to_numpy()[..., : pos + 1].astype(np.float32)
    n_layers, n_heads, n_keys = values.shape
    values = values.reshape(-1, n_keys)
    heads = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    hover = [
        [*heads[i], j, quoted(tokens[j]), signed(float(values[i, j]), 4)]
        for i, j in np.ndindex(values.shape)
    ]
    heatmap = go.Heatmap(
        z=values,
        colorbar={"title": {"text": "logits: blue towards, red away"}},
        xgap=1,
        ygap=1,
        **diverging(values, look),
        **over_cells(
            hover,
            values.shape,
            "L%{customdata[0]}H%{customdata[1]} reads %{customdata[2]} %{customdata[3]}"
            "<br>%{customdata[4]} logits<br>click to open the head",
        ),
    )
    figure = canvas(dark, height=120 + 20 * len(heads), traces=[heatmap])
    figure.update_xaxes(**token_axis(tokens, look, "position read from"))
    figure.update_yaxes(
        tickvals=list(range(len(heads))),
        ticktext=[f"L{layer}H{head}" for layer, head in heads],
        range=[len(heads) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    if selected in heads:
        row = heads.index(selected)
        figure.add_shape(**outline(look, -0.5, n_keys - 0.5, row - 0.5, row + 0.5))
    return figure


def source_bars(
    sources: xr.DataArray, layer: int, head: int, pos: int, *, dark: bool = False
) -> go.Figure:
    """What one head wrote at one position, by the position that it read it from, as bars.

    Args:
        sources: what `interp.source_attribution` returned for a target, of one prompt.

    Raises:
        InputError: a head or position that the result does not have.
    """
    result, look = one_prompt(sources), theme(dark)
    _check_pos(result["query_pos"].to_numpy().tolist(), pos)
    if not (0 <= layer < result.sizes["layer"] and 0 <= head < result.sizes["head"]):
        raise InputError(
            f"Layer {layer}, head {head} came, but the result has {result.sizes['layer']} layers "
            f"of {result.sizes['head']} heads: choose among these."
        )
    here = result.sel(query_pos=pos, layer=layer, head=head)
    tokens = tokens_of(here, "key_pos")[: pos + 1]
    values = here.to_numpy()[: pos + 1]
    bars = go.Bar(
        x=np.arange(len(tokens)),
        y=values,
        marker={"color": [look.towards if v >= 0 else look.away for v in values]},
        customdata=[[i, quoted(token)] for i, token in enumerate(tokens)],
        hovertemplate="from %{customdata[0]} %{customdata[1]}: %{y:+.4f} logits<extra></extra>",
    )
    figure = canvas(dark, height=300, traces=[bars])
    figure.update_xaxes(**token_axis(tokens, look, "position read from"))
    figure.update_yaxes(title="logits", zeroline=True)
    figure.update_layout(bargap=0.25)
    return figure


def neuron_parts(
    parts: xr.Dataset, layer: int, pos: int, *, most: int = 20, dark: bool = False
) -> go.Figure:
    """One MLP's part as the sum of its neurons' and its bias, the largest by themselves.

    Args:
        parts: what `interp.neuron_attribution` returned for a target, of one prompt.
        most: how many neurons have a bar; the others share one.

    Each neuron's bar carries [layer, neuron] as customdata, the others' [layer, -1].

    Raises:
        InputError: a layer or position that the result does not have.
    """
    result, look = one_prompt(parts), theme(dark)
    _check_pos(result["pos"].to_numpy().tolist(), pos)
    if not 0 <= layer < result.sizes["layer"]:
        raise InputError(
            f"Layer {layer} came, but the result has layers 0 to {result.sizes['layer'] - 1}."
        )
    here = result.sel(pos=pos, layer=layer)
    values = here["part"].to_numpy()
    kept = np.argsort(-np.abs(values), kind="stable")[:most]
    shown = [*values[kept].tolist(), float(here["bias"])]
    names = [*(f"L{layer}N{neuron}" for neuron in kept), "bias"]
    carried = [*([layer, int(neuron)] for neuron in kept), [layer, -1]]
    if len(kept) < len(values):
        shown.append(float(values.sum() - values[kept].sum()))
        names.append(f"{len(values) - len(kept)} others")
        carried.append([layer, -1])
    rows = np.arange(len(shown))
    bars = go.Bar(
        x=shown,
        y=rows,
        orientation="h",
        marker={"color": [look.towards if v >= 0 else look.away for v in shown]},
        text=[signed(v, 3) for v in shown],
        textposition="outside",
        cliponaxis=False,
        customdata=[[*each, name] for each, name in zip(carried, names, strict=True)],
        hovertemplate="%{customdata[2]}: %{x:+.4f} logits<extra></extra>",
    )
    figure = canvas(dark, height=90 + 22 * len(rows), traces=[bars])
    low, high = min(0.0, *shown), max(0.0, *shown)
    room = 0.16 * ((high - low) or 1.0)
    figure.update_xaxes(
        title=f"part of L{layer} MLP's {signed(float(values.sum() + here['bias']), 3)} (logits)",
        range=[low - room, high + room],
        zeroline=True,
    )
    figure.update_yaxes(
        tickvals=rows, ticktext=names, range=[len(rows) - 0.5, -0.5], showgrid=False
    )
    return figure


def _at(result: xr.Dataset, pos: int) -> xr.Dataset:
    _check_pos(result["pos"].to_numpy().tolist(), pos)
    return result.sel(pos=pos)


def _check_pos(here: list[int], pos: int) -> None:
    if pos not in here:
        raise InputError(
            f"Position {pos} came, but the result holds positions {here[0]} to {here[-1]}: "
            "choose one of these."
        )
