"""One edited run for each cell of a grid of sites: what patching and ablation have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.engine import Trace
from interp.errors import InputError
from interp.metrics import Metric, Runs
from interp.packing import Edit, on
from interp.replay import DEFAULT_MEMORY, Progress, replay_rows, scored_positions
from interp.sites import SITE_KINDS, Site, heads_at, kind_named, kinds_of, whole_site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformerConfig

_Lines: TypeAlias = Int[np.ndarray, " line"]
Over: TypeAlias = Sequence[str] | Mapping[str, Sequence[int] | None]


@dataclass(frozen=True, eq=False)
class Donor:
    """Where the values come from that edited runs receive.

    Attributes:
        value: the values for a whole site, shaped as the base run's.
        differs: the prompts and positions at which they can differ from the base run's at all.
    """

    value: Callable[[Site], Tensor]
    differs: Callable[[Site], Bool[np.ndarray, "batch pos"]]


@dataclass(frozen=True, eq=False)
class Grid:
    """The cells of a sweep.

    Attributes:
        kinds: the site kinds that are edited together in every cell, or each by itself where
            "kind" is a swept axis.
        axes: the swept axes in order, each with the indices it takes; all other axes of a site
            are edited as a whole.
        window: how many layers are edited together, from a cell's layer on.
    """

    kinds: tuple[str, ...]
    axes: Mapping[str, Int[np.ndarray, " index"]]
    window: int = 1

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
    if not 1 <= window <= cfg.n_layers or (window > 1 and "layer" not in chosen):
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
        picked = range(sizes[axis]) if indices is None else list(indices)
        wrong = [i for i in picked if not 0 <= i < sizes[axis]]
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
class Scores:
    """What each metric says of a sweep.

    Attributes:
        edited: one edited run for each cell and prompt; the grid's axes come last.
        base, source: the unedited runs; no source in an ablation.
    """

    edited: Float[Tensor, "metric batch ..."]
    base: Float[Tensor, "metric batch"]
    source: Float[Tensor, "metric batch"] | None


def sweep(
    base: Trace,
    donor: Donor,
    cells: Grid,
    metrics: Sequence[Metric],
    source: Trace | None = None,
    *,
    batch_size: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Scores:
    """The metrics of one edited run for each cell and prompt."""
    edits = _edits(base, donor, cells)
    n_batch = len(base.ids)
    prompts = np.arange(n_batch)
    everyone = on(base.ids.device, prompts)
    by_position: dict[int | None, list[int]] = {}
    for i, metric in enumerate(metrics):
        by_position.setdefault(metric.pos, []).append(i)
    edited, of_base, of_source = ([torch.empty(0)] * len(metrics) for _ in range(3))
    for done, (pos, which) in enumerate(by_position.items()):
        runs = runs_at(base, source, pos)

        def read(logits: Tensor, batch: Tensor, runs: Runs = runs, which=which) -> Tensor:
            return torch.stack([metrics[i](logits, batch, runs) for i in which], dim=-1)

        def report(n: int, of: int, done: int = done) -> None:
            if progress is not None:
                progress(done * of + n, len(by_position) * of)

        with torch.no_grad():
            unedited = read(runs.base, everyone)
            given = None if runs.source is None else read(runs.source, everyone)
        kept = replay_rows(
            base,
            np.tile(prompts, cells.n_cells),
            edits,
            scored_positions(base, pos),
            read,
            unedited=unedited,
            batch_size=batch_size,
            max_memory=max_memory,
            progress=report,
        )
        for column, i in enumerate(which):
            edited[i] = kept[:, column].view(*cells.shape, n_batch).movedim(-1, 0)
            of_base[i] = unedited[:, column]
            if given is not None:
                of_source[i] = given[:, column]
    of_donor = None if source is None else torch.stack(of_source)
    return Scores(torch.stack(edited), torch.stack(of_base), of_donor)


def runs_at(base: Trace, source: Trace | None, pos: int | None) -> Runs:
    """The unedited runs at a metric's scored positions."""
    scored = scored_positions(base, pos)
    next_ids = torch.nn.functional.pad(base.ids[:, 1:], (0, 1), value=-1)[:, scored]
    of_source = None if source is None else source.logits_at(scored)
    return Runs(next_ids, base.logits_at(scored), of_source)


def _edits(base: Trace, donor: Donor, cells: Grid) -> list[Edit]:
    """What the cells write, site by site."""
    edits, tables = [], {}
    for first_cell, site in _places(cells, base.model.cfg.n_layers):
        sizes = dict(zip(SITE_KINDS[site.kind].axes, base.values[site].shape[1:], strict=False))
        differs = donor.differs(site)
        # Sites whose values lie and differ alike share a table.
        alike = (*sizes.items(), differs.tobytes())
        if alike not in tables:
            cell, batch, index = _table(cells, sizes, differs)
            at = np.ravel_multi_index((batch, *index), (len(base.ids), *sizes.values()))
            tables[alike] = cell * len(base.ids) + batch, index, on(base.ids.device, at)
        row, index, at = tables[alike]
        value = donor.value(site).flatten(0, len(sizes)).index_select(0, at)
        edits.append(Edit(site, row + first_cell * len(base.ids), index, value))
    return edits


def _places(cells: Grid, n_layers: int) -> Iterator[tuple[int, Site]]:
    """The sites that are edited, each with the first of the cells that edit it."""
    layers = cells.axes.get("layer", np.arange(n_layers)).tolist()
    for at_kind, i in enumerate(cells.axes.get("kind", np.arange(len(cells.kinds))).tolist()):
        kind, first_cell = cells.kinds[i], at_kind * cells.strides.get("kind", 0)
        if not SITE_KINDS[kind].has_layer:
            yield first_cell, whole_site(kind)
            continue
        for at_layer, layer in enumerate(layers):
            for later in range(cells.window):
                at = first_cell + at_layer * cells.strides.get("layer", 0)
                yield at, whole_site(kind, layer + later)


def _table(
    cells: Grid, sizes: Mapping[str, int], differs: Bool[np.ndarray, "batch pos"]
) -> tuple[_Lines, _Lines, tuple[_Lines, ...]]:
    """All writes to a site with axes of these sizes, one a line: which cell writes, counted from
    the first that edits the site, to which prompt and where."""
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
    return cell, nth["batch"], tuple(indices[axis][nth[axis]] for axis in axes)


def _spread(value: np.ndarray, axes: Sequence[str], order: Sequence[str]) -> np.ndarray:
    """An array with these axes as one with all axes in `order`, of size 1 where it has none."""
    value = value.transpose([axes.index(axis) for axis in order if axis in axes])
    return value[tuple(slice(None) if axis in axes else None for axis in order)]
