"""Queries that point along 1 ask nothing: every LayerNorm output is orthogonal to 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.engine import Trace, traced
from interp.inputs import Input
from interp.norms import mean_removed
from interp.result_sets import labelled_set
from interp.sites import Site
from interp.sphere.states import layernorms

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def asked_angle(
    q: Float[Tensor, "*rows d_head"], reading: Float[Tensor, "d_model d_head"]
) -> Float[Tensor, "*rows"]:
    """The angle in [0, pi/2] between r = reading q and the line along 1.

    From q alone: r's part along 1 is q . (sum over rows of reading) / sqrt(d), and the length of
    the rest is a quadratic form in q. No [rows, d_model] vector is made.
    """
    d_model = reading.shape[0]
    along = (q @ reading.sum(0)).abs() / d_model**0.5
    # The quadratic form through a triangular factor: a square root of what cannot be negative.
    factor = torch.linalg.qr(mean_removed(reading.mT).mT, mode="r").R
    return torch.atan2((q @ factor.mT).norm(dim=-1), along)


def query_uniformity(model: HookedTransformer, input: Input | Trace) -> xr.Dataset:
    """How near each query comes to asking for nothing in particular.

    A query q scores key j by q . W_K(gain * y_j + bias) = r . y_j + constant, with
    r = gain * (W_K q). The part of r along 1 meets nothing, because y_j has no mean; a query
    whose r lies along 1 attends to all keys equally (Brody, Alon & Yahav 2023, 2305.02582, figure
    2). Replacing r by r minus its mean changes no pattern.

    Returns:
        `angle` [layer, head, batch, query_pos], radians between r and the line along 1: pi/2 asks
        with all it has, 0 asks nothing. `wasted` is cos^2 of it, the share of |r|^2 along 1.
        A folded model's reading weights are centred, and its angles pi/2 by construction.

    Raises:
        InputError: unreadable input; a model without LayerNorm.

    Cost: one forward pass and one [d_head, d_head] product for each query.
    """
    readers = layernorms(model, "the share of a query along 1")
    layers = range(model.cfg.n_layers)
    run = traced(model, input, [Site("q", layer) for layer in layers])
    angles = []
    for layer in layers:
        norm = readers[layer if model.cfg.attn_only else 2 * layer]
        W_K = model.blocks[layer].attn.W_K.detach()
        q = run["q", layer]
        heads = range(model.cfg.n_heads)
        each = [asked_angle(q[:, :, head], norm.gain[:, None] * W_K[head]) for head in heads]
        angles.append(torch.stack(each))
    angle = torch.stack(angles)
    dims = ("layer", "head", "batch", "query_pos")
    return labelled_set(
        model,
        {"angle": (angle, dims, "radians"), "wasted": (angle.cos().square(), dims, "1")},
        ids=run.ids,
    )
