"""The geometry of the unembedding as the sphere sees it, and what writes where it cannot see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.inputs import vocabulary
from interp.readout import readout
from interp.result_sets import labelled_set
from interp.results import labelled
from interp.sphere.laws import direction, row_norm
from interp.sphere.states import sphere_norms

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def unembed_geometry(model: HookedTransformer) -> xr.Dataset:
    """How long each token's reading direction is, how biased it is, and how many there are.

    A token's logit is c0 + |A_v| |y| cos(angle between A_v and y): `A` as in `interp.readout`,
    with the final gain and without the mean, so nothing here changes when 1 is added to a token's
    column.

    Returns:
        `norm` and `c0` [token]; `reach` [token], sqrt(d) |A_v|, the most that any state can move
        the logit from c0; `singular_value` [axis] of A, largest first. Token strings are a
        coordinate, `tokens`.

    Raises:
        InputError: a model without normalisation.

    Cost: one singular value decomposition of a [d_model, d_vocab] matrix.
    """
    sphere_norms(model)
    read = readout(model)
    norm = row_norm(read.A.mT)
    return labelled_set(
        model,
        {
            "norm": (norm, ("token",), "logits / normalised stream"),
            "c0": (read.c0, ("token",), "logits"),
            "reach": (norm * model.cfg.d_model**0.5, ("token",), "logits"),
            "singular_value": (
                torch.linalg.svdvals(read.A),
                ("axis",),
                "logits / normalised stream",
            ),
        },
        coords={"tokens": ("token", vocabulary(model))},
    )


def unembed_cosines(model: HookedTransformer, tokens: list[int] | None = None) -> xr.DataArray:
    """The cosines between the reading directions of tokens.

    Args:
        tokens: ids; all by default, which makes a [d_vocab, d_vocab] matrix.

    Returns:
        `cosine` [token, other_token]: symmetric, positive semi-definite, 1 on the diagonal.

    Raises:
        InputError: a model without normalisation, or ids outside the vocabulary.

    Cost: one [tokens, d_model, tokens] product.
    """
    sphere_norms(model)
    d_vocab = model.cfg.d_vocab
    ids = list(range(d_vocab)) if tokens is None else tokens
    if not ids or not all(0 <= token < d_vocab for token in ids):
        raise InputError(
            f"Token ids {ids} came, but ids go from 0 to {d_vocab - 1}: choose among them."
        )
    unit = direction(readout(model).A.mT[ids])
    return labelled(
        model,
        unit @ unit.mT,
        ("token", "other_token"),
        name="cosine",
        units="1",
        coords={"token": ids, "other_token": ids},
    )


def least_read(
    A: Float[Tensor, "d_model token"], within: Float[Tensor, "d_model m"]
) -> tuple[Float[Tensor, "d_model m"], Float[Tensor, " m"]]:
    """Orthonormal directions of the sphere's space, least read first, and how much each is read.

    The left singular vectors and values of A, in the space that `within`'s columns span. Values
    beyond A's rank are 0.
    """
    left, read, _ = torch.linalg.svd(within.mT @ A, full_matrices=True)
    values = read.new_zeros(left.shape[1])
    values[: len(read)] = read
    return (within @ left).flip(1), values.flip(0)


def null_writers(model: HookedTransformer, k: int | None = None) -> xr.Dataset:
    """Which neurons write where the unembedding hardly reads, and act only by the scale.

    (Stolfo et al. 2024, "Confidence Regulation Neurons in Language Models", 2406.16254.) Where
    d_model > d_vocab the unembedding has an exact null space within the sphere's hyperplane, of
    at least d_model - d_vocab - 1 dimensions.

    Args:
        k: how many of the least-read directions count as the null space; by default all that are
            read less than a millionth as much as the most-read one, or, where there are none of
            these, a tenth of d_model.

    Returns:
        `norm` [layer, neuron], |w_out| without its mean; `null_share` [layer, neuron], the share
        of its square in the k least-read directions; `null_dim`, k; `exact_null_dim`, how many
        directions are not read at all.

    Raises:
        InputError: a model without MLPs or normalisation; k outside 1 to d_model - 1.

    Cost: one singular value decomposition and one [neurons, d_model, k] product a layer.
    """
    if model.cfg.attn_only:
        raise InputError(
            f"Model {model.cfg.model_name!r} has no MLP, so no neurons write: choose one that has."
        )
    reader = sphere_norms(model)[-1]
    axes, values = least_read(readout(model).A, reader.basis())
    exact = int((values < 1e-6 * values[-1]).sum())
    k = (exact or max(1, model.cfg.d_model // 10)) if k is None else k
    if not 1 <= k <= len(values):
        raise InputError(
            f"k={k} came, but the sphere lies in {len(values)} dimensions: choose 1 to "
            f"{len(values)}."
        )
    norms, shares = [], []
    for block in model.blocks:
        written = reader.centred(block.mlp.W_out.detach())
        norms.append(row_norm(written))
        shares.append((written @ axes[:, :k]).square().sum(-1) / written.square().sum(-1))
    dims = ("layer", "neuron")
    result = labelled_set(
        model,
        {
            "norm": (torch.stack(norms), dims, "stream"),
            "null_share": (torch.stack(shares), dims, "1"),
        },
    )
    return result.assign(null_dim=k, exact_null_dim=exact)
