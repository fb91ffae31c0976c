"""What edited runs are described by: edits as tables, and tokens packed along one axis.

Which row holds what, and where, is NumPy; what is held is a tensor. Indices are many small arrays
that depend on no value: NumPy works them out several times faster than PyTorch, and a graphics
card is never waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from interp.sites import SITE_KINDS, Site, whole_site

ORDER = {kind: i for i, kind in enumerate(SITE_KINDS)}
# What the softmax reads and what it gives, and all that lies inside attention.
SOFTMAX = ("attn_scores", "pattern")
IN_ATTENTION = ("q", "k", "v", *SOFTMAX)


@dataclass(frozen=True, eq=False)
class Edit:
    """Cells of one site that rows overwrite, as a table with one line a cell.

    Attributes:
        site: the whole site.
        row: the row that each cell belongs to.
        index: where the cell lies, one array for each of the kind's axes.
        value: what it shall hold; or the row that it is taken from, which then holds it there
            already when this one gets it.
    """

    site: Site
    row: Int[np.ndarray, " cell"]
    index: tuple[Int[np.ndarray, " cell"], ...]
    value: Float[Tensor, "cell ..."] | Int[np.ndarray, " cell"]

    @property
    def pos(self) -> Int[np.ndarray, " cell"]:
        """The position whose computation the cell belongs to."""
        axes = SITE_KINDS[self.site.kind].axes
        return self.index[axes.index("query_pos" if "query_pos" in axes else "pos")]

    def key(self, n_pos: int) -> Int[np.ndarray, " cell"]:
        """The token of each cell, as a number like that of `Tokens.key`."""
        return self.row * n_pos + self.pos

    @property
    def within(self) -> tuple[Int[np.ndarray, " cell"], ...]:
        """The index without its position."""
        axes = SITE_KINDS[self.site.kind].axes
        return tuple(
            i for axis, i in zip(axes, self.index, strict=True) if axis not in ("pos", "query_pos")
        )

    def kept(self, keep: Bool[np.ndarray, " cell"]) -> Edit:
        """Only the cells at which `keep` is true."""
        where = where_true(keep)
        return self if where is EVERY else self.at(where)

    def at(self, where: Int[np.ndarray, " some"] | slice) -> Edit:
        """Only the cells at these places, in their order."""
        index, given = tuple(i[where] for i in self.index), self.value
        if isinstance(given, np.ndarray) or isinstance(where, slice):
            return Edit(self.site, self.row[where], index, given[where])
        return Edit(self.site, self.row[where], index, taken(given, where))


@cache
def moment(site: Site, n_layers: int) -> int:
    """When a site is computed in a forward pass: a number that grows along the pass."""
    layer = site.layer
    if layer is None:
        layer = n_layers if site.kind.startswith("ln_final") else 0
    # What lies inside attention is entered together: its parts are computed in one go.
    entry = "q" if site.kind in IN_ATTENTION else site.kind
    return layer * len(ORDER) + ORDER[entry]


def first_moments(edits: Iterable[Edit], n_rows: int, n_layers: int) -> Int[np.ndarray, " row"]:
    """When each row is first edited; after all sites where it never is."""
    never = moment(whole_site("ln_final_normalized"), n_layers) + 1
    first = np.full(n_rows, never)
    for edit in sorted(edits, key=lambda edit: -moment(edit.site, n_layers)):
        first[edit.row] = moment(edit.site, n_layers)
    return first


def distinct(parts: Iterable[Int[np.ndarray, " _"]], below: int) -> Int[np.ndarray, " each"]:
    """Every number that occurs, once and ascending; all are from 0 to `below`."""
    occurs = np.zeros(below, dtype=bool)
    for part in parts:
        occurs[part] = True
    return occurs.nonzero()[0]


@dataclass(frozen=True, eq=False)
class Tokens:
    """Which tokens a packed tensor holds, in the order of `row` and within it of `pos`."""

    row: Int[np.ndarray, " token"]
    pos: Int[np.ndarray, " token"]
    n_pos: int

    @cached_property
    def key(self) -> Int[np.ndarray, " token"]:
        """One number for each token, ascending."""
        return self.row * self.n_pos + self.pos

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def of(cls, key: Int[np.ndarray, " token"], n_pos: int) -> Tokens:
        """The tokens with these keys, which ascend."""
        row = key // n_pos
        return cls(row, key - row * n_pos, n_pos)

    def onwards(self, places: Int[np.ndarray, " place"] | None = None) -> Tokens:
        """For each row every position from its first on, or those among `places`."""
        if not len(self):
            return self
        begins = np.ones(len(self), dtype=bool)
        np.not_equal(self.row[1:], self.row[:-1], out=begins[1:])
        row, start = self.row[begins], self.pos[begins]
        if places is None:
            if len(row) * self.n_pos - start.sum() == len(self):
                return self
            places = np.arange(self.n_pos)
        first = places.searchsorted(start)
        count = len(places) - first
        end = count.cumsum()
        at = np.arange(end[-1]) + (first + count - end).repeat(count)
        return Tokens(row.repeat(count), places[at], self.n_pos)

    def followed_by(self, later: Tokens) -> Tokens:
        """These and then tokens of rows that come later."""
        if not len(self):
            return later
        row = np.concatenate((self.row, later.row))
        return Tokens(row, np.concatenate((self.pos, later.pos)), self.n_pos)

    def at(self, where: np.ndarray | slice) -> Tokens:
        """Only the tokens at these places."""
        return self if where is EVERY else Tokens(self.row[where], self.pos[where], self.n_pos)

    @cached_property
    def _place(self) -> Int[np.ndarray, " any"]:
        """By key, where each token stands; -1 where none does."""
        n_keys = (int(self.row[-1]) + 1) * self.n_pos if len(self) else 0
        place = np.full(n_keys + 1, -1)
        place[self.key] = np.arange(len(self))
        return place

    def find(
        self, key: Int[np.ndarray, " other"]
    ) -> tuple[Int[np.ndarray, " other"], Bool[np.ndarray, " other"]]:
        """Where each key stands here, and whether it does at all."""
        at = self._place[np.minimum(key, len(self._place) - 1)]
        return at, at >= 0


def write(edits: Iterable[Edit], tokens: Tokens, value: Float[Tensor, "token ..."]) -> None:
    """Overwrite what edits name, as far as these tokens hold it."""
    for edit in edits:
        at, here = tokens.find(edit.key(tokens.n_pos))
        if not here.all():
            edit, at = edit.kept(here), at[here]
        given, (at, *within) = edit.value, (on(value.device, i) for i in (at, *edit.within))
        if isinstance(given, np.ndarray):
            place, _ = tokens.find(given * tokens.n_pos + edit.pos)
            given = value[on(value.device, place), *within]
        value.index_put_((at, *within), given)


def on(device: torch.device, where: Shaped[np.ndarray, ...]) -> Shaped[Tensor, ...]:
    """Indices, or a mask, as a tensor, for tensors that lie there."""
    return torch.from_numpy(where).to(device)


# Most masks are true everywhere; then nothing needs to be gathered.
EVERY = slice(None)


def where_true(mask: Bool[np.ndarray, " any"]) -> np.ndarray | slice:
    """The indices at which a mask is true; EVERY when it is true everywhere."""
    return EVERY if mask.all() else mask.nonzero()[0]


def taken(value: Tensor, where: np.ndarray | slice) -> Tensor:
    """The entries along the first axis that `where_true` names."""
    return value if isinstance(where, slice) else value.index_select(0, on(value.device, where))


def joined(parts: list[Tensor]) -> Tensor:
    """The parts behind one another; a single one without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
