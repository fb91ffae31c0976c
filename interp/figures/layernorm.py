"""What one LayerNorm does to one vector."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from interp.figures.glyphs import signed
from interp.figures.results import one_prompt
from interp.figures.theme import canvas, theme


def layernorm_steps(steps: xr.Dataset, *, dark: bool = False) -> go.Figure:
    """The vector after each step, entry by entry, with its length and how far it was turned.

    Args:
        steps: what `interp.layernorm_steps` returned, of one prompt.
    """
    result, look = one_prompt(steps), theme(dark)
    values = result["value"].to_numpy()
    names = [str(name) for name in result["step"].to_numpy()]
    n_steps, n_entries = values.shape
    sphere = n_entries**0.5
    figure = canvas(dark, height=120 * n_steps + 70)
    height = 1 / n_steps
    for row, name in enumerate(names):
        top = 1 - row * height
        length, mean = float(result["length"][row]), float(result["mean"][row])
        words = f"<b>{name}</b>: length {length:.3f}, mean {signed(mean, 3)}"
        turned = float(result["turned"][row])
        if np.isfinite(turned):
            words += f", turned by {np.degrees(turned):.2f}°"
        if name == "scaled":
            words += f" (√d = {sphere:.3f})"
        axis = "" if row == 0 else str(row + 1)
        figure.add_bar(
            x=np.arange(n_entries),
            y=values[row],
            marker={
                "color": [look.towards if v >= 0 else look.away for v in values[row]],
                "line": {"width": 0},
            },
            hovertemplate="dimension %{x}: %{y:+.4f}<extra></extra>",
            showlegend=False,
            xaxis="x",
            yaxis=f"y{axis}",
        )
        figure.update_layout(
            {
                f"yaxis{axis}": {
                    "domain": [top - height + 0.03, top - 0.07],
                    "zeroline": True,
                    "nticks": 4,
                }
            }
        )
        figure.add_annotation(
            x=0, y=top - 0.07, xref="paper", yref="paper", xanchor="left", yanchor="bottom",
            text=words, showarrow=False, font={"size": 13, "color": look.ink},
        )  # fmt: skip
    state = result.attrs["settings"]["state"]
    figure.update_layout(
        xaxis={
            "title": {"text": f"dimension of the stream ({state})"},
            "range": [-0.6, n_entries - 0.4],
            "showgrid": False,
            "anchor": f"y{n_steps}" if n_steps > 1 else "y",
        },
        bargap=0.1,
    )
    return figure
