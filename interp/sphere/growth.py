"""How fast the stream grows with depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.engine import Trace
from interp.errors import InputError
from interp.inputs import Input
from interp.norms import state_names
from interp.result_sets import labelled_set
from interp.sphere.laws import row_norm
from interp.sphere.states import stream_states

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def growth_rate(
    norms: Float[Tensor, "depth ..."],
) -> tuple[Float[Tensor, ...], Float[Tensor, ...]]:
    """The factor per step g = exp(slope of log norm), and R^2 of that straight line."""
    log = norms.log()
    step = torch.arange(len(log), dtype=log.dtype, device=log.device)
    step = (step - step.mean()).reshape(-1, *[1] * (log.ndim - 1))
    off = log - log.mean(0)
    slope = (step * off).sum(0) / step.square().sum()
    total = off.square().sum(0)
    return slope.exp(), 1 - (off - step * slope).square().sum(0) / total


def norm_growth(model: HookedTransformer, input: Input | Trace) -> xr.Dataset:
    """The length of the stream without its mean, and by what factor it grows with each layer.

    (Heimersheim & Turner 2023, "Residual stream norms grow exponentially over the forward pass":
    about 1.045 a layer in GPT2-XL.) The rate is fitted to the states before each block and after
    the last, position by position, and to the mean of the logarithms over all positions but the
    first, which often stands apart.

    Returns:
        `norm` [state, batch, pos], |x~|; `rate` and `r_squared` [batch, pos]; `mean_rate` and
        `mean_r_squared`, of the mean over batch and positions from 1 on.

    Raises:
        InputError: unreadable input; a single token (position 0 alone has no mean rate); a model
            without normalisation.

    Cost: one forward pass and one pass over the stream.
    """
    run = stream_states(model, input)
    if run.ids.shape[1] < 2:
        raise InputError(
            "One token came, but growth is averaged over positions after the first: give at "
            "least two tokens."
        )
    norms = torch.stack([row_norm(state.centred) for state in run])
    blocks = norms if model.cfg.attn_only else norms[::2]
    rate, fit = growth_rate(blocks)
    mean_rate, mean_fit = growth_rate(blocks[:, :, 1:].log().mean((1, 2)).exp())
    each = ("batch", "pos")
    result = labelled_set(
        model,
        {
            "norm": (norms, ("state", *each), "stream"),
            "rate": (rate, each, "1 / layer"),
            "r_squared": (fit, each, "1"),
        },
        ids=run.ids,
        coords={"state": state_names(model.cfg)},
    )
    return result.assign(mean_rate=float(mean_rate), mean_r_squared=float(mean_fit))
