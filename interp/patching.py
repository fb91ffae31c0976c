"""Activation patching: what a run does when part of it comes from another run.

The *base* run receives, at some site, what the *source* run holds there. With the clean prompt as
source this is denoising (is the site sufficient?), with the corrupt prompt as source noising (is
it necessary?): `Contrast.reversed()` turns one into the other. The two are not mirror images
(Heimersheim & Nanda 2024, arXiv:2404.15255).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from interp.engine import Trace, trace
from interp.errors import InputError
from interp.fractions import recovered
from interp.grid import Differs, Grid, Over, grid
from interp.inputs import Contrast
from interp.metrics import Metric, as_metric
from interp.packing import SOFTMAX
from interp.replay import DEFAULT_MEMORY, Progress, sites_read
from interp.result_sets import labelled_set
from interp.results import prompt_strings
from interp.sites import Site
from interp.sweep import Donor, goes_alongside, sweep, sweep_alongside
from interp.weights import obstacles

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

AnyMetric = Metric | Callable[[Tensor], Tensor]


def activation_patching(
    model: HookedTransformer,
    contrast: Contrast,
    metric: AnyMetric | Sequence[AnyMetric],
    kinds: str | Collection[str],
    *,
    over: Over | None = None,
    window: int = 1,
    batch_size: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Patch every cell of a grid of sites, each in a run of its own, and score each run. Exact.

    One function for all sites: `kinds="resid_pre"` over layer and pos gives the familiar map,
    `"z"` over layer and head the head map, `"pattern"` over layer, head, query_pos and key_pos
    every single attention weight, `"mlp_post"` over layer and neuron the neurons.

    Args:
        model: the model that both runs are made with.
        contrast: source and base prompts, see `interp.inputs.contrast`.
        metric: one of `interp.metrics`, or a function from logits [row, d_vocab_out] at the last
            position to [row]; or several of these.
        kinds: a site kind, or several that are patched together in each cell, such as
            `("q", "k")`.
        over: the axes of the grid, such as `("layer", "head", "pos")`, or a mapping from axes to
            the indices to visit; every other axis is patched as a whole. With "kind" among them
            each kind is patched by itself, which takes less time than a call for each. Left
            out: layer and head for q, k, v, z and pattern, otherwise layer and pos.
        window: patch this many layers together, from each cell's layer on.
        batch_size: most runs (cells times pairs) at once; left to `max_memory` if None.
        max_memory: about how many bytes the runs computed at once may take.
        progress: called after each batch with the runs done and the runs in all; it may raise to
            stop before the next.

    Returns:
        Dataset with dimensions batch and those of `over` (and metric first, if several came):
        `raw`, the metric of each patched run; `base` and `source`, the metric of the unpatched
        runs; `fraction`, (raw - base) / (source - base), which is NaN where source and base
        hardly differ; `pooled_fraction`, the same for all pairs together. The rules for NaN are
        those of `interp.fractions`, and `fraction.attrs["undefined"]` says why.

    Raises:
        InputError: a site, axis, index or scored position that does not exist, no metric, or one
            that does not return one number a run.

    Cost: a forward pass for the base run, and for the source run and each cell only what the
    change can reach, from its layer and position on. All of it goes through the model together
    where it fits into `batch_size` and `max_memory`; otherwise, and for metrics at several
    positions, single attention weights and models that only hooks can run, both runs are traced
    first. Cells that cannot differ by definition, such as positions before the first changed
    token, cost nothing.
    """
    several = isinstance(metric, Sequence)
    metrics = [as_metric(m) for m in (metric if isinstance(metric, Sequence) else [metric])]
    if not metrics:
        raise InputError("No metric came, but runs are scored by at least one: give one.")
    cells = _by_queries_and_keys(
        model.cfg, grid(model.cfg, contrast.base.shape[1], kinds, over, window)
    )
    if goes_alongside(model, contrast, cells, metrics, batch_size, max_memory):
        scores = sweep_alongside(model, contrast, differs(contrast), cells, metrics, progress)
    else:
        with torch.inference_mode():
            source, base = both_runs(
                model, contrast, sites_read(model.cfg, set(itertools.chain(*cells.written)))
            )
        scores = sweep(
            base,
            Donor(lambda site: source.values[site], differs(contrast)),
            cells,
            metrics,
            source,
            batch_size=batch_size,
            max_memory=max_memory,
            progress=progress,
        )
    assert scores.source is not None
    settings = {
        "ablation": "values of the source run",
        "kinds": cells.kinds,
        "over": tuple(cells.axes),
        "window": window,
        "scored_position": tuple(m.pos for m in metrics) if several else metrics[0].pos,
    }
    parts = [
        _dataset(model, contrast, m, cells, edited, of_base, of_source, settings)
        for m, edited, of_base, of_source in zip(
            metrics, scores.edited, scores.base, scores.source, strict=True
        )
    ]
    if not several:
        return parts[0]
    names = xr.DataArray([m.name for m in metrics], dims="metric", name="metric")
    joined = xr.concat(parts, dim=names, combine_attrs="drop_conflicts")
    return joined.assign_coords(units=("metric", [m.units for m in metrics]))


