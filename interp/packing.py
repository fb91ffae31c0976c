"""What edited runs are described by: edits as tables, and tokens packed along one axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from jaxtyping import Bool, Float, Int
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
        index: where the cell lies, one tensor for each of the kind's axes.
        value: what it shall hold.
    """

    site: Site
    row: Int[Tensor, " cell"]
    index: tuple[Int[Tensor, " cell"], ...]
    value: Float[Tensor, "cell ..."]

    @property
    def pos(self) -> Int[Tensor, " cell"]:
        """The position whose computation the cell belongs to."""
        axes = SITE_KINDS[self.site.kind].axes
        return self.index[axes.index("query_pos" if "query_pos" in axes else "pos")]

    @property
    def within(self) -> tuple[Int[Tensor, " cell"], ...]:
        """The index without its position."""
        axes = SITE_KINDS[self.site.kind].axes
        return tuple(
            i for axis, i in zip(axes, self.index, strict=True) if axis not in ("pos", "query_pos")
        )

    def kept(self, keep: Bool[Tensor, " cell"]) -> Edit:
        """Only the cells at which `keep` is true."""
        index = tuple(i[keep] for i in self.index)
        return Edit(self.site, self.row[keep], index, self.value[keep])


@cache
def moment(site: Site, n_layers: int) -> int:
    """When a site is computed in a forward pass: a number that grows along the pass."""
    layer = site.layer
    if layer is None:
        layer = n_layers if site.kind.startswith("ln_final") else 0
    # What lies inside attention is entered together: its parts are computed in one go.
    entry = "q" if site.kind in IN_ATTENTION else site.kind
    return layer * len(ORDER) + ORDER[entry]


def first_moments(
    edits: Iterable[Edit], n_rows: int, n_layers: int, device: torch.device
) -> Int[Tensor, " row"]:
    """When each row is first edited; after all sites where it never is."""
    never = moment(whole_site("ln_final_normalized"), n_layers) + 1
    first = torch.full((n_rows,), never, device=device)
    for edit in sorted(edits, key=lambda edit: -moment(edit.site, n_layers)):
        first.index_fill_(0, edit.row, moment(edit.site, n_layers))
    return first


def distinct(
    parts: Iterable[Int[Tensor, " _"]], below: int, device: torch.device
) -> Int[Tensor, " each"]:
    """Every number that occurs, once and ascending; all are from 0 to `below`."""
    occurs = torch.zeros(below, dtype=torch.bool, device=device)
    for part in parts:
        occurs.index_fill_(0, part, True)
    return occurs.nonzero().squeeze(-1)


@dataclass(frozen=True, eq=False)
class Tokens:
    """Which tokens a packed tensor holds, in the order of `row` and within it of `pos`."""

    row: Int[Tensor, " token"]
    pos: Int[Tensor, " token"]
    n_pos: int

    @cached_property
    def key(self) -> Int[Tensor, " token"]:
        """One number for each token, ascending."""
        return self.row * self.n_pos + self.pos

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def of(cls, key: Int[Tensor, " token"], n_pos: int) -> Tokens:
        """The tokens with these keys, which ascend."""
        return cls(key // n_pos, key % n_pos, n_pos)

    @classmethod
    def edited(cls, edits: Iterable[Edit], n_rows: int, n_pos: int, device: torch.device) -> Tokens:
        """The tokens at which some cell is edited."""
        keys = (edit.row * n_pos + edit.pos for edit in edits)
        return cls.of(distinct(keys, n_rows * n_pos, device), n_pos)

    def onwards(self, places: Int[Tensor, " place"] | None = None) -> Tokens:
        """For each row every position from its first on, or those among `places`."""
        if not len(self):
            return self
        is_first = torch.ones_like(self.row, dtype=torch.bool)
        torch.ne(self.row[1:], self.row[:-1], out=is_first[1:])
        row, start = self.row[is_first], self.pos[is_first]
        if places is None:
            if int((self.n_pos - start).sum()) == len(self):
                return self
            places = torch.arange(self.n_pos, device=row.device)
        of, at = (places >= start[:, None]).nonzero(as_tuple=True)
        return Tokens(row[of], places[at], self.n_pos)

    def followed_by(self, later: Tokens) -> Tokens:
        """These and then tokens of rows that come later."""
        row, pos = torch.cat([self.row, later.row]), torch.cat([self.pos, later.pos])
        return Tokens(row, pos, self.n_pos)

    def at(self, where: Tensor | slice) -> Tokens:
        """Only the tokens at these places."""
        return self if where is EVERY else Tokens(self.row[where], self.pos[where], self.n_pos)

    @cached_property
    def _place(self) -> Int[Tensor, " any"]:
        """By key, where each token stands; -1 where none does."""
        n_keys = (int(self.row[-1]) + 1) * self.n_pos if len(self) else 0
        place = self.key.new_full((n_keys + 1,), -1)
        place[self.key] = torch.arange(len(self), device=place.device)
        return place

    def find(
        self, key: Int[Tensor, " other"]
    ) -> tuple[Int[Tensor, " other"], Bool[Tensor, " other"]]:
        """Where each key stands here, and whether it does at all."""
        at = self._place[key.clamp_max(len(self._place) - 1)]
        return at, at >= 0


def write(edits: Iterable[Edit], tokens: Tokens, value: Float[Tensor, "token ..."]) -> None:
    """Overwrite what edits name, as far as these tokens hold it."""
    for edit in edits:
        at, here = tokens.find(edit.row * tokens.n_pos + edit.pos)
        if not bool(here.all()):
            edit, at = edit.kept(here), at[here]
        value[(at, *edit.within)] = edit.value


# Most masks are true everywhere; then nothing needs to be gathered.
EVERY = slice(None)


def where_true(mask: Bool[Tensor, " any"]) -> Tensor | slice:
    """The indices at which a mask is true; EVERY when it is true everywhere."""
    return EVERY if bool(mask.all()) else mask.nonzero().squeeze(-1)


def taken(value: Tensor, where: Tensor | slice) -> Tensor:
    """The entries along the first axis that `where_true` names."""
    return value if isinstance(where, slice) else value.index_select(0, where)


def put(into: Tensor, where: Tensor | slice, value: Tensor) -> Tensor:
    """`into` with those entries overwritten; for EVERY, just the new value."""
    return value if isinstance(where, slice) else into.index_copy_(0, where, value)


def joined(parts: list[Tensor]) -> Tensor:
    """The parts behind one another; a single one without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
