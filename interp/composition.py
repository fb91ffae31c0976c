"""Which heads read what earlier heads write, by their weights alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.circuits import head_weights
from interp.norms import norms
from interp.result_sets import labelled_set

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def composition_scores(model: HookedTransformer, *, fold_ln: bool = True) -> xr.Dataset:
    """Q-, K- and V-composition of every pair of heads in different layers, beside chance.

    The score of an earlier head's W_OV with a later head's M is |W_OV M| / (|W_OV| |M|) in
    Frobenius norm, with M = W_Q W_K^T for Q, its transpose for K and the later head's W_OV for V
    (Elhage et al. 2021). Weights are those of `interp.circuits`, so the score does not depend on
    whether LayerNorm is folded.

    Chance is what random matrices with the same singular values score: turning one against the
    other at random, the mean square of the score is exactly 1/n for n dimensions that both use
    (d_model, less the mean's one under LayerNorm).

    Args:
        fold_ln: as in `interp.circuits`, or the matrices as they stand.

    Returns:
        `value` [kind, source_layer, source_head, layer, head], between 0 and 1, 0 where the
        source is not in an earlier layer; `excess`, the value minus `baseline` (0 there as well);
        `baseline`, a number.

    Cost: n_heads^2 n_layers^2 products of [d_head, d_model, d_head] for each kind.
    """
    weights = head_weights(model, fold_ln=fold_ln)
    left = _corner(weights.W_V)
    corners = {
        "Q": (weights.W_Q, _corner(weights.W_K)),
        "K": (weights.W_K, _corner(weights.W_Q)),
        "V": (weights.W_V, _corner(weights.W_O.mT)),
    }
    value = torch.stack([_pairs(left, weights.W_O, *pair) for pair in corners.values()])
    layer = torch.arange(model.cfg.n_layers, device=value.device)
    earlier = (layer[:, None] < layer)[None, :, None, :, None]
    reader = norms(model)[0]
    n = model.cfg.d_model - (1 if fold_ln and reader.kind == "LN" else 0)
    baseline = n**-0.5
    dims = ("kind", "source_layer", "source_head", "layer", "head")
    zero = value.new_zeros(())
    result = labelled_set(
        model,
        {
            "value": (torch.where(earlier, value, zero), dims, "1"),
            "excess": (torch.where(earlier, value - baseline, zero), dims, "1"),
        },
        coords={"kind": list(corners)},
        fold_ln=fold_ln,
    )
    return result.assign(baseline=baseline)


def _corner(W: Float[Tensor, "layer head d_model d_head"]) -> Float[Tensor, "layer head r d_head"]:
    """R of W = Q R: as good as W wherever only lengths matter, and small."""
    return torch.linalg.qr(W, mode="r").R


def _pairs(
    left: Float[Tensor, "layer head r d_head"],
    W_O: Float[Tensor, "layer head d_head d_model"],
    read: Float[Tensor, "layer head d_model d_head"],
    other: Float[Tensor, "layer head r d_head"],
) -> Float[Tensor, "source_layer source_head layer head"]:
    """|W_OV M| / (|W_OV| |M|) with W_OV = left W_O and M = read other^T."""
    moved = left @ W_O
    both = torch.einsum("abrd,xyde->abxyre", moved, read) @ other.mT
    own = (_corner(read) @ other.mT).flatten(-2).norm(dim=-1)
    return both.flatten(-2).norm(dim=-1) / moved.flatten(-2).norm(dim=-1)[..., None, None] / own
