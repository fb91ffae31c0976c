"""How far an edited run went from its base run to its source run, and when that is undefined.

The fraction is (M_edited - M_base) / (M_source - M_base): 0 is "as the base run", 1 is "as the
source run", and values outside are real. Where source and base hardly differ the ratio says
nothing, so it is NaN, never infinite:

  1. A pair counts only when |M_source - M_base| is at least the metric's floor (0.1 nat or
     logit), at least 20 times what rounding can do, and at least 5 % of the median over pairs.
  2. Ratios are never averaged. Over pairs the fraction is the sum of changes over the sum of
     differences, and it is NaN when the 95 % bootstrap interval of that sum contains 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

_RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Shares:
    """Fractions, each with the reason where it is undefined (empty when it is defined)."""

    each: Float[Tensor, "batch ..."]
    pooled: Float[Tensor, ...]
    undefined: str
    pooled_undefined: str


def recovered(
    edited: Float[Tensor, "batch ..."],
    base: Float[Tensor, " batch"],
    source: Float[Tensor, " batch"],
    floor: float,
) -> Shares:
    """The fraction of each edited run, and of all pairs together.

    Args:
        edited: the metric of edited runs, any axes after the first.
        base, source: the metric of the unedited runs of each pair.
        floor: the smallest difference that may be divided by.
    """
    difference = source - base
    scale = torch.stack([base.abs(), source.abs()]).amax(0)
    rounding = 20 * 8 * torch.finfo(base.dtype).eps * scale
    least = torch.maximum(rounding, 0.05 * difference.abs().median())
    least = least.clamp_min(max(floor, torch.finfo(base.dtype).tiny))
    counts = (difference.abs() >= least) & difference.isfinite()
    wide = (len(base), *(1,) * (edited.ndim - 1))
    change = edited - base.view(wide)
    each = torch.where(counts.view(wide), change / difference.view(wide), torch.nan)
    out = [i for i, counted in enumerate(counts.tolist()) if not counted]
    why = ""
    if out:
        i = out[0]
        why = (
            f"source and base hardly differ in {len(out)} of {len(base)} pairs: in pair {i} by "
            f"{float(difference[i].abs()):.3g}, and at least {float(least[i]):.3g} is needed"
        )
    pooled = change[counts].sum(0) / difference[counts].sum()
    pooled_why = _why_not_pooled(difference[counts], why)
    if pooled_why:
        pooled = torch.full_like(pooled, torch.nan)
    return Shares(each, pooled, why, pooled_why)


def _why_not_pooled(difference: Float[Tensor, " counted"], why: str) -> str:
    if not len(difference):
        return why
    if len(difference) == 1:  # far enough from 0, and nothing to cancel it
        return ""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(difference), (_RESAMPLES, len(difference)), generator=generator)
    sums = difference.cpu()[drawn].sum(-1).double()
    low, high = sums.quantile(torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    if low <= 0 <= high:
        return (
            "differences of opposite sign cancel: the 95 % interval of their sum runs from "
            f"{low:.3g} to {high:.3g}"
        )
    return ""
