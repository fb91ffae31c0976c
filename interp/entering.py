"""Rows that begin inside attention, told by what they make of z.

Up to there such a row is the base run, and its edits of q, k, v, scores and pattern each lie in
one head. So no other head's z differs, and the row may as well begin at z with what its own heads
make. A *lane* is one such head of one row. Lanes stand where `Tokens` and `Edit` say rows: they
are rows of a model of one head, whose prompts are the base run's heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from interp.attending import OwnKeys, row_by_row
from interp.base_run import BaseRun
from interp.packing import (
    IN_ATTENTION,
    SOFTMAX,
    Edit,
    Tokens,
    distinct,
    moment,
    write,
)
from interp.sites import SITE_KINDS, whole_site


@dataclass(frozen=True, eq=False)
class Known:
    """What a site holds at some tokens."""

    tokens: Tokens
    value: Float[Tensor, "token head d_head"]


@dataclass(frozen=True, eq=False)
class Lanes:
    """The lanes of one layer.

    Attributes:
        layer: where they begin.
        row, head: of each lane.
        edits: of lanes, by kind of site.
        has_own: the keys and values that lanes see in place of their prompt's.
        tokens: those whose z is made.
    """

    layer: int
    row: Int[np.ndarray, " lane"]
    head: Int[np.ndarray, " lane"]
    edits: Mapping[str, Sequence[Edit]]
    has_own: Tokens
    tokens: Tokens

    @property
    def key(self) -> Int[np.ndarray, " token"]:
        """The rows' tokens at which z is made, as numbers like those of `Tokens.key`."""
        return self.row[self.tokens.row] * self.tokens.n_pos + self.tokens.pos

    def made_of_z(
        self,
        base: BaseRun,
        batch: Int[np.ndarray, " row"],
        attn_scale: float,
        q: Known,
        k: Known,
        v: Known,
    ) -> Edit:
        """The edit of z that the edits inside attention amount to.

        Args:
            base, batch: as in `interp.wavefront.Wavefront`.
            q, k, v: what rows that began earlier hold.
        """
        n_heads = q.value.shape[1]
        of_head = batch[self.row] * n_heads + self.head
        K, V = (
            base.whole(whole_site(kind, self.layer), known.value)
            .transpose(1, 2)
            .flatten(0, 1)
            .unsqueeze(2)
            for kind, known in (("k", k), ("v", v))
        )
        k_own, v_own = (self._held(base, *of, self.has_own) for of in (("k", k), ("v", v)))
        own = OwnKeys(self.has_own, k_own, v_own)
        in_softmax = {kind: self.edits.get(kind, ()) for kind in SOFTMAX}
        asking = self._held(base, "q", q, self.tokens)
        z = row_by_row(asking, self.tokens, own, of_head, K, V, attn_scale, in_softmax)
        lane = self.tokens.row
        index = (self.tokens.pos, self.head[lane])
        return Edit(whole_site("z", self.layer), self.row[lane], index, z.squeeze(1))

    def _held(
        self, base: BaseRun, kind: str, known: Known, tokens: Tokens
    ) -> Float[Tensor, "token 1 d_head"]:
        """What lanes hold of q, k or v: the base run's, and what they edit."""
        row, edits = self.row[tokens.row], self.edits.get(kind, ())
        # Another row's value is taken from there at once; a run that takes some gives no others.
        for edit in edits:
            if isinstance(edit.value, np.ndarray):
                at, _ = tokens.find(edit.key(tokens.n_pos))
                row[at] = edit.value
        taken_from = Tokens(row, tokens.pos, tokens.n_pos)
        held = base.held(known.tokens, taken_from, self.head[tokens.row])
        value = held(whole_site(kind, self.layer), known.value).unsqueeze(1)
        write([edit for edit in edits if isinstance(edit.value, Tensor)], tokens, value)
        return value


def entering(
    edits: Sequence[Edit],
    first: Int[np.ndarray, " row"],
    scored: Int[np.ndarray, " scored"],
    n_layers: int,
    n_heads: int,
) -> tuple[list[Edit], dict[int, Lanes]]:
    """The edits that rows do not begin inside attention with, and by layer the lanes of the rest.

    Args:
        edits: of all rows.
        first: the moment of each row's first edit.
        scored: positions whose logits are wanted, ascending.
    """
    rest: list[Edit] = []
    starting: dict[int, dict[str, list[Edit]]] = {}
    for edit in edits:
        layer = edit.site.layer
        if edit.site.kind not in IN_ATTENTION or layer is None:
            rest.append(edit)
            continue
        starts = first[edit.row] == moment(edit.site, n_layers)
        if starts.any():
            by_kind = starting.setdefault(layer, {})
            by_kind.setdefault(edit.site.kind, []).append(edit.kept(starts))
        if not starts.all():
            rest.append(edit.kept(~starts))
    # Past the last layer's attention only scored positions go on.
    goes_on = {n_layers - 1: scored}
    end, n_keys = int(scored[-1]) + 1, len(first) * n_heads
    return rest, {
        layer: _lanes(layer, by_kind, n_keys, n_heads, end, goes_on.get(layer))
        for layer, by_kind in starting.items()
    }


def _lanes(
    layer: int,
    edits: Mapping[str, Sequence[Edit]],
    n_keys: int,
    n_heads: int,
    end: int,
    goes_on: Int[np.ndarray, " place"] | None,
) -> Lanes:
    """Lanes of edits of one layer. Only the positions that go on, all if None, are of interest."""

    def key(edit: Edit) -> Int[np.ndarray, " cell"]:
        """Row and head as one number."""
        return edit.row * n_heads + edit.index[SITE_KINDS[edit.site.kind].axes.index("head")]

    keys = distinct((key(edit) for of_kind in edits.values() for edit in of_kind), n_keys)
    nth = np.empty(n_keys, dtype=np.int64)
    nth[keys] = np.arange(len(keys))
    by_lane = {
        kind: [_of_lane(edit, nth[key(edit)]) for edit in of_kind]
        for kind, of_kind in edits.items()
    }

    def edited(*kinds: str) -> Tokens:
        found = (edit.key(end) for kind in kinds for edit in by_lane.get(kind, ()))
        return Tokens.of(distinct(found, len(keys) * end), end)

    has_own = edited("k", "v")
    reached = has_own.onwards(goes_on)
    tokens = Tokens.of(distinct((reached.key, edited("q", *SOFTMAX).key), len(keys) * end), end)
    return Lanes(layer, keys // n_heads, keys % n_heads, by_lane, has_own, tokens)


def _of_lane(edit: Edit, lane: Int[np.ndarray, " cell"]) -> Edit:
    """The edit in a model of one head."""
    axes = SITE_KINDS[edit.site.kind].axes
    none = np.zeros_like(lane)
    index = tuple(none if axis == "head" else i for axis, i in zip(axes, edit.index, strict=True))
    return replace(edit, row=lane, index=index)
