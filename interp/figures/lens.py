"""The logit lens: what the stream says at each depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.errors import InputError
from interp.figures.glyphs import escaped, labels, quoted, signed, visible
from interp.figures.results import one_prompt, state_labels, tokens_of
from interp.figures.theme import (
    MONOSPACE,
    canvas,
    outline,
    over_cells,
    sequential,
    theme,
    token_axis,
)


@dataclass(frozen=True)
class _Measure:
    title: str
    top: float | None
    """where the colour scale ends; the largest value when None"""


LENS_MEASURES = {
    "top_probability": _Measure("p(top token)", 1.0),
    "probability": _Measure("p(followed token)", 1.0),
    "rank": _Measure("rank of the followed token", None),
    "cross_entropy": _Measure("loss on the next token (nats)", None),
    "entropy": _Measure("entropy (nats)", None),
    "kl_to_final": _Measure("KL(final || lens) (nats)", None),
}


def lens_grid(
    lens: xr.Dataset,
    vocabulary: Sequence[str],
    *,
    show: str = "top_probability",
    selected: tuple[str, int] | None = None,
    dark: bool = False,
) -> go.Figure:
    """States up, positions across: the top token written in each cell, a measure as its colour.

    Args:
        lens: what `interp.logit_lens` returned, of one prompt.
        vocabulary: the string of each token id.
        show: the measure that colours the cells, a name of `LENS_MEASURES`.
        selected: (state, position) to frame.

    Each cell carries [state, position, ...] as customdata.

    Raises:
        InputError: an unknown measure.
    """
    if show not in LENS_MEASURES:
        raise InputError(
            f"Measure {show!r} came, but the lens has {', '.join(LENS_MEASURES)}: choose one."
        )
    result, look, measure = one_prompt(lens), theme(dark), LENS_MEASURES[show]
    values = result[show].to_numpy()
    values = values[..., 0] if values.ndim == 3 else values
    best = [[vocabulary[int(i)] for i in row] for row in result["top_ids"].to_numpy()[..., 0]]
    probability = result["top_probability"].to_numpy()[..., 0]
    states, tokens = [str(s) for s in result["state"].to_numpy()], tokens_of(result)
    n_states, n_pos = values.shape

    top = float(np.nanmax(values, initial=0.0)) or 1.0 if measure.top is None else measure.top
    colours, colorbar = values, {"title": {"text": measure.title}}
    if show == "rank":
        # The first few ranks matter, and one poor rank would wash them out.
        colours, top = np.log10(values + 1.0), np.log10(top + 1.0)
        ticks = np.array([0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000])
        colorbar |= {"tickvals": np.log10(ticks + 1.0), "ticktext": [str(t) for t in ticks]}
    scale = sequential(look, top)
    if measure.top is None:
        # A low rank, loss or divergence is the strong reading.
        scale["reversescale"] = True
    words = [labels(row, "inherit", longest=3) for row in best]
    names = state_labels(states)
    hover = [
        [states[i], j, escaped(names[i]), quoted(tokens[j]), quoted(best[i][j]),
         f"{probability[i, j]:.3f}", f"{values[i, j]:.4g}" if np.isfinite(values[i, j]) else "none"]
        for i, j in np.ndindex(values.shape)
    ]  # fmt: skip
    heatmap = go.Heatmap(
        z=colours.astype(np.float32),
        text=words,
        texttemplate="%{text}",
        textfont={"family": MONOSPACE, "size": 14 if n_pos <= 40 else 11},
        colorbar=colorbar,
        xgap=1,
        ygap=1,
        **scale,
        **over_cells(
            hover,
            values.shape,
            "after %{customdata[2]} (%{customdata[0]})"
            "<br>position %{customdata[1]} %{customdata[3]}"
            "<br>top token %{customdata[4]}, probability %{customdata[5]}"
            f"<br>{escaped(measure.title)} %{{customdata[6]}}",
        ),
    )
    figure = canvas(dark, height=110 + 34 * n_states, traces=[heatmap])
    figure.update_xaxes(**token_axis(tokens, look, "position: the token read there"))
    figure.update_yaxes(
        title="stream state, after",
        tickvals=list(range(n_states)),
        ticktext=names,
        range=[-0.5, n_states - 0.5],
        showgrid=False,
        zeroline=False,
    )
    if selected is not None and selected[0] in states:
        row, column = states.index(selected[0]), selected[1]
        figure.add_shape(**outline(look, column - 0.5, column + 0.5, row - 0.5, row + 0.5))
    return figure


def lens_top(
    lens: xr.Dataset, vocabulary: Sequence[str], state: str, pos: int, *, dark: bool = False
) -> go.Figure:
    """The best tokens at one state and position, as bars.

    Args:
        lens: what `interp.logit_lens` returned, of one prompt.

    Raises:
        InputError: a state or position that the result does not have.
    """
    result, look = one_prompt(lens), theme(dark)
    cell = _cell(result, state, pos)
    words = [vocabulary[int(i)] for i in cell["top_ids"].to_numpy()]
    probability = cell["top_probability"].to_numpy()
    rows = np.arange(len(words))
    bars = go.Bar(
        x=probability,
        y=rows,
        orientation="h",
        marker={"color": look.towards},
        text=[f"{p:.3f}" for p in probability],
        textposition="outside",
        cliponaxis=False,
        customdata=[quoted(word) for word in words],
        hovertemplate="%{customdata}: %{x:.4f}<extra></extra>",
    )
    figure = canvas(dark, height=80 + 26 * len(words), traces=[bars])
    figure.update_xaxes(title="probability", range=[0, 1.12], tickvals=[0, 0.25, 0.5, 0.75, 1])
    figure.update_yaxes(
        title="token",
        tickvals=rows,
        ticktext=labels(words, look.muted),
        tickfont={"family": MONOSPACE, "size": 14, "color": look.ink},
        range=[len(words) - 0.5, -0.5],
        showgrid=False,
    )
    return figure


def lens_followed(
    lens: xr.Dataset, vocabulary: Sequence[str], pos: int, *, dark: bool = False
) -> go.Figure:
    """The followed token at one position: its probability after each sublayer, with its rank.

    Args:
        lens: what `interp.logit_lens` returned, of one prompt.

    Raises:
        InputError: a position that the result does not have.
    """
    result, look = one_prompt(lens), theme(dark)
    states = [str(s) for s in result["state"].to_numpy()]
    cell = _cell(result, states[0], pos, keep_states=True)
    probability, rank = cell["probability"].to_numpy(), cell["rank"].to_numpy()
    names, word = state_labels(states), vocabulary[int(cell["followed"])]
    line = go.Scatter(
        x=probability,
        y=np.arange(len(states)),
        mode="lines+markers+text",
        line={"color": look.muted, "width": 2},
        marker={"size": 11, "color": look.towards},
        text=[f"  {p:.3f}, rank {r}" for p, r in zip(probability, rank, strict=True)],
        textposition=["middle right" if p < 0.6 else "middle left" for p in probability],
        cliponaxis=False,
        customdata=[[escaped(n), s, int(r)] for n, s, r in zip(names, states, rank, strict=True)],
        hovertemplate="after %{customdata[0]} (%{customdata[1]}): %{x:.4f}, rank %{customdata[2]}"
        "<extra></extra>",
    )
    figure = canvas(dark, height=80 + 32 * len(states), traces=[line])
    figure.update_xaxes(
        title=f"probability of {escaped(visible(word))} (rank 0 is the likeliest)",
        range=[-0.04, 1.04],
    )
    figure.update_yaxes(**_states_axis(names))
    return figure


def lens_path(
    lens: xr.Dataset, vocabulary: Sequence[str], pos: int, target: int, contrast: int,
    *, dark: bool = False,
) -> go.Figure:  # fmt: skip
    """The logit difference target - contrast at one position, after each sublayer.

    Args:
        lens: what `interp.logit_lens(..., logits=True)` returned, of one prompt.
        target, contrast: token ids.

    Raises:
        InputError: a lens without logits, or a position that it does not have.
    """
    result, look = one_prompt(lens), theme(dark)
    if "logits" not in result:
        raise InputError("The lens came without logits: call logit_lens with logits=True.")
    states = [str(s) for s in result["state"].to_numpy()]
    logits = _cell(result, states[0], pos, keep_states=True)["logits"].to_numpy()
    values = logits[:, target] - logits[:, contrast]
    names = state_labels(states)
    line = go.Scatter(
        x=values,
        y=np.arange(len(states)),
        mode="lines+markers+text",
        line={"color": look.muted, "width": 2},
        marker={
            "size": 11,
            "color": [look.towards if v >= 0 else look.away for v in values],
        },
        text=[signed(v) for v in values.tolist()],
        textposition=["middle right" if v >= 0 else "middle left" for v in values],
        cliponaxis=False,
        customdata=[[escaped(n), s] for n, s in zip(names, states, strict=True)],
        hovertemplate="after %{customdata[0]} (%{customdata[1]}): %{x:+.4f}<extra></extra>",
    )
    figure = canvas(dark, height=80 + 32 * len(states), traces=[line])
    reach = float(np.abs(values).max(initial=0.0)) * 1.3 or 1.0
    name = escaped(f"logit({visible(vocabulary[target])}) − logit({visible(vocabulary[contrast])})")
    figure.update_xaxes(title=f"{name} (logits)", range=[-reach, reach], zeroline=True)
    figure.update_yaxes(**_states_axis(names))
    return figure


def _states_axis(names: Sequence[str]) -> dict[str, Any]:
    return {
        "title": "stream state, after",
        "tickvals": list(range(len(names))),
        "ticktext": names,
        "range": [-0.5, len(names) - 0.5],
        "showgrid": False,
        "zeroline": False,
    }


def _cell(result: xr.Dataset, state: str, pos: int, *, keep_states: bool = False) -> Any:
    states, n_pos = [str(s) for s in result["state"].to_numpy()], result.sizes["pos"]
    if state not in states or not 0 <= pos < n_pos:
        raise InputError(
            f"State {state!r}, position {pos} came, but the result has states {', '.join(states)} "
            f"and positions 0 to {n_pos - 1}: choose among these."
        )
    cell = result.isel(pos=pos)
    return cell if keep_states else cell.isel(state=states.index(state))
