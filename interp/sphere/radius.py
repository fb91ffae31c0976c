"""How far out LayerNorm puts each state, against the exact formula with epsilon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr

from interp.engine import Trace
from interp.inputs import Input
from interp.norms import state_names
from interp.result_sets import labelled_set
from interp.sphere.laws import kappa_of, predicted_radius, radius_deficit, row_norm
from interp.sphere.states import stream_states

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

REGIMES = ("ok", "caution", "inside")
_REGIME_STARTS = (0.0, 1e-4, 1e-2)
_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


def sphere_radius(model: HookedTransformer, input: Input | Trace) -> xr.Dataset:
    """The radius of y at each LayerNorm, measured and predicted.

    Returns:
        Over [state, batch, pos]: `radius` |y| as the model computed it; `predicted`
        sqrt(d) (1 + kappa)^(-1/2) from the stream alone; `deficit` sqrt(d) - predicted, without
        cancellation; `kappa` eps/sigma^2 (infinite for a constant row); `rho` predicted/sqrt(d);
        `sigma`; `mean`, the mean of y's coordinates: rounding for LayerNorm.
        attrs["sphere"] is sqrt(d_model).

    Raises:
        InputError: unreadable input; a model without normalisation.

    Cost: one forward pass and a few passes over the stream; memory of twice the stream.
    """
    run = stream_states(model, input)
    d_model = model.cfg.d_model
    rows = []
    for state in run:
        centred = state.centred
        kappa = kappa_of(centred, state.norm.eps)
        predicted = predicted_radius(kappa, d_model)
        sigma = row_norm(centred) / d_model**0.5
        deficit = radius_deficit(kappa, d_model)
        rho = predicted / d_model**0.5
        radius = row_norm(state.y)
        rows.append(torch.stack([radius, predicted, deficit, kappa, rho, sigma, state.y.mean(-1)]))
    names = ("radius", "predicted", "deficit", "kappa", "rho", "sigma", "mean")
    dims = ("state", "batch", "pos")
    values = torch.stack(rows, dim=1)
    units = {"kappa": "1", "rho": "1", "sigma": "stream"}
    result = labelled_set(
        model,
        {
            name: (value, dims, units.get(name, "normalised stream"))
            for name, value in zip(names, values, strict=True)
        },
        ids=run.ids,
        coords={"state": state_names(model.cfg)},
    )
    return result.assign_attrs(sphere=d_model**0.5, eps=model.cfg.eps)


def eps_regime(model: HookedTransformer, input: Input | Trace) -> xr.Dataset:
    """How much epsilon matters at each LayerNorm.

    Returns:
        `kappa` [state, quantile]: quantiles 0, 0.05, 0.5, 0.95 and 1 of eps/sigma^2 over batch
        and positions; `regime` [state]: that of the median, "ok" below 1e-4 (radius short by less
        than 0.005 %), "caution" below 1e-2 (0.5 %), else "inside".

    Raises:
        InputError: unreadable input; a model without normalisation.

    Cost: that of `sphere_radius`.
    """
    run = stream_states(model, input)
    kappa = torch.stack([kappa_of(state.centred, state.norm.eps).flatten() for state in run])
    shares = torch.tensor(_QUANTILES, dtype=kappa.dtype)
    quantiles = kappa.quantile(shares, dim=1).mT
    regime = [
        REGIMES[max(i for i, start in enumerate(_REGIME_STARTS) if float(median) >= start)]
        for median in quantiles[:, _QUANTILES.index(0.5)]
    ]
    result = labelled_set(
        model,
        {"kappa": (quantiles, ("state", "quantile"), "1")},
        ids=run.ids,
        coords={"state": state_names(model.cfg), "quantile": list(_QUANTILES)},
    )
    return result.assign(regime=("state", regime))
