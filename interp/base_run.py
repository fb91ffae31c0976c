"""Where a wavefront finds what its rows do not carry: in a trace, or in the run beside them.

The tokens that rows carry change on the way: rows join, and edits spread. Of what is carried from
then on some is known, and the rest is as in the run that the row edits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from interp.packing import Tokens, on, taken, where_true
from interp.sites import Site

if TYPE_CHECKING:
    from interp.engine import Trace
    from interp.weights import Weights

# What a site holds at the tokens that are wanted, from what it holds at those that are known.
Held: TypeAlias = Callable[[Site, Float[Tensor, "known ..."]], Float[Tensor, "wanted ..."]]


@runtime_checkable
class BaseRun(Protocol):
    """The runs that a wavefront's rows edit, one for each prompt.

    Attributes:
        weights: what they run with.
        n_rows: how many of the wavefront's first rows are these runs themselves.
    """

    weights: Weights
    n_rows: int

    def begin(
        self,
    ) -> tuple[Tokens, Float[Tensor, "token d_model"], Float[Tensor, "token d_model"]]:
        """The tokens that are carried before any row joins, and what embed and pos_embed hold."""
        ...

    def held(
        self, known: Tokens, wanted: Tokens, head: Int[np.ndarray, " wanted"] | None = None
    ) -> Held:
        """What sites hold at the wanted tokens, or with `head` what one head of each holds: what
        is known where it is, else the base run's."""
        ...

    def whole(
        self, site: Site, carried: Float[Tensor, "token ..."]
    ) -> Float[Tensor, "prompt pos ..."]:
        """What a site holds of all prompts, where `carried` is what it holds of all tokens."""
        ...

    def logits(
        self, scored: Int[np.ndarray, " scored"], carried: Float[Tensor, "token d_vocab_out"]
    ) -> Float[Tensor, "prompt scored d_vocab_out"]:
        """The base run's logits at the scored positions, where `carried` are those of all tokens
        that arrive."""
        ...


class TracedBase:
    """Base runs of which a trace kept what the edits read, see `interp.replay.sites_read`."""

    n_rows = 0

    def __init__(self, trace: Trace, batch: Int[np.ndarray, " row"], end: int) -> None:
        """`batch` is which prompt each row edits; tokens from position `end` on do not matter."""
        self.weights, self._trace, self._batch, self._end = trace.weights, trace, batch, end

    def begin(self) -> tuple[Tokens, Tensor, Tensor]:
        none, W_E = np.zeros(0, dtype=np.int64), self.weights.W_E
        empty = W_E.new_zeros(0, W_E.shape[1])
        return Tokens(none, none, self._end), empty, empty

    def held(
        self, known: Tokens, wanted: Tokens, head: Int[np.ndarray, " wanted"] | None = None
    ) -> Held:
        ids = self._trace.ids
        in_base = on(ids.device, self._batch[wanted.row] * ids.shape[1] + wanted.pos)
        if head is not None:  # of rows that have not joined
            at_head = on(ids.device, head)
            return lambda site, _: self._flat(site)[in_base, at_head]
        at, here = wanted.find(known.key)
        kept = where_true(here)

        def of(site: Site, value: Tensor) -> Tensor:
            of_base = self._flat(site).index_select(0, in_base)
            return of_base.index_copy_(0, on(ids.device, at[kept]), taken(value, kept))

        return of

    def _flat(self, site: Site) -> Float[Tensor, "prompt_pos ..."]:
        return self._trace.values[site].flatten(0, 1)

    def whole(self, site: Site, carried: Tensor) -> Tensor:
        return self._trace.values[site][:, : self._end]

    def logits(self, scored: Int[np.ndarray, " scored"], carried: Tensor) -> Tensor:
        return self._trace.logits_at(on(carried.device, scored))


class BaseAlongside:
    """Base runs that go through the model together with their edits, as the first rows."""

    def __init__(
        self,
        weights: Weights,
        ids: Int[Tensor, "prompt pos"],
        batch: Int[np.ndarray, " row"],
        end: int,
    ) -> None:
        """`batch` is which prompt each row edits; tokens from position `end` on do not matter."""
        self.weights, self._batch, self._end = weights, batch, end
        self._ids, self.n_rows = ids[:, :end], len(ids)

    def begin(self) -> tuple[Tokens, Tensor, Tensor]:
        tokens = Tokens.of(np.arange(self._ids.numel()), self._end)
        embed = self.weights.W_E.index_select(0, self._ids.flatten())
        pos_embed = self.weights.W_pos[: self._end].expand(self.n_rows, -1, -1).flatten(0, 1)
        return tokens, embed, pos_embed

    def held(
        self, known: Tokens, wanted: Tokens, head: Int[np.ndarray, " wanted"] | None = None
    ) -> Held:
        at, here = known.find(wanted.key)
        of_base, _ = known.find(self._batch[wanted.row] * self._end + wanted.pos)
        at = on(self._ids.device, np.where(here, at, of_base))
        if head is not None:
            at_head = on(at.device, head)
            return lambda site, value: value[at, at_head]
        return lambda site, value: value.index_select(0, at)

    def whole(self, site: Site, carried: Tensor) -> Tensor:
        return carried[: self._ids.numel()].unflatten(0, self._ids.shape)

    def logits(self, scored: Int[np.ndarray, " scored"], carried: Tensor) -> Tensor:
        n_scored = len(scored)
        return carried[: self.n_rows * n_scored].unflatten(0, (self.n_rows, n_scored))
