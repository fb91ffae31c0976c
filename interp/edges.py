"""Edge attribution: estimates of path patching for every edge at once, from gradients.

EAP (Syed, Rager & Conmy 2023, arXiv:2310.10348) multiplies what a sender's output changed by the
metric's gradient at the receiver's input. EAP-IG (Hanna, Pezzelle & Belinkov 2024,
arXiv:2403.17806) averages that gradient over inputs between base and source. Both follow the real
LayerNorm to first order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.engine import Trace
from interp.errors import InputError
from interp.gradients import along_path, gradients
from interp.graph import (
    edge_mask,
    pulled_back,
    receivers_of,
    senders_of,
    sites_pulled_back,
    written,
)
from interp.inputs import Contrast
from interp.metrics import Metric, as_metric
from interp.patching import both_runs
from interp.results import labelled

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def edge_attribution(
    model: HookedTransformer,
    contrast: Contrast,
    metric: Metric | Callable[[Tensor], Tensor],
    *,
    method: str = "eap",
    steps: int = 5,
) -> xr.DataArray:
    """An estimate of the change that `interp.paths.path_patching` finds for each edge.

    Args:
        model, contrast, metric: as in `path_patching`.
        method: "eap" takes the gradient at the base run, "eap-ig" averages it along the way to
            the source run.
        steps: of "eap-ig".

    Returns:
        DataArray with dimensions batch, sender and receiver, NaN where there is no edge.

    Raises:
        InputError: an unknown method, or a metric without a gradient.

    Cost: two forward passes and one forward and backward pass for "eap" (`steps` of them for
    "eap-ig"), and 2 d_model operations for each edge and token.
    """
    scored = as_metric(metric)
    source, base = both_runs(model, contrast)
    if method not in ("eap", "eap-ig"):
        raise InputError(
            f"Method {method!r} was asked for, but 'eap' and 'eap-ig' exist: choose one."
        )
    values = edge_estimates(source, base, scored, steps if method == "eap-ig" else None)
    return labelled(
        model,
        values,
        ("batch", "sender", "receiver"),
        name=f"estimated change of {scored.name}",
        units=scored.units,
        ids=base.ids,
        coords={
            "sender": [node.name for node in senders_of(model.cfg)],
            "receiver": [node.name for node in receivers_of(model.cfg)],
        },
        method=method,
        steps=steps if method == "eap-ig" else None,
        ablation="values of the source run",
        scored_position=scored.pos,
    )


def edge_estimates(
    source: Trace, base: Trace, metric: Metric, steps: int | None
) -> Float[Tensor, "batch sender receiver"]:
    """EAP for `steps` None, EAP-IG otherwise; NaN where there is no edge."""
    cfg, weights = base.model.cfg, base.weights
    senders, receivers = senders_of(cfg), receivers_of(cfg)
    sites = sites_pulled_back(weights, receivers)
    if steps is None:
        slopes = gradients(source, base, metric, sites)
    else:
        slopes = along_path(source, base, metric, sites, steps)
    slope = torch.stack([pulled_back(weights, node, slopes).mean(0) for node in receivers])
    change = written(source, senders) - written(base, senders)
    products = torch.einsum("sbpd,rbpd->bsr", change, slope)
    edges = edge_mask(senders, receivers).to(products.device)
    return products.masked_fill(~edges, torch.nan)
