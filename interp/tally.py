"""Means over a streamed corpus, with bootstrap intervals, in memory that does not grow with it.

Windows of a text are the unit: tokens within one depend on each other, so whole windows are
resampled. Each resample gives each window a Poisson(1) weight, which is how often a window would
be drawn, and keeps only its running sums (the Poisson bootstrap; Chamandy et al. 2012,
"Estimating uncertainty for massive data streams"). So tallies of parts of a corpus add up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from jaxtyping import Float
from torch import Tensor

from interp.corpus import from_all

RESAMPLES = 400


@dataclass(frozen=True, eq=False)
class Tally:
    """Running sums: row 0 counts every window once, each further row is one resample.

    Attributes:
        weight: how many windows each row has counted.
        total: the sum of the windows' values.
    """

    weight: Float[Tensor, " row"]
    total: Float[Tensor, "row ..."]

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.weight + other.weight, self.total + other.total)

    @property
    def mean(self) -> Float[Tensor, ...]:
        """The mean over all windows."""
        return self.total[0] / self.weight[0]

    def interval(self, level: float = 0.95) -> Float[Tensor, "2 ..."]:
        """The bootstrap percentile interval of the mean, low and high; NaN from one window."""
        if self.weight[0] < 2:
            return torch.full_like(self.total[:2], torch.nan)
        drawn = self.weight[1:] > 0
        weight = self.weight[1:][drawn].view(-1, *(1,) * (self.total.ndim - 1))
        tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=self.total.dtype)
        return (self.total[1:][drawn] / weight).quantile(tails, dim=0)


def tally(values: Float[Tensor, "window ..."], first: int) -> Tally:
    """The sums of some windows' values, in float64 on the CPU.

    Args:
        values: one entry a window.
        first: the index of the first of them in the corpus, which seeds the weights: the same
            batch gets the same weights in whichever process it is.

    Cost: RESAMPLES multiply-adds for each value.
    """
    values = values.detach().cpu().double()
    generator = torch.Generator().manual_seed(first)
    rates = torch.ones(RESAMPLES, len(values), dtype=torch.double)
    weights = torch.cat([rates[:1], torch.poisson(rates, generator=generator)])
    return Tally(weights.sum(1), torch.tensordot(weights, values, dims=1))


def over_corpus(batches: Iterable[tuple[int, Float[Tensor, "window ..."]]]) -> Tally:
    """The tally of a whole corpus, of all processes that work on it.

    Args:
        batches: this process's: the index of a batch's first window, and its windows' values. On
            a tiny corpus a process may have none.
    """
    own: Tally | None = None
    for first, values in batches:
        part = tally(values, first)
        own = part if own is None else own + part
    return reduce(add, (part for part in from_all(own) if part is not None))
