"""The cells of a sweep: which sites each of them edits, and where."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.packing import Edit
from interp.sites import SITE_KINDS, Site, heads_at, kind_named, kinds_of, whole_site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformerConfig

_Lines: TypeAlias = Int[np.ndarray, " line"]
Over: TypeAlias = Sequence[str] | Mapping[str, Sequence[int] | None]
# The prompts and positions at which values for a site can differ from the base run's at all.
Differs: TypeAlias = Callable[[Site], Bool[np.ndarray, "batch pos"]]


@dataclass(frozen=True, eq=False)
class Grid:
    """The cells of a sweep.

    Attributes:
        kinds: the site kinds that are edited together in every cell, or each by itself where
            "kind" is a swept axis.
        axes: the swept axes in order, each with the indices it takes; all other axes of a site
            are edited as a whole.
        window: how many layers are edited together, from a cell's layer on.
        as_written: for kinds that are written at other kinds of site, at which.
    """

    kinds: tuple[str, ...]
    axes: Mapping[str, Int[np.ndarray, " index"]]
    window: int = 1
    as_written: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each axis."""
        return tuple(len(indices) for indices in self.axes.values())

    @property
    def coords(self) -> dict[str, np.ndarray]:
        """What stands along the axes that do not just count from 0: the indices that were chosen,
        and names along "kind"."""
        coords = {axis: i for axis, i in self.axes.items() if (i != np.arange(len(i))).any()}
        if "kind" in self.axes:
            coords["kind"] = np.array(self.kinds)[self.axes["kind"]]
        return coords

    @property
    def written(self) -> list[tuple[str, ...]]:
        """The kinds of site that are written together: in every cell, or for each index along
        "kind"."""
        each = [self.as_written.get(kind, (kind,)) for kind in self.kinds]
        if "kind" in self.axes:
            return [each[i] for i in self.axes["kind"]]
        return [tuple(dict.fromkeys(itertools.chain(*each)))]

    @property
    def strides(self) -> dict[str, int]:
        """How many cells on the next index along each axis lies."""
        return {axis: math.prod(self.shape[i + 1 :]) for i, axis in enumerate(self.axes)}

    @property
    def n_cells(self) -> int:
        """Cells in all."""
        return math.prod(self.shape)


# What a sweep runs over when nothing is said.
_USUAL = {"z": "head", "q": "head", "k": "head", "v": "head", "pattern": "head"}


def grid(
    cfg: HookedTransformerConfig,
    n_pos: int,
    kinds: str | Collection[str],
    over: Over | None,
    window: int = 1,
) -> Grid:
    """A checked Grid.

    Args:
        cfg: the model's shape.
        n_pos: the prompts' length.
        kinds: one site kind, or several that are edited together.
        over: axes that every kind has, from layer, head, pos, query_pos, key_pos and neuron,
            and "kind" to edit each kind by itself; or a mapping from axes to the indices to
            visit (None for all). Left out: layer and head for q, k, v, z and pattern, otherwise
            layer and pos.
        window: layers edited together.

    Raises:
        InputError: a kind, axis or index that the model does not have.
    """
    names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if not names:
        raise InputError(
            "No site kind came, but a sweep edits at least one: choose one of "
            f"{', '.join(kinds_of(cfg))}."
        )
    for name in names:
        layer = 0 if kind_named(name).has_layer else None
        Site(name, layer).check(cfg, n_pos)
    common = [axis for axis in _axes(names[0]) if all(axis in _axes(name) for name in names)]
    if over is None:
        wanted = ("layer", _USUAL.get(names[0], "pos" if "pos" in common else "head"))
        over = [axis for axis in wanted if axis in common]
    chosen = over if isinstance(over, Mapping) else dict.fromkeys(over)
    sizes = {
        "kind": len(names),
        "layer": cfg.n_layers - window + 1,
        "head": min(heads_at(cfg, name) for name in names),
        "neuron": cfg.d_mlp or 0,
        **dict.fromkeys(("pos", "query_pos", "key_pos"), n_pos),
    }
    whole = isinstance(window, Integral)
    if not whole or not 1 <= window <= cfg.n_layers or (window > 1 and "layer" not in chosen):
        raise InputError(
            f"The window is {window} layers, but the model has {cfg.n_layers}: choose 1 to "
            f"{cfg.n_layers}, and sweep over layer when it is more than 1."
        )
    axes: dict[str, np.ndarray] = {}
    allowed = (*common, "kind")
    for axis, indices in chosen.items():
        if axis not in allowed:
            raise InputError(
                f"Axis {axis!r} was to be swept, but {' and '.join(names)} can be swept over "
                f"{', '.join(allowed)}: choose among these."
            )
        if indices is not None and not isinstance(indices, Iterable):
            raise InputError(
                f"Axis {axis!r} was to take {indices!r}, but its indices come as a list: write "
                f"[{indices!r}], or None for all of them."
            )
        picked = range(sizes[axis]) if indices is None else list(indices)
        wrong = [i for i in picked if not hasattr(i, "__index__") or not 0 <= i < sizes[axis]]
        if wrong or not picked:
            raise InputError(
                f"Axis {axis!r} was to take {wrong[0] if wrong else 'no index'}, but it goes from "
                f"0 to {sizes[axis] - 1}: choose indices in that range."
            )
        axes[axis] = np.array(picked, dtype=np.int64)
    return Grid(names, axes, window)