def _by_queries_and_keys(cfg: HookedTransformerConfig, cells: Grid) -> Grid:
    """Patterns and scores that come whole from the source run are what its queries and keys make.
    Those are fewer numbers, and nothing between them and z is looked at."""
    if obstacles(cfg) or not {"query_pos", "key_pos"}.isdisjoint(cells.axes):
        return cells
    return replace(cells, as_written=dict.fromkeys(SOFTMAX, ("q", "k")))


def both_runs(
    model: HookedTransformer, contrast: Contrast, sites: Collection[Site] | None = None
) -> tuple[Trace, Trace]:
    """The source run and the base run, made in one pass; `sites` as in `interp.engine.trace`."""
    both = trace(model, torch.cat([contrast.source, contrast.base]), sites=sites)
    n_pairs = len(contrast.base)
    return both.prompts(0, n_pairs), both.prompts(n_pairs, 2 * n_pairs)


def differs(contrast: Contrast) -> Differs:
    """Where the source run can differ from the base run: nowhere before the first changed token,
    and before the first attention only at changed tokens."""
    changed = (contrast.source != contrast.base).cpu().numpy()
    later, nowhere = np.logical_or.accumulate(changed, axis=1), np.zeros_like(changed)

    def at(site: Site) -> Bool[np.ndarray, "batch pos"]:
        if site.kind == "pos_embed":
            return nowhere
        before_attention = site.kind == "embed" or (
            site.layer == 0
            and site.kind in ("resid_pre", "ln1_scale", "ln1_normalized", "q", "k", "v")
        )
        return changed if before_attention else later

    return at


def _dataset(
    model: HookedTransformer,
    contrast: Contrast,
    metric: Metric,
    cells: Grid,
    edited: Float[Tensor, "batch ..."],
    of_base: Float[Tensor, " batch"],
    of_source: Float[Tensor, " batch"],
    settings: Mapping[str, Any],
) -> xr.Dataset:
    """One metric's results, labelled."""
    axes = tuple(cells.axes)
    dims = ("batch", *axes)
    shares = recovered(edited, of_base, of_source, metric.floor)
    result = labelled_set(
        model,
        {
            "raw": (edited, dims, metric.units),
            "base": (of_base, ("batch",), metric.units),
            "source": (of_source, ("batch",), metric.units),
            "fraction": (shares.each, dims, "1"),
            "pooled_fraction": (shares.pooled, axes, "1"),
        },
        ids=contrast.base,
        coords=cells.coords,
        **settings,
    )
    result.variables["fraction"].attrs["undefined"] = shares.undefined
    result.variables["pooled_fraction"].attrs["undefined"] = shares.pooled_undefined
    texts = ["".join(row) for row in prompt_strings(model, contrast.source)]
    result.attrs |= {"metric": metric.name, "source_prompt": texts}
    return result
