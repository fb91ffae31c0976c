"""How many dimensions a cloud of directions really uses, and how much it leans one way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.engine import Trace
from interp.inputs import Input
from interp.norms import state_names
from interp.result_sets import labelled_set
from interp.sphere.states import stream_states

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def moments(points: Float[Tensor, "point d_model"]) -> Float[Tensor, "least least"]:
    """The smaller of the two Gram matrices of a cloud: both have the same nonzero eigenvalues."""
    return points.mT @ points if len(points) > points.shape[1] else points @ points.mT


def participation_ratio(gram: Float[Tensor, "least least"]) -> Float[Tensor, ""]:
    """(sum of lambda)^2 / sum of lambda^2 over the eigenvalues of a cloud's `moments`.

    Between 1 and min(points, d). On unit vectors it is 1 over the mean squared cosine of all
    pairs, each with itself included.
    """
    return gram.trace().square() / gram.square().sum()


def dimensions_for(gram: Float[Tensor, "least least"], share: float) -> int:
    """How many principal axes (uncentred) hold `share` of the squared length of a cloud with
    these `moments`."""
    power = torch.linalg.eigvalsh(gram).clamp(min=0).flip(0)
    held = power.cumsum(0) / power.sum()
    return int((held < share - 1e-12).sum()) + 1


def mean_cosine(points: Float[Tensor, "point d_model"]) -> Float[Tensor, ""]:
    """The mean cosine of two different points of a cloud of unit vectors: anisotropy.

    From the length of the mean alone: (n^2 |mean|^2 - n) / (n (n - 1)), without forming pairs.
    """
    n = len(points)
    return (points.sum(0).square().sum() - n) / (n * (n - 1))


def effective_dim(model: HookedTransformer, input: Input | Trace) -> xr.Dataset:
    """The dimension and the anisotropy of the directions x^ at each state.

    Returns:
        Over [state]: `participation_ratio` of the directions, and of the directions minus their
        mean (`participation_ratio_centred`); `dims_90`, how many principal axes hold 90 % of the
        squared length; `mean_cosine` of two different tokens, 0 when the cloud is isotropic.
        Taken over all tokens of the batch, at most min(tokens, d_model - 1) dimensions. Constant
        rows, which have no direction, are left out; NaN with fewer than two tokens.

    Raises:
        InputError: unreadable input; a model without normalisation.

    Cost: one forward pass and, for each state, two [d_model, tokens, d_model] products and one
    eigendecomposition in d_model dimensions (in the number of tokens, where that is smaller).
    """
    run = stream_states(model, input)
    rows = []
    for state in run:
        points = state.direction.flatten(0, 1)
        points = points[~points[:, 0].isnan()]
        if len(points) < 2:
            rows.append(points.new_full((4,), torch.nan))
            continue
        gram = moments(points)
        measures = [participation_ratio(g) for g in (gram, moments(points - points.mean(0)))]
        dims = points.new_tensor(float(dimensions_for(gram, 0.9)))
        rows.append(torch.stack([*measures, dims, mean_cosine(points)]))
    names = ("participation_ratio", "participation_ratio_centred", "dims_90", "mean_cosine")
    units = ("dimensions", "dimensions", "dimensions", "1")
    return labelled_set(
        model,
        {
            name: (column, ("state",), unit)
            for name, unit, column in zip(names, units, torch.stack(rows, dim=1), strict=True)
        },
        ids=run.ids,
        coords={"state": state_names(model.cfg)},
    )
