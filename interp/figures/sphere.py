"""The LayerNorm sphere: how far out each state lies, how it moves, where it points."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from interp.errors import InputError
from interp.figures.glyphs import escaped, plain, quoted
from interp.figures.results import hop_labels, one_prompt, state_labels, tokens_of
from interp.figures.theme import Theme, canvas, outline, sequential, theme, token_axis


def sphere_radius(radius: xr.Dataset, *, pos: int | None = None, dark: bool = False) -> go.Figure:
    """|y| at each LayerNorm against sqrt(d), and how far short of it epsilon keeps each token.

    The shortfall is the exact formula's: in float32 the radius itself no longer holds it.

    Args:
        radius: what `interp.sphere_radius` returned, of one prompt.
        pos: a position to bring out.
    """
    result, look = one_prompt(radius), theme(dark)
    states = [str(s) for s in result["state"].to_numpy()]
    names, tokens, sphere = state_labels(states), tokens_of(result), radius.attrs["sphere"]
    n_states, n_pos = result["radius"].shape
    figure = canvas(dark, height=520)
    make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.1, figure=figure)
    x = np.repeat(np.arange(n_states), n_pos) + np.tile(_spread(n_pos), n_states)
    who = [f"{i} {quoted(t)}" for i, t in enumerate(tokens)] * n_states
    figure.add_shape(
        type="line", x0=0, x1=1, xref="x domain", y0=sphere, y1=sphere, yref="y",
        line={"color": look.ink, "dash": "dash", "width": 1},
    )  # fmt: skip
    for row, variable in enumerate(("radius", "deficit"), start=1):
        values = result[variable].to_numpy()
        unit = "%{y:.6f}" if variable == "radius" else "short by %{y:.3e}"
        figure.add_trace(
            go.Scatter(
                x=x,
                y=values.ravel(),
                mode="markers",
                name="every token",
                marker={"color": look.muted, "size": 5, "opacity": 0.6},
                customdata=who,
                hovertemplate=f"%{{customdata}}: {unit}<extra></extra>",
                showlegend=row == 1,
            ),
            row=row,
            col=1,
        )
        if pos is not None:
            figure.add_trace(
                go.Scatter(
                    x=np.arange(n_states),
                    y=values[:, pos],
                    mode="lines+markers",
                    name=f"position {pos}",
                    marker={"color": look.accent, "size": 9},
                    line={"color": look.accent, "width": 1.5},
                    hovertemplate=f"position {pos}: {unit}<extra></extra>",
                    showlegend=row == 1,
                ),
                row=row,
                col=1,
            )
    figure.update_yaxes(title="radius |y|", range=[0, sphere * 1.14], zeroline=False, row=1, col=1)
    figure.add_annotation(
        x=-0.45, y=sphere, text=f"√d = {sphere:.4f}", showarrow=False, xanchor="left",
        yanchor="bottom", font={"size": 12, "color": look.ink}, row=1, col=1,
    )  # fmt: skip
    figure.update_yaxes(
        title="shortfall √d − |y|", type="log", exponentformat="power", dtick=1, row=2, col=1
    )
    figure.update_xaxes(
        tickvals=list(range(n_states)),
        ticktext=names,
        range=[-0.5, n_states - 0.5],
        tickangle=-40,
        showgrid=False,
        zeroline=False,
    )
    figure.update_xaxes(title="the LayerNorm that reads the stream after", row=2, col=1)
    figure.update_layout(legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0})
    return figure


def sphere_hops(path: xr.Dataset, *, pos: int | None = None, dark: bool = False) -> go.Figure:
    """The angle that each sublayer moves each token's direction.

    Args:
        path: what `interp.sphere_path` returned, of one prompt.
        pos: a position to frame.
    """
    result, look = one_prompt(path), theme(dark)
    degrees = np.degrees(result["hop_angle"].to_numpy()).astype(np.float32)
    names, tokens = hop_labels(result["hop"].to_numpy()), tokens_of(result)
    n_hops, n_pos = degrees.shape
    # Beyond that the numbers would run into each other.
    show = n_pos <= 32
    heatmap = go.Heatmap(
        z=degrees,
        text=[[f"{v:.0f}" if np.isfinite(v) else "" for v in row] for row in degrees]
        if show
        else None,
        texttemplate="%{text}" if show else None,
        customdata=[[f"{i} {quoted(t)}" for i, t in enumerate(tokens)]] * n_hops,
        hovertemplate="%{customdata}<br>moved %{z:.2f}°<extra></extra>",
        colorbar={"title": {"text": "hop (degrees)"}},
        xgap=1,
        ygap=1,
        **sequential(look, float(np.nanmax(degrees, initial=1.0))),
    )
    figure = canvas(dark, height=110 + 30 * n_hops, traces=[heatmap])
    figure.update_xaxes(**token_axis(tokens, look, "position: the token read there"))
    figure.update_yaxes(
        title="moved by",
        tickvals=list(range(n_hops)),
        ticktext=names,
        range=[-0.5, n_hops - 0.5],
        showgrid=False,
        zeroline=False,
    )
    if pos is not None:
        figure.add_shape(**outline(look, pos - 0.5, pos + 0.5, -0.5, n_hops - 0.5))
    return figure


def sphere_ball(
    view: xr.Dataset, *, state: str | None = None, pos: int | None = None, dark: bool = False
) -> go.Figure:
    """Directions in three dimensions: every token at one state, one token's path through all.

    The colour says how much of each point's length (or heading) three dimensions hold: with a
    small share the point really lies elsewhere.

    Args:
        view: what `interp.sphere_view` returned, of one prompt.
        state: the state whose tokens are shown; the last by default.
        pos: the position whose path is drawn.

    Raises:
        InputError: a state that the view does not hold.
    """
    result, look = one_prompt(view), theme(dark)
    states = [str(s) for s in result["state"].to_numpy()]
    state = states[-1] if state is None else state
    if state not in states:
        raise InputError(f"State {state!r} came, but the view holds {', '.join(states)}.")
    tokens, mode = tokens_of(result), view.attrs["settings"]["mode"]
    here = result.isel(state=states.index(state))
    x, y, z = here["coordinate"].to_numpy()
    captured = here["captured"].to_numpy()
    points = go.Scatter3d(
        x=x,
        y=y,
        z=z,
        mode="markers+text",
        name=f"tokens after {state_labels(states)[states.index(state)]}",
        marker={
            "size": 6,
            "color": captured,
            "colorbar": {"title": {"text": "share shown", "side": "right"}, "thickness": 12,
                         "len": 0.6, "outlinewidth": 0},
            "colorscale": look.scale(look.sequential[1:]),
            "cmin": 0,
            "cmax": 1,
            "line": {"color": look.muted, "width": 1},
        },
        text=[plain(token) for token in tokens],
        textposition="top center",
        textfont={"size": 12, "color": look.ink},
        customdata=[[f"{i} {quoted(t)}", c] for (i, t), c in
                    zip(enumerate(tokens), captured, strict=True)],
        hovertemplate="%{customdata[0]}<br>share shown %{customdata[1]:.2f}<extra></extra>",
    )  # fmt: skip
    traces: list[Any] = [*(_wires(look) if mode == "ball" else []), points]
    if pos is not None:
        traces.append(_path(result, states, pos, look))
    figure = canvas(dark, height=560, traces=traces)
    reach = 1.05 if mode == "ball" else float(np.nanmax(np.abs(result["coordinate"]))) * 1.05
    axis = {"range": [-reach, reach], "nticks": 5, "showspikes": False}
    axis |= {"showticklabels": False, "title": {"font": {"color": look.muted, "size": 11}}}
    figure.update_layout(
        dragmode="orbit",
        margin={"l": 0, "r": 0, "t": 30, "b": 0},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        scene={
            "aspectmode": "cube",
            "camera": {"eye": {"x": 1.35, "y": 1.35, "z": 0.7}},
            **{f"{a}axis": axis | {"title": axis["title"] | {"text": f"axis {i}"}} for i, a in
               enumerate("xyz", start=1)},
        },
    )  # fmt: skip
    return figure


def update_split(
    split: xr.Dataset, pos: int, *, sublayers_only: bool = True, dark: bool = False
) -> go.Figure:
    """What share of each update at one position LayerNorm sees as a move, and passes on.

    The share that survives is exact, 1 - `killed`; beyond 100 % where the update shrinks the
    stream, so that LayerNorm magnifies what is left.

    Args:
        split: what `interp.update_split` returned, of one prompt.
        sublayers_only: the sums that sublayers write, or also the heads and biases in them.
    """
    result, look = one_prompt(split), theme(dark)
    if not 0 <= pos < result.sizes["pos"]:
        raise InputError(
            f"Position {pos} came, but the result has positions 0 to {result.sizes['pos'] - 1}: "
            "choose one of these."
        )
    at = result.isel(pos=pos)
    whole = np.isin(at["kind"].to_numpy(), ("attn", "mlp"))
    at = at.isel(component=whole) if sublayers_only else at
    parts = [at[name].to_numpy() ** 2 for name in ("mean", "radial", "tangential")]
    squared = np.sum(parts, axis=0)
    component = [str(name) for name in at["component"].to_numpy()]
    names = [hop_labels([name])[0] for name in component]
    titles = (
        "along the mean: LayerNorm removes it",
        "radial: changes the length only",
        "tangential: moves the point",
    )
    colours = (look.muted, look.kinds[1], look.kinds[0])
    rows = np.arange(len(names))
    bars = []
    for title, colour, part in zip(titles, colours, parts, strict=True):
        share = part / np.where(squared > 0, squared, 1.0)
        bars.append(
            go.Bar(
                x=share,
                y=rows,
                orientation="h",
                name=title,
                marker={"color": colour},
                text=[f"{v:.0%}" if v >= 0.06 else "" for v in share],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                customdata=names,
                hovertemplate="%{customdata}: %{x:.2%}<extra>" + title.split(":")[0] + "</extra>",
            )
        )
    figure = canvas(dark, height=120 + 28 * len(names), traces=bars)
    figure.update_layout(
        barmode="stack",
        bargap=0.2,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
    )
    note = {"x": 1.02, "xanchor": "left", "showarrow": False}
    note |= {"font": {"size": 12, "color": look.ink}}
    survives = (1 - at["killed"]).to_numpy().tolist()
    figure.update_layout(
        annotations=[
            note | {"y": row, "text": f"{share:.0%} survives"}
            for row, share in enumerate(survives)
            if np.isfinite(share)
        ]
    )
    figure.update_xaxes(
        title="share of the update's squared length; behind it, what of it LayerNorm passes on",
        range=[0, 1.22],
        tickformat=".0%",
        tickvals=[0, 0.25, 0.5, 0.75, 1],
    )
    figure.update_yaxes(
        tickvals=rows, ticktext=names, range=[len(names) - 0.5, -0.5], showgrid=False
    )
    return figure


def _path(result: xr.Dataset, states: list[str], pos: int, look: Theme) -> go.Scatter3d:
    x, y, z = result["coordinate"].isel(pos=pos).to_numpy()
    captured = result["captured"].isel(pos=pos).to_numpy()
    names = [escaped(name) for name in state_labels(states)]
    return go.Scatter3d(
        x=x,
        y=y,
        z=z,
        mode="lines+markers",
        name=f"path of position {pos}",
        line={"color": look.accent, "width": 5},
        marker={"color": look.accent, "size": [8, *[4] * (len(x) - 1)]},
        customdata=[[n, c] for n, c in zip(names, captured, strict=True)],
        hovertemplate=f"position {pos} after %{{customdata[0]}}"
        "<br>share shown %{customdata[1]:.2f}<extra></extra>",
    )


def _wires(look: Theme) -> list[go.Scatter3d]:
    """The unit sphere as a thin net, one trace."""
    turn = np.append(np.linspace(0, 2 * np.pi, 49), np.nan)
    x, y, z = [], [], []
    for angle in np.arange(0, np.pi, np.pi / 6):
        x.append(np.cos(turn) * np.cos(angle))
        y.append(np.cos(turn) * np.sin(angle))
        z.append(np.sin(turn))
    for height in np.sin(np.radians([-60, -30, 0, 30, 60])):
        flat = np.sqrt(1 - height**2)
        x.append(flat * np.cos(turn))
        y.append(flat * np.sin(turn))
        z.append(np.full_like(turn, height) + 0 * turn)
    return [
        go.Scatter3d(
            x=np.concatenate(x),
            y=np.concatenate(y),
            z=np.concatenate(z),
            mode="lines",
            line={"color": look.grid, "width": 1.5},
            hoverinfo="skip",
            showlegend=False,
        )
    ]


def _spread(n: int) -> np.ndarray:
    """Small sideways steps, so that tokens at one state do not hide each other."""
    return np.linspace(-0.28, 0.28, n) if n > 1 else np.zeros(1)