def _axes(kind: str) -> tuple[str, ...]:
    layer = ("layer",) if SITE_KINDS[kind].has_layer else ()
    return (*layer, *SITE_KINDS[kind].axes)


@dataclass(frozen=True, eq=False)
class Writes:
    """All writes to one site, one a line.

    Attributes:
        cell: which cell writes, counted from the first that edits the site.
        batch: to which prompt.
        index: where, one array for each of the kind's axes.
        shape: prompts, and what the kind's axes count.
    """

    cell: _Lines
    batch: _Lines
    index: tuple[_Lines, ...]
    shape: tuple[int, ...]

    @cached_property
    def place(self) -> _Lines:
        """Where each line stands in the flattened site."""
        return np.ravel_multi_index((self.batch, *self.index), self.shape)


# What cells write to a site: values, or the rows to take them from.
Given: TypeAlias = Callable[[Site, Writes], Float[Tensor, "line ..."] | Int[np.ndarray, " line"]]


def edits_of(
    cells: Grid,
    cfg: HookedTransformerConfig,
    shape: tuple[int, ...],
    differs: Differs,
    given: Given,
) -> list[Edit]:
    """What the cells write, site by site, to prompts of this shape, [batch, pos]; each cell and
    prompt is a row, in this order."""
    (n_batch, n_pos), edits, tables = shape, [], {}
    for first_cell, site in _places(cells, cfg.n_layers):
        counts = {
            "head": heads_at(cfg, site.kind),
            "neuron": cfg.d_mlp or 0,
            **dict.fromkeys(("pos", "query_pos", "key_pos"), n_pos),
        }
        sizes = {axis: counts[axis] for axis in SITE_KINDS[site.kind].axes}
        where = differs(site)
        # Sites whose values lie and differ alike share a table.
        alike = (*sizes.items(), where.tobytes())
        if alike not in tables:
            tables[alike] = _table(cells, sizes, where)
        writes = tables[alike]
        row = (writes.cell + first_cell) * n_batch + writes.batch
        edits.append(Edit(site, row, writes.index, given(site, writes)))
    return edits


def _places(cells: Grid, n_layers: int) -> Iterator[tuple[int, Site]]:
    """The sites that are edited, each with the first of the cells that edit it."""
    layers = cells.axes.get("layer", np.arange(n_layers)).tolist()
    for nth, kinds in enumerate(cells.written):
        first_cell = nth * cells.strides.get("kind", 0)
        for kind in kinds:
            if not SITE_KINDS[kind].has_layer:
                yield first_cell, whole_site(kind)
                continue
            for at_layer, layer in enumerate(layers):
                for later in range(cells.window):
                    at = first_cell + at_layer * cells.strides.get("layer", 0)
                    yield at, whole_site(kind, layer + later)


def _table(cells: Grid, sizes: Mapping[str, int], differs: Bool[np.ndarray, "batch pos"]) -> Writes:
    """All writes to a site with axes of these sizes."""
    axes = tuple(sizes)
    indices = {axis: cells.axes.get(axis, np.arange(size)) for axis, size in sizes.items()}
    # Swept axes first, so that the table comes out sorted by cell.
    swept = [axis for axis in cells.axes if axis in axes]
    order = [*swept, "batch", *(axis for axis in axes if axis not in swept)]
    at = "query_pos" if "query_pos" in axes else "pos"
    writes = _spread(differs[:, indices[at]], ("batch", at), order)
    if "key_pos" in axes:
        seen = indices["key_pos"] <= indices["query_pos"][:, None]
        writes = writes & _spread(seen, ("query_pos", "key_pos"), order)
    counts = {"batch": len(differs)} | {axis: len(i) for axis, i in indices.items()}
    where = np.broadcast_to(writes, [counts[axis] for axis in order]).nonzero()
    nth = dict(zip(order, where, strict=True))
    cell = np.zeros_like(nth["batch"])
    for axis in swept:
        cell = cell + nth[axis] * cells.strides[axis]
    index = tuple(indices[axis][nth[axis]] for axis in axes)
    return Writes(cell, nth["batch"], index, (len(differs), *sizes.values()))


def _spread(value: np.ndarray, axes: Sequence[str], order: Sequence[str]) -> np.ndarray:
    """An array with these axes as one with all axes in `order`, of size 1 where it has none."""
    value = value.transpose([axes.index(axis) for axis in order if axis in axes])
    return value[tuple(slice(None) if axis in axes else None for axis in order)]
