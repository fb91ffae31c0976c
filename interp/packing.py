"""What edited runs are described by: edits as tables, and tokens packed along one axis."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.sites import SITE_KINDS, Site

ORDER = {kind: i for i, kind in enumerate(SITE_KINDS)}
_IN_ATTENTION = ("q", "k", "v", "attn_scores", "pattern")


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
    entry = "q" if site.kind in _IN_ATTENTION else site.kind
    return layer * len(ORDER) + ORDER[entry]


@dataclass(frozen=True, eq=False)
class Tokens:
    """Which tokens a packed tensor holds, in the order of `row` and within it of `pos`."""

    row: Int[Tensor, " token"]
    pos: Int[Tensor, " token"]
    n_pos: int
    key: Int[Tensor, " token"] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.row * self.n_pos + self.pos)

    def __len__(self) -> int:
        return len(self.row)

    def followed_by(self, later: Tokens) -> Tokens:
        """These and then tokens of rows that come later."""
        row, pos = torch.cat([self.row, later.row]), torch.cat([self.pos, later.pos])
        return Tokens(row, pos, self.n_pos)

    def at(self, where: Tensor | slice) -> Tokens:
        """Only the tokens at these places."""
        return self if where is EVERY else Tokens(self.row[where], self.pos[where], self.n_pos)

    def find(
        self, key: Int[Tensor, " other"]
    ) -> tuple[Int[Tensor, " other"], Bool[Tensor, " other"]]:
        """Where each key stands here, and whether it does at all."""
        at = torch.searchsorted(self.key, key).clamp_max_(max(len(self) - 1, 0))
        return at, self.key[at] == key if len(self) else torch.zeros_like(key, dtype=torch.bool)


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
