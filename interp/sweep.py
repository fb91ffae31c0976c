"""One edited run for each cell of a grid of sites: what patching and ablation have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.engine import Trace
from interp.errors import InputError
from interp.metrics import Metric, Runs
from interp.packing import Edit
from interp.replay import DEFAULT_MEMORY, Progress, replay_rows, scored_positions
from interp.sites import SITE_KINDS, Site, heads_at, kind_named, kinds_of

if TYPE_CHECKING:
    from transformer_lens import HookedTransformerConfig

Over: TypeAlias = Sequence[str] | Mapping[str, Sequence[int] | None]


@dataclass(frozen=True, eq=False)
class Donor:
    """Where the values come from that edited runs receive.

    Attributes:
        value: the values for a whole site, shaped as the base run's.
        differs: the prompts and positions at which they can differ from the base run's at all.
    """

    value: Callable[[Site], Tensor]
    differs: Callable[[Site], Bool[Tensor, "batch pos"]]


@dataclass(frozen=True, eq=False)
class Grid:
    """The cells of a sweep.

    Attributes:
        kinds: the site kinds that are edited together in every cell.
        axes: the swept axes in order, each with the indices it takes; all other axes of a site
            are edited as a whole.
        window: how many layers are edited together, from a cell's layer on.
    """

    kinds: tuple[str, ...]
    axes: Mapping[str, Int[Tensor, " index"]]
    window: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each axis."""
        return tuple(len(indices) for indices in self.axes.values())

    @property
    def n_cells(self) -> int:
        """Cells in all."""
        return torch.Size(self.shape).numel()


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
        over: axes that every kind has, from layer, head, pos, query_pos, key_pos and neuron;
            or a mapping from axes to the indices to visit (None for all). Left out: layer and
            head for q, k, v, z and pattern, otherwise layer and pos.
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
    axes: dict[str, Tensor] = {}
    for axis, indices in chosen.items():
        if axis not in common:
            raise InputError(
                f"Axis {axis!r} was to be swept, but {' and '.join(names)} can be swept over "
                f"{', '.join(common)}: choose among these."
            )
        picked = range(sizes[axis]) if indices is None else list(indices)
        wrong = [i for i in picked if not 0 <= i < sizes[axis]]
        if wrong or not picked:
            raise InputError(
                f"Axis {axis!r} was to take {wrong[0] if wrong else 'no index'}, but it goes from "
                f"0 to {sizes[axis] - 1}: choose indices in that range."
            )
        axes[axis] = torch.tensor(list(picked), device=cfg.device)
    return Grid(names, axes, window)


def _axes(kind: str) -> tuple[str, ...]:
    layer = ("layer",) if SITE_KINDS[kind].has_layer else ()
    return (*layer, *SITE_KINDS[kind].axes)


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
) -> Float[Tensor, "metric batch ..."]:
    """The metrics of one edited run for each cell and prompt, with one axis for each of the
    grid's axes after metric and batch."""
    edits = _edits(base, donor, cells)
    n_batch = len(base.ids)
    batch = torch.arange(n_batch, device=base.ids.device).repeat(cells.n_cells)
    by_position: dict[int | None, list[int]] = {}
    for i, metric in enumerate(metrics):
        by_position.setdefault(metric.pos, []).append(i)
    values: dict[int, Tensor] = {}
    for done, (pos, which) in enumerate(by_position.items()):
        runs = runs_at(base, source, pos)

        def read(logits: Tensor, batch: Tensor, runs: Runs = runs, which=which) -> Tensor:
            return torch.stack([metrics[i](logits, batch, runs) for i in which], dim=-1)

        def report(n: int, of: int, done: int = done) -> None:
            if progress is not None:
                progress(done * of + n, len(by_position) * of)

        kept = replay_rows(
            base,
            batch,
            edits,
            scored_positions(base, pos),
            read,
            batch_size=batch_size,
            max_memory=max_memory,
            progress=report,
        )
        for column, i in enumerate(which):
            values[i] = kept[:, column].view(*cells.shape, n_batch).movedim(-1, 0)
    return torch.stack([values[i] for i in range(len(metrics))])


def runs_at(base: Trace, source: Trace | None, pos: int | None) -> Runs:
    """The unedited runs at a metric's scored positions."""
    scored = scored_positions(base, pos)
    next_ids = torch.nn.functional.pad(base.ids[:, 1:], (0, 1), value=-1)[:, scored]
    of_source = None if source is None else source.logits_at(scored)
    return Runs(next_ids, base.logits_at(scored), of_source)


def _edits(base: Trace, donor: Donor, cells: Grid) -> list[Edit]:
    layers = cells.axes.get("layer")
    edits = []
    for kind in cells.kinds:
        if not SITE_KINDS[kind].has_layer:
            edits.append(_edit(base, donor, cells, Site(kind), None))
        elif layers is None:
            every = range(base.model.cfg.n_layers)
            edits += [_edit(base, donor, cells, Site(kind, layer), None) for layer in every]
        else:
            edits += [
                _edit(base, donor, cells, Site(kind, int(layer) + later), at)
                for at, layer in enumerate(layers)
                for later in range(cells.window)
            ]
    return edits


def _edit(base: Trace, donor: Donor, cells: Grid, site: Site, layer_at: int | None) -> Edit:
    """What all cells of the grid write at one site; `layer_at` is the place of the cells' layer
    on the layer axis."""
    kind = SITE_KINDS[site.kind]
    device = base.ids.device
    sizes = dict(zip(kind.axes, base.values[site].shape[1:], strict=False))
    pos_axis = "query_pos" if "query_pos" in kind.axes else "pos"
    at_pos = cells.axes.get(pos_axis, torch.arange(sizes[pos_axis], device=device))
    # Start from the positions where there is something to write: they are few.
    batch, nth = donor.differs(site)[:, at_pos].nonzero(as_tuple=True)
    places: dict[str, Tensor] = {"batch": batch, pos_axis: nth}
    index: dict[str, Tensor] = {"batch": batch, pos_axis: at_pos[nth]}
    for axis in kind.axes:
        if axis == pos_axis:
            continue
        indices = cells.axes.get(axis, torch.arange(sizes[axis], device=device))
        n, m = len(index["batch"]), len(indices)
        index = {name: i.repeat_interleave(m) for name, i in index.items()}
        places = {name: i.repeat_interleave(m) for name, i in places.items()}
        places[axis] = torch.arange(m, device=device).repeat(n)
        index[axis] = indices[places[axis]]
    if "key_pos" in index:
        seen = index["key_pos"] <= index["query_pos"]
        index = {name: i[seen] for name, i in index.items()}
        places = {name: i[seen] for name, i in places.items()}
    cell = torch.zeros_like(index["batch"])
    for axis, indices in cells.axes.items():
        place = layer_at if axis == "layer" else places[axis]
        assert place is not None
        cell = cell * len(indices) + place
    row = cell * len(base.ids) + index["batch"]
    within = tuple(index[axis] for axis in kind.axes)
    return Edit(site, row, within, donor.value(site)[(index["batch"], *within)])
