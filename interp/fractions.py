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

import numpy as np
from jaxtyping import Float
from torch import Tensor

_RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Shares:
    """Fractions, each with the reason where it is undefined (empty when it is defined)."""

    each: Float[np.ndarray, "batch ..."]
    pooled: Float[np.ndarray, ...]
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
    of_edited, of_base, of_source = (x.detach().cpu().numpy() for x in (edited, base, source))
    with np.errstate(invalid="ignore"):  # what is infinite in both runs
        difference = of_source - of_base
        size = np.abs(difference)
        scale = np.maximum(np.abs(of_base), np.abs(of_source))
        rounding = 20 * 8 * np.finfo(size.dtype).eps * scale
        finite = np.isfinite(size)
        usual = np.median(size[finite]) if finite.any() else 0.0
        least = np.maximum(rounding, max(0.05 * usual, floor, np.finfo(size.dtype).tiny))
        counts = finite & (size >= least)
        wide = (len(size), *(1,) * (of_edited.ndim - 1))
        change = of_edited - of_base.reshape(wide)
        each = np.full_like(change, np.nan)
        np.divide(change, difference.reshape(wide), out=each, where=counts.reshape(wide))
    out = [i for i, counted in enumerate(counts.tolist()) if not counted]
    why = ""
    if out:
        i = out[0]
        why = (
            f"source and base hardly differ in {len(out)} of {len(base)} pairs: in pair {i} by "
            f"{float(size[i]):.3g}, and at least {float(least[i]):.3g} is needed"
        )
    pooled = np.full_like(change[0], np.nan)
    pooled_why = _why_not_pooled(difference[counts], why)
    if not pooled_why:
        np.divide(change[counts].sum(0), difference[counts].sum(), out=pooled)
    return Shares(each, pooled, why, pooled_why)


def _why_not_pooled(difference: Float[np.ndarray, " counted"], why: str) -> str:
    if not len(difference):
        return why
    if len(difference) == 1:  # far enough from 0, and nothing to cancel it
        return ""
    drawn = np.random.default_rng(0).integers(len(difference), size=(_RESAMPLES, len(difference)))
    low, high = np.quantile(difference[drawn].sum(-1), (0.025, 0.975)).tolist()
    if low <= 0 <= high:
        return (
            "differences of opposite sign cancel: the 95 % interval of their sum runs from "
            f"{low:.3g} to {high:.3g}"
        )
    return ""
