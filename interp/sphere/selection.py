"""Which keys a head could attend to most, and which tokens the model could say at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.engine import Trace
from interp.errors import InputError
from interp.inputs import Input, vocabulary
from interp.norms import Norm
from interp.readout import readout
from interp.result_sets import labelled_set
from interp.sphere.hull import Margins, selection_margins
from interp.sphere.laws import row_norm
from interp.sphere.states import layernorms, sphere_norms, stream_states

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

_WIDEST = 8192


def _scaled_only(norm: Norm, x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()


# What stands in LayerNorm's place, before its gain and bias.
READINGS: dict[str, Callable[[Norm, Tensor], Tensor]] = {
    "layernorm": lambda norm, x: norm.normalised(x),
    "projected": lambda norm, x: norm.centred(x),
    "scaled": _scaled_only,
    "raw": lambda norm, x: x,
}


def self_selected(keys: Float[Tensor, "cloud point d"]) -> Float[Tensor, "cloud point"]:
    """1.0 where a key selects itself, by the query that equals the key.

    Enough, but not necessary. For distinct LayerNorm outputs deep in the sphere (equal radii) it
    always holds (Brody, Alon & Yahav 2023, 2305.02582, theorem 1); after gain and bias the query
    gain^-2 (k - bias) does the same.
    """
    inner = keys @ keys.mT
    own = inner.diagonal(dim1=1, dim2=2)
    others = inner.masked_fill(torch.eye(keys.shape[1], dtype=torch.bool), -torch.inf)
    return (own > others.amax(-1)).to(keys.dtype)


def key_selectability(
    model: HookedTransformer, input: Input | Trace, *, tolerance: float = 1e-6
) -> xr.Dataset:
    """Whether each key could be the most attended one, for some query of its head.

    A key inside the convex hull of the others can never win, whatever the query ("unselectable",
    Brody, Alon & Yahav 2023, 2305.02582). LayerNorm makes every distinct key selectable at full
    width; a head reads d_head dimensions, where keys can hide again. All keys of the prompt
    compete, as they do for its last query.

    Returns:
        Over [reading, layer, head, batch]: `selectable`, the certified share of keys that some
        query prefers; `unselectable`, the certified share that none does (ties included);
        `undecided`, the rest, 0 in general. `reading` is what stands in ln1's place before its
        gain and bias: layernorm (as it is), projected (mean removed, not scaled), scaled
        (divided by its root mean square, mean kept) and raw. A repeated token is no tie unless
        its whole stream state repeats.

    Args:
        tolerance: the smallest margin that counts, as a share of the spread of the keys.

    Raises:
        InputError: unreadable input; a model without LayerNorm.

    Cost: one forward pass, and for each reading a [pos, pos] Gram matrix a head and the steps of
    `selection_margins` on all keys of a layer together.
    """
    readers = layernorms(model, "what LayerNorm's projection does for keys")
    run = stream_states(model, input)
    shape = (len(READINGS), model.cfg.n_layers, model.cfg.n_heads, len(run.ids))
    shares = {name: torch.zeros(shape) for name in ("selectable", "unselectable", "undecided")}
    for layer in range(model.cfg.n_layers):
        state = layer if model.cfg.attn_only else 2 * layer
        norm, x = readers[state], run[state].x
        W_K = model.blocks[layer].attn.W_K.detach()
        for i, read in enumerate(READINGS.values()):
            keys = torch.einsum("bpd,hde->hbpe", read(norm, x) * norm.gain, W_K)
            margins = selection_margins(keys.flatten(0, 1), tolerance=tolerance)
            for name, share in shares.items():
                of_keys = getattr(margins, name).float().mean(-1)
                share[i, layer] = of_keys.reshape(shape[2:]).cpu()
    dims = ("reading", "layer", "head", "batch")
    return labelled_set(
        model,
        {name: (share, dims, "share of keys") for name, share in shares.items()},
        ids=run.ids,
        coords={"reading": list(READINGS)},
        tolerance=tolerance,
    )


def token_reachable(model: HookedTransformer, *, tolerance: float = 1e-6) -> xr.Dataset:
    """Whether each token could be the top prediction of some state, if states had any length.

    A token whose reading direction lies inside the hull of the others can never be the argmax
    ("Stolen Probability", Demeter et al. 2020; Grivas et al. 2022, 2203.06462). If the directions
    are affinely independent, which is the rule for d_vocab <= d_model, every token is reachable
    and no search is needed. How likely a token can become on the real, bounded sphere is the
    better question: see `confidence_ceiling`.

    Returns:
        `reachable` and `unreachable` [token], each certified; `margin` [token], at least this much
        more logit than any other token for each unit of stream (NaN where independence alone
        decided); `affine_rank`, of the directions, d_vocab - 1 when independent.

    Raises:
        InputError: a model without normalisation; more than 8192 tokens that are not affinely
            independent.

    Cost: one singular value decomposition; with dependent directions a [d_vocab, d_vocab] matrix
    and the steps of `selection_margins`.
    """
    sphere_norms(model)
    A = readout(model).A.mT
    spans = torch.linalg.svdvals(A - A.mean(0))
    rank = int((spans > spans[0] * max(A.shape) * torch.finfo(A.dtype).eps).sum())
    if rank == len(A) - 1:
        reachable = torch.ones(len(A), dtype=torch.bool)
        unreachable, margin = ~reachable, torch.full((len(A),), torch.nan)
    elif len(A) > _WIDEST:
        raise InputError(
            f"The vocabulary has {len(A)} tokens that are not affinely independent, but the search "
            f"takes a square matrix of at most {_WIDEST}: ask `confidence_ceiling` about chosen "
            "tokens."
        )
    else:
        margins: Margins = selection_margins(A[None], tolerance=tolerance)
        reachable, unreachable = margins.selectable[0], margins.unselectable[0]
        margin = margins.lower[0]
    result = labelled_set(
        model,
        {
            "reachable": (reachable, ("token",), "1"),
            "unreachable": (unreachable, ("token",), "1"),
            "margin": (margin, ("token",), "logits / normalised stream"),
            "norm": (row_norm(A), ("token",), "logits / normalised stream"),
        },
        coords={"tokens": ("token", vocabulary(model))},
        tolerance=tolerance,
    )
    return result.assign(affine_rank=rank)
