"""What a streamed text shows of a layer's neurons, in memory that does not grow with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

IN_CACHE = 2**19
"""Activations that are counted at a time: few enough for the cache, and enough for the threads."""


@dataclass(eq=False)
class NeuronTally:
    """Running sums, counts and the strongest activations of each neuron of one layer.

    Attributes:
        limits: of the histogram. The first and the last bin also take what lies beyond.
        total, squares: sums of the activations and of their squares.
        count: tokens in each bin.
        best: the largest activations, at most one from each window, strongest first and of equals
            the earliest; minus infinity where there were fewer windows.
        token: where they were, as the index of the token in the text.
    """

    limits: tuple[float, float]
    total: Float[Tensor, " neuron"]
    squares: Float[Tensor, " neuron"]
    count: Int[Tensor, "neuron bin"]
    best: Float[Tensor, "neuron top"]
    token: Int[Tensor, "neuron top"]

    @staticmethod
    def empty(
        n_neurons: int,
        *,
        top: int,
        bins: int,
        limits: tuple[float, float],
        dtype: torch.dtype,
        device: torch.device | str | None,
    ) -> NeuronTally:
        """Of no window yet."""

        def zeros(*sizes: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(n_neurons, *sizes, dtype=dtype, device=device)

        return NeuronTally(
            limits,
            total=zeros(dtype=torch.double),
            squares=zeros(dtype=torch.double),
            count=zeros(bins),
            best=zeros(top, dtype=dtype).fill_(-torch.inf),
            token=zeros(top),
        )

    @staticmethod
    def joined(parts: Sequence[NeuronTally]) -> NeuronTally:
        """Of all the windows that the parts have counted, whichever each of them had."""
        total, squares, count = (
            torch.stack([getattr(part, name) for part in parts]).sum(0)
            for name in ("total", "squares", "count")
        )
        best, token = (
            torch.cat([getattr(part, name) for part in parts], dim=1) for name in ("best", "token")
        )
        in_text = token.argsort(dim=1, stable=True)
        strongest = _strongest(
            parts[0].best.shape[1], best.gather(1, in_text), token.gather(1, in_text)
        )
        return NeuronTally(parts[0].limits, total, squares, count, *strongest)

    def cpu(self) -> NeuronTally:
        """The same on the CPU, where processes can exchange it."""
        tables = (getattr(self, field.name).cpu() for field in fields(self)[1:])
        return NeuronTally(self.limits, *tables)

    def add(self, post: Float[Tensor, "batch pos neuron"], first: int) -> None:
        """Count some windows.

        Args:
            first: the index of the first of them in the text: later than any counted so far.
        """
        self._sum_and_count(post.flatten(0, 1))
        self._keep_strongest(post, first)

    def _sum_and_count(self, post: Float[Tensor, "token neuron"]) -> None:
        (low, high), (n_neurons, bins) = self.limits, self.count.shape
        steps = bins / (high - low)
        zero_bin = post.new_tensor(-low * steps)
        # Small numbers are counted faster.
        dtype = torch.int16 if n_neurons * bins <= 2**15 else torch.int32
        own_bins = torch.arange(n_neurons, device=post.device).mul_(bins).to(dtype)
        bin = torch.empty_like(post, dtype=dtype)
        length = max(1, IN_CACHE // n_neurons)
        scratch = torch.empty_like(post[:length])
        for some, its_bin in zip(post.split(length), bin.split(length), strict=True):
            room = scratch[: len(some)]
            self.total += some.sum(0)
            self.squares += torch.mul(some, some, out=room).sum(0)
            its_bin.copy_(torch.add(zero_bin, some, alpha=steps, out=room).clamp_(0, bins - 1))
            its_bin.add_(own_bins)
        self.count += torch.bincount(bin.flatten(), minlength=n_neurons * bins).view(-1, bins)

    def _keep_strongest(self, post: Float[Tensor, "batch pos neuron"], first: int) -> None:
        peaks, (n_neurons, top) = post.amax(dim=1), self.best.shape
        too_weak = peaks <= self.best[:, -1]  # which no NaN is: it stays to be seen
        if len(peaks) > top and self.best[0, -1] == -torch.inf:
            # Nothing is, of a first batch: but these would be pushed out by others of it.
            too_weak |= peaks < peaks.topk(top, dim=0).values[-1]
        enters = ~too_weak
        window, neuron = enters.nonzero(as_tuple=True)
        if not len(window):
            return
        token = (first + window) * post.shape[1] + post[window, :, neuron].argmax(-1)
        rank = enters.cumsum(0)[window, neuron] - 1
        size = n_neurons, int(rank.max()) + 1
        new_best, new_token = peaks.new_full(size, -torch.inf), token.new_zeros(size)
        new_best[neuron, rank], new_token[neuron, rank] = peaks[window, neuron], token
        self.best, self.token = _strongest(
            top, torch.cat([self.best, new_best], dim=1), torch.cat([self.token, new_token], dim=1)
        )


def _strongest(
    top: int, best: Float[Tensor, "neuron more"], token: Int[Tensor, "neuron more"]
) -> tuple[Float[Tensor, "neuron top"], Int[Tensor, "neuron top"]]:
    """The strongest of these; of equals those that stand first."""
    order = best.argsort(dim=1, descending=True, stable=True)[:, :top]
    return best.gather(1, order), token.gather(1, order)
