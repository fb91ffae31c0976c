"""Neurons: which wrote the logit, where one fires, what its removal does."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.errors import InputError
from interp.figures.glyphs import labels, quoted, signed
from interp.figures.prediction import next_token_axes
from interp.figures.results import one_prompt, tokens_of
from interp.figures.theme import (
    ABOVE,
    MONOSPACE,
    canvas,
    diverging,
    outline,
    over_cells,
    theme,
    token_axis,
)


def neuron_bars(
    neurons: xr.Dataset, *, selected: tuple[int, int] | None = None, dark: bool = False
) -> go.Figure:
    """The neurons that wrote most of a logit, each with the tokens that it writes for or against.

    Args:
        neurons: what `interp.top_neurons` returned.
        selected: (layer, neuron) to bring out.

    Each bar carries [layer, neuron] as customdata.
    """
    look = theme(dark)
    part, activation = neurons["part"].to_numpy(), neurons["activation"].to_numpy()
    pairs = list(zip(neurons["layer"].to_numpy(), neurons["neuron"].to_numpy(), strict=True))
    rows = np.arange(len(part))
    names = [f"L{layer}N{neuron}" for layer, neuron in pairs]
    # What a neuron that is below zero writes is the opposite of what its weights promote.
    sides = [
        (neurons["promoted_tokens"], neurons["suppressed_tokens"])[:: 1 if a >= 0 else -1]
        for a in activation
    ]
    towards, against = (
        [_row(side[i][row].to_numpy(), look.muted) for row, side in enumerate(sides)]
        for i in (0, 1)
    )
    bars = go.Bar(
        x=part,
        y=rows,
        orientation="h",
        marker={
            "color": [look.towards if v >= 0 else look.away for v in part],
            "line": {
                "color": look.accent,
                "width": [3 if pair == selected else 0 for pair in pairs],
            },
        },
        customdata=[
            [int(layer), int(neuron), name, float(a)]
            for (layer, neuron), name, a in zip(pairs, names, activation, strict=True)
        ],
        hovertemplate="%{customdata[2]}: %{x:+.4f} logits at activation %{customdata[3]:.3f}"
        "<br>click to look into it<extra></extra>",
        unselected={"marker": {"opacity": 1}},
    )
    numbers = go.Scatter(
        x=part,
        y=rows,
        mode="text",
        text=[f" {signed(float(v), 3)} " for v in part],
        textposition=["middle right" if v >= 0 else "middle left" for v in part],
        textfont={"size": 12, "color": look.muted},
        hoverinfo="skip",
    )
    figure = canvas(dark, height=110 + 28 * len(rows), traces=[bars, numbers])
    low, high = min(0.0, float(part.min(initial=0.0))), max(0.0, float(part.max(initial=0.0)))
    room = 0.2 * ((high - low) or 1.0)
    figure.update_xaxes(
        title="part of the logit difference (logits)",
        range=[low - room, high + room],
        domain=[0, 0.52],
        zeroline=True,
    )
    figure.update_yaxes(
        title="neuron", tickvals=rows, ticktext=names, range=[len(rows) - 0.5, -0.5],
        showgrid=False,
    )  # fmt: skip
    plain = {"showarrow": False, "xref": "paper", "xanchor": "left"}
    words = plain | {
        "yanchor": "middle",
        "font": {"size": 14, "family": MONOSPACE, "color": look.ink},
    }
    head = plain | {"y": 1.0, "yref": "paper", "yanchor": "bottom"}
    notes = []
    for x, title, cells in ((0.55, "here it writes for", towards), (0.79, "against", against)):
        notes.append(head | {"x": x, "text": title, "font": {"size": 13, "color": look.ink}})
        notes += [words | {"x": x, "y": int(row), "text": text}
                  for row, text in zip(rows, cells, strict=True)]  # fmt: skip
    # All at once: plotly takes its time over each.
    figure.update_layout(annotations=notes)
    figure.update_layout(showlegend=False, bargap=0.3)
    return figure


def neuron_activity(
    activation: xr.DataArray, *, pos: int | None = None, dark: bool = False
) -> go.Figure:
    """One neuron's activation at each position of a prompt.

    Args:
        activation: what `interp.neuron_activation` returned, of one prompt.
        pos: a position to frame.

    Each bar carries [position] as customdata.
    """
    result, look = one_prompt(activation), theme(dark)
    values, tokens = result.to_numpy(), tokens_of(result)
    bars = go.Bar(
        x=np.arange(len(tokens)),
        y=values,
        marker={"color": [look.towards if v >= 0 else look.away for v in values]},
        customdata=[[i, quoted(token)] for i, token in enumerate(tokens)],
        hovertemplate="position %{customdata[0]} %{customdata[1]}: %{y:.4f}<extra></extra>",
        unselected={"marker": {"opacity": 1}},
    )
    figure = canvas(dark, height=240, traces=[bars])
    figure.update_xaxes(**token_axis(tokens, look, "position: the token read there"))
    figure.update_yaxes(title="activation", zeroline=True)
    figure.update_layout(bargap=0.25)
    if pos is not None:
        low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
        figure.add_shape(**outline(look, pos - 0.5, pos + 0.5, low, high or 1.0))
    return figure


def neuron_windows(examples: xr.Dataset, *, dark: bool = False) -> go.Figure:
    """The pieces of a text in which a neuron fires most, token by token, coloured by activation.

    Args:
        examples: what `interp.neuron_examples` returned.
    """
    look = theme(dark)
    values, tokens = examples["activation"].to_numpy(), examples["tokens"].to_numpy()
    peaks = examples["peak"].to_numpy().astype(int)
    n_rows, n_pos = values.shape
    rows = np.arange(n_rows)
    words = [labels([str(t) for t in row], "inherit", longest=4) for row in tokens]
    touch = [
        [i, j, quoted("".join(str(t) for t in tokens[i][max(0, j - 8) : j + 9])),
         quoted(str(tokens[i][j])), f"{values[i, j]:.3f}"]
        for i in range(n_rows) for j in range(n_pos)
    ]  # fmt: skip
    shown = n_pos <= 128
    heatmap = go.Heatmap(
        z=values.astype(np.float32),
        text=words if shown else None,
        texttemplate="%{text}" if shown else None,
        textfont={"family": MONOSPACE, "size": 12 if n_pos <= 64 else 8},
        colorbar=ABOVE | {"title": {"text": "activation", "side": "top"}},
        **diverging(values, look),
        **over_cells(
            touch,
            values.shape,
            "%{customdata[3]} at %{customdata[1]}: %{customdata[4]}<br>in %{customdata[2]}",
        ),
    )
    figure = canvas(dark, height=130 + 28 * n_rows, traces=[heatmap])
    figure.update_xaxes(
        title="position in the window", range=[-0.5, n_pos - 0.5], showgrid=False, zeroline=False
    )
    figure.update_yaxes(
        title="window, strongest first",
        tickvals=rows,
        ticktext=[f"{values[i, peaks[i]]:.2f}" for i in rows],
        range=[n_rows - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    figure.update_layout(
        shapes=[
            outline(look, peak - 0.5, peak + 0.5, row - 0.5, row + 0.5)
            for row, peak in enumerate(peaks.tolist())
        ]
    )
    return figure


def neuron_histogram(
    statistics: xr.Dataset, layer: int, neuron: int, *, dark: bool = False
) -> go.Figure:
    """How often a neuron takes each value over a text, on a logarithmic scale.

    Args:
        statistics: what `interp.neuron_statistics` returned.

    Raises:
        InputError: a neuron that the statistics do not hold.
    """
    look = theme(dark)
    if layer not in statistics["layer"].to_numpy() or neuron not in statistics["neuron"].to_numpy():
        raise InputError(
            f"Layer {layer}, neuron {neuron} came, but the statistics hold layers 0 to "
            f"{statistics.sizes['layer'] - 1} and neurons 0 to {statistics.sizes['neuron'] - 1}."
        )
    own = statistics.sel(layer=layer, neuron=neuron)
    low, high = own["bin_low"].to_numpy(), own["bin_high"].to_numpy()
    count = own["count"].to_numpy()
    bars = go.Bar(
        x=(low + high) / 2,
        y=np.where(count > 0, count, np.nan),
        width=high - low,
        marker={"color": look.towards, "line": {"color": look.page, "width": 1}},
        customdata=np.stack([low, high], axis=1),
        hovertemplate="%{customdata[0]:.2f} to %{customdata[1]:.2f}: %{y} tokens<extra></extra>",
    )
    figure = canvas(dark, height=300, traces=[bars])
    figure.update_xaxes(title="activation", range=[low[0], high[-1]])
    figure.update_yaxes(title="tokens of the text", type="log", dtick=1, exponentformat="power")
    mean = float(own["mean"])
    figure.add_vline(mean, line={"color": look.accent, "width": 2, "dash": "dot"})
    figure.add_annotation(
        x=mean, y=1.0, yref="paper", yanchor="bottom", text=f"mean {signed(mean, 3)}",
        showarrow=False, font={"color": look.accent, "size": 12},
    )  # fmt: skip
    return figure


def prediction_change(effect: xr.Dataset, *, most: int = 10, dark: bool = False) -> go.Figure:
    """The likeliest next tokens with and without a component, side by side.

    Args:
        effect: a result with `probability` and `ablated` over token, of one prompt, such as that
            of `interp.neuron_ablation`.
        most: how many tokens, those likeliest in either.
    """
    result, look = one_prompt(effect), theme(dark)
    before, after = result["probability"].to_numpy(), result["ablated"].to_numpy()
    best = np.argsort(-np.maximum(before, after), kind="stable")[:most]
    words = [str(word) for word in result["tokens"].to_numpy()[best]]
    rows = np.arange(len(words))
    bars = [
        go.Bar(
            x=values[best],
            y=rows,
            orientation="h",
            name=name,
            marker={"color": colour},
            text=[f"{v:.3f}" for v in values[best]],
            textposition="outside",
            cliponaxis=False,
            customdata=[quoted(word) for word in words],
            hovertemplate=f"%{{customdata}} {name}: %{{x:.4f}}<extra></extra>",
        )
        for name, values, colour in (
            ("as it is", before, look.towards),
            ("ablated", after, look.kinds[1]),
        )
    ]
    figure = canvas(dark, height=100 + 34 * len(words), traces=bars)
    top = float(np.maximum(before, after).max(initial=0.0)) or 1.0
    next_token_axes(figure, words, top, look)
    figure.update_layout(legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0})
    return figure


def _row(tokens: np.ndarray, dim: str) -> str:
    return "&nbsp;".join(labels([str(token) for token in tokens], dim, longest=5))
