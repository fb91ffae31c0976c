"""What comes next: how well each token was foreseen, and one prediction in full."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.glyphs import labels, quoted
from interp.figures.results import one_prompt, tokens_of
from interp.figures.theme import (
    MONOSPACE,
    Theme,
    canvas,
    outline,
    theme,
    token_axis,
    touch_markers,
)


def token_losses(losses: xr.Dataset, *, pos: int | None = None, dark: bool = False) -> go.Figure:
    """The loss on each token as a bar, and what the model itself expected as a mark on it.

    Args:
        losses: what `interp.token_losses` returned, of one prompt.
        pos: a position to frame.

    The point over each bar carries [position] as customdata.
    """
    result, look = one_prompt(losses), theme(dark)
    tokens = tokens_of(result)
    loss, entropy, rank = (result[name].to_numpy() for name in ("loss", "entropy", "rank"))
    at = np.arange(len(tokens))
    bars = go.Bar(
        x=at,
        y=loss,
        name="loss on the token",
        marker={"color": look.away},
        hoverinfo="skip",
    )
    expected = go.Scatter(
        x=at,
        y=entropy,
        mode="markers",
        name="entropy: the loss that the model expected",
        marker={"symbol": "line-ew", "size": 9, "line": {"color": look.ink, "width": 2}},
        hoverinfo="skip",
    )
    top = float(np.nanmax(np.append(loss, entropy), initial=0.0)) * 1.08 or 1.0
    hover = [
        [i, quoted(token), _nats(float(loss[i])), _nats(float(entropy[i])), _rank(float(rank[i]))]
        for i, token in enumerate(tokens)
    ]
    touch = touch_markers(
        np.repeat(at, 3),
        np.tile([0.15 * top, 0.5 * top, 0.85 * top], len(at)),
        [each for each in hover for _ in range(3)],
        "position %{customdata[0]} %{customdata[1]}<br>loss %{customdata[2]}"
        "<br>expected %{customdata[3]}<br>%{customdata[4]}",
    )
    figure = canvas(dark, height=300, traces=[bars, expected, touch])
    figure.update_xaxes(**token_axis(tokens, look, "position: the token that was to be foreseen"))
    figure.update_yaxes(title="nats", range=[0, top])
    figure.update_layout(
        bargap=0.25, legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0}
    )
    if pos is not None:
        figure.add_shape(**outline(look, pos - 0.5, pos + 0.5, 0.0, top))
    return figure


def next_token_bars(prediction: xr.Dataset, *, most: int = 16, dark: bool = False) -> go.Figure:
    """The likeliest next tokens: bars as they would be drawn, a mark where the model put each.

    Args:
        prediction: what `interp.next_token` returned, of one prompt.
        most: how many tokens have a bar.
    """
    result, look = one_prompt(prediction), theme(dark)
    own, drawn = result["probability"].to_numpy(), result["sampled"].to_numpy()
    best = np.argsort(-own, kind="stable")[:most]
    own, drawn = own[best], drawn[best]
    words = [str(word) for word in result["tokens"].to_numpy()[best]]
    rows = np.arange(len(words))
    hover = [[quoted(w), f"{p:.4f}", f"{q:.4f}"] for w, p, q in zip(words, own, drawn, strict=True)]
    template = "%{customdata[0]}: model %{customdata[1]}, drawn %{customdata[2]}<extra></extra>"
    changed = not np.allclose(own, drawn, atol=1e-6)
    bars = go.Bar(
        x=drawn,
        y=rows,
        orientation="h",
        name="drawn with",
        marker={"color": look.towards},
        customdata=hover,
        hovertemplate=template,
    )
    numbers = go.Scatter(
        x=np.maximum(own, drawn),
        y=rows,
        mode="text",
        text=[f"  {q:.3f}" if q > 0 else "  cut" for q in drawn],
        textposition="middle right",
        textfont={"size": 12, "color": look.muted},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )
    marks = go.Scatter(
        x=own,
        y=rows,
        mode="markers",
        name="the model's probability",
        marker={"symbol": "line-ns", "size": 15, "line": {"color": look.accent, "width": 3}},
        customdata=hover,
        hovertemplate=template,
    )
    traces = [bars, numbers, *([marks] if changed else [])]
    figure = canvas(dark, height=96 + 25 * len(words), traces=traces)
    top = float(max(own.max(initial=0.0), drawn.max(initial=0.0))) or 1.0
    next_token_axes(figure, words, top, look)
    figure.update_layout(
        showlegend=changed,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        bargap=0.25,
    )
    return figure


def next_token_axes(figure: go.Figure, words: Sequence[str], top: float, look: Theme) -> None:
    """Probabilities across, with room for their numbers; one row a token, the first on top."""
    figure.update_xaxes(title="probability", range=[0, top * 1.16])
    figure.update_yaxes(
        title="next token",
        tickvals=list(range(len(words))),
        ticktext=labels(words, look.muted),
        tickfont={"family": MONOSPACE, "size": 14, "color": look.ink},
        range=[len(words) - 0.5, -0.5],
        showgrid=False,
    )


def _nats(value: float) -> str:
    return f"{value:.3f} nats" if np.isfinite(value) else "none: nothing comes before"


def _rank(value: float) -> str:
    if not np.isfinite(value):
        return "nothing foretells the first token"
    return f"{value:.0f} tokens were held likelier" if value else "the likeliest token"
