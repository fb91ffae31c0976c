"""Ablation: what a run does without the information that a site carries.

Three things may stand in the site's place. A *mean* over other prompts keeps what all of them
share and removes the rest. A *resample* puts the value of another prompt there, which stays in
distribution. *Zero* is the crudest: it also removes what all prompts share, so the model breaks
for reasons that have nothing to do with the question. Faithfulness swings with this choice
(Miller, Chughtai & Saunders 2024, arXiv:2407.08734); every result names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Int
from torch import Tensor

from interp.engine import Trace, trace
from interp.errors import InputError
from interp.grid import Over, grid
from interp.inputs import Input, to_ids
from interp.metrics import Metric, as_metric
from interp.replay import DEFAULT_MEMORY, Progress, sites_read
from interp.result_sets import labelled_set
from interp.sites import Site, sites_of
from interp.sweep import Donor, sweep

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def ablation(
    model: HookedTransformer,
    input: Input,
    metric: Metric | Callable[[Tensor], Tensor],
    kinds: str | Collection[str],
    *,
    by: str = "mean",
    reference: Input | None = None,
    each_position: bool = True,
    seed: int = 0,
    over: Over | None = None,
    window: int = 1,
    batch_size: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Ablate every cell of a grid of sites, each in a run of its own, and score each run. Exact.

    Args:
        model: the model.
        input: the prompts to be run.
        metric: as in `interp.patching.activation_patching`.
        kinds: a site kind, or several that are ablated together.
        by: what stands in the site's place: "mean", "resample" or "zero".
        reference: the prompts that "mean" averages over and "resample" draws from.
        each_position: whether "mean" averages each position by itself; if not, over all
            positions of all reference prompts, which may then be of any length.
        seed: of the draw that gives each prompt its reference prompt in "resample".
        over, window, batch_size, max_memory, progress: as in `activation_patching`.

    Returns:
        Dataset with dimensions batch and those of `over`: `raw`, the metric of each ablated run;
        `base`, that of the run itself; `change`, their difference.

    Raises:
        InputError: a call that `activation_patching` would refuse; a reference that is missing or
            of another length; a mean over positions of attention scores or patterns, whose
            entries mean other things at other positions; zero at a LayerNorm's divisor.
    """
    scored = as_metric(metric)
    ids = to_ids(model, input)
    cells = grid(model.cfg, ids.shape[1], kinds, over, window)
    base = trace(model, ids, sites=sites_read(model.cfg, cells.kinds))
    if by == "zero":
        donor = _zeros(base, cells.kinds)
    elif by in ("mean", "resample"):
        donor = _from_reference(base, reference, by, each_position, seed, cells.kinds)
    else:
        raise InputError(
            f"Ablation by {by!r} was asked for, but a site can be ablated by 'mean', 'resample' "
            "or 'zero': choose one."
        )
    scores = sweep(
        base,
        donor,
        cells,
        [scored],
        batch_size=batch_size,
        max_memory=max_memory,
        progress=progress,
    )
    raw, of_base = scores.edited[0], scores.base[0]
    dims = ("batch", *cells.axes)
    result = labelled_set(
        model,
        {
            "raw": (raw, dims, scored.units),
            "base": (of_base, ("batch",), scored.units),
            "change": (raw - of_base.view(-1, *(1,) * len(cells.axes)), dims, scored.units),
        },
        ids=base.ids,
        coords=cells.coords,
        ablation=by,
        each_position=each_position,
        seed=seed,
        kinds=cells.kinds,
        over=tuple(cells.axes),
        window=window,
        scored_position=scored.pos,
    )
    return result.assign_attrs(metric=scored.name)


def _zeros(base: Trace, kinds: Collection[str]) -> Donor:
    scales = [kind for kind in kinds if kind.endswith("_scale")]
    if scales:
        raise InputError(
            f"{scales[0]} was to be ablated by zero, but it is what LayerNorm divides by: ablate "
            "it by 'mean' or 'resample'."
        )
    warnings.warn(
        "Zero ablation also removes what all prompts share, so it overstates importance: prefer "
        "by='mean' or by='resample' with reference prompts.",
        stacklevel=3,
    )
    return Donor(lambda site: torch.zeros_like(base.values[site]), _everywhere(base))


def _from_reference(
    base: Trace,
    reference: Input | None,
    by: str,
    each_position: bool,
    seed: int,
    kinds: Collection[str],
) -> Donor:
    if reference is None:
        raise InputError(
            f"Ablation by {by!r} came without reference prompts, but it takes its values from "
            "them: give reference=..."
        )
    cfg = base.model.cfg
    other = trace(base.model, reference, sites=[s for s in sites_of(cfg) if s.kind in kinds])
    n_pos = base.ids.shape[1]
    same_length = other.ids.shape[1] == n_pos
    if not same_length and (by == "resample" or each_position):
        raise InputError(
            f"The reference prompts have {other.ids.shape[1]} tokens and the input {n_pos}, but "
            "values are taken position by position: give prompts of the same length, or "
            "each_position=False for a mean."
        )
    attention = [kind for kind in kinds if kind in ("attn_scores", "pattern")]
    if by == "mean" and not each_position and attention:
        raise InputError(
            f"{attention[0]} was to be averaged over positions, but its entries mean other things "
            "at other positions: use each_position=True."
        )
    if by == "resample":
        donors = _draw(base.ids, other.ids, seed)
        return Donor(lambda site: other.values[site][donors], _everywhere(base))

    def mean(site: Site) -> Tensor:
        value = other.values[site]
        average = value.mean(0) if each_position else value.mean((0, 1))
        return average.expand_as(base.values[site])

    return Donor(mean, _everywhere(base))


def _draw(
    ids: Int[Tensor, "batch pos"], reference: Int[Tensor, "other pos"], seed: int
) -> Int[Tensor, " batch"]:
    """For each prompt a reference prompt that is not the prompt itself."""
    generator = torch.Generator().manual_seed(seed)
    differs = (ids[:, None] != reference[None]).any(-1).cpu()
    if not differs.any(1).all():
        raise InputError(
            f"Prompt {int((~differs.any(1)).nonzero()[0])} equals every reference prompt, so a "
            "resample would change nothing: give other reference prompts."
        )
    return torch.multinomial(differs.double(), 1, generator=generator)[:, 0].to(ids.device)


def _everywhere(base: Trace) -> Callable[[Site], Bool[np.ndarray, "batch pos"]]:
    everywhere = np.ones(base.ids.shape, dtype=bool)
    return lambda site: everywhere
