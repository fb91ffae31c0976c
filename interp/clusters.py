"""Which heads behave alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr

from interp.engine import trace
from interp.errors import InputError
from interp.inputs import Input
from interp.result_sets import labelled_set
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def cluster_heads(model: HookedTransformer, input: Input, *, clusters: int) -> xr.Dataset:
    """Heads grouped by where they look.

    The distance of two heads is the Jensen-Shannon divergence of their patterns, averaged over
    queries (Clark et al. 2019, "What Does BERT Look At?"); groups come from average linkage: the
    two nearest groups are joined until `clusters` are left.

    Returns:
        `distance` [component, other_component], nats, 0 to ln 2; `cluster` [component], numbered
        by their first head. Components are L0H0, L0H1 ...

    Raises:
        InputError: unreadable input, or clusters outside 1 to the number of heads.

    Cost: one forward pass, and (heads)^2 passes over one pattern.
    """
    cfg = model.cfg
    labels = [f"L{layer}H{head}" for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]
    if not 1 <= clusters <= len(labels):
        raise InputError(
            f"{clusters} clusters were asked for of {len(labels)} heads: choose 1 to {len(labels)}."
        )
    layers = range(cfg.n_layers)
    run = trace(model, input, sites=[Site("pattern", layer) for layer in layers])
    pattern = torch.cat([run["pattern", layer] for layer in layers], dim=1).movedim(1, 0)
    # The query at position 0 has nowhere else to look.
    pattern = pattern[:, :, min(1, pattern.shape[2] - 1) :]
    own = torch.special.entr(pattern).sum(-1).mean((1, 2))
    distance = torch.stack(
        [
            torch.special.entr((one + pattern) / 2).sum(-1).mean((1, 2)) - (entropy + own) / 2
            for one, entropy in zip(pattern, own, strict=True)
        ]
    ).clamp_min(0)
    groups = average_linkage(distance.cpu().double().numpy(), clusters)
    return labelled_set(
        model,
        {
            "distance": (distance, ("component", "other_component"), "nats"),
            "cluster": (groups, ("component",), "cluster index"),
        },
        ids=run.ids,
        coords={"component": labels, "other_component": labels},
        clusters=clusters,
    )


def average_linkage(distance: np.ndarray, clusters: int) -> np.ndarray:
    """Group indices [item]: the nearest two groups are joined until `clusters` are left.

    Cost: items^3, fine for a few hundred.
    """
    groups = [[item] for item in range(len(distance))]
    between = distance.astype(float).copy()
    np.fill_diagonal(between, np.inf)
    while len(groups) > clusters:
        a, b = sorted(int(i) for i in np.unravel_index(between.argmin(), between.shape))
        sizes = len(groups[a]), len(groups[b])
        joined = (sizes[0] * between[a] + sizes[1] * between[b]) / sum(sizes)
        between[a], between[:, a] = joined, joined
        between[a, a] = np.inf
        between = np.delete(np.delete(between, b, 0), b, 1)
        groups[a] += groups.pop(b)
    numbers = np.zeros(len(distance), dtype=int)
    for number, items in enumerate(sorted(groups, key=min)):
        numbers[items] = number
    return numbers
