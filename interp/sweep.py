"""One edited run for each cell of a grid of sites: what patching and ablation have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.engine import Trace
from interp.grid import Differs, Grid, Writes, edits_of
from interp.inputs import Contrast, to_ids
from interp.metrics import Metric, Runs
from interp.packing import SOFTMAX, Edit, on
from interp.replay import (
    DEFAULT_MEMORY,
    Progress,
    count_edited,
    replay_alongside,
    replay_rows,
    rows_at_once,
    scored_positions,
)
from interp.sites import Site, whole_site
from interp.weights import lay_out, obstacles

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


@dataclass(frozen=True, eq=False)
class Donor:
    """Where the values come from that edited runs receive.

    Attributes:
        value: the values for a whole site, shaped as the base run's.
        differs: the prompts and positions at which they can differ from the base run's at all.
    """

    value: Callable[[Site], Tensor]
    differs: Differs


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

    def given(site: Site, writes: Writes) -> Tensor:
        at = on(base.ids.device, writes.place)
        return donor.value(site).flatten(0, len(writes.index)).index_select(0, at)

    edits = edits_of(cells, base.model.cfg, base.ids.shape, donor.differs, given)
    n_batch = len(base.ids)
    prompts = np.arange(n_batch)
    everyone = on(base.ids.device, prompts)
    by_position: dict[int | None, list[int]] = {}
    for i, metric in enumerate(metrics):
        by_position.setdefault(metric.pos, []).append(i)
    n_runs = cells.n_cells * n_batch
    scored = [scored_positions(base.ids, pos) for pos in by_position]
    counted = () if progress is None else scored
    n_edited = [count_edited(base, n_runs, edits, at) for at in counted]
    edited, of_base, of_source = ([torch.empty(0)] * len(metrics) for _ in range(3))
    for done, (pos, which) in enumerate(by_position.items()):
        runs = runs_at(base, source, pos)

        def read(logits: Tensor, batch: Tensor, runs: Runs = runs, which=which) -> Tensor:
            return torch.stack([metrics[i](logits, batch, runs) for i in which], dim=-1)

        def report(n: int, of: int, done: int = done) -> None:
            if progress is not None:
                progress(sum(n_edited[:done]) + n, sum(n_edited))

        with torch.no_grad():
            unedited = read(runs.base, everyone)
            given_runs = None if runs.source is None else read(runs.source, everyone)
        kept = replay_rows(
            base,
            np.tile(prompts, cells.n_cells),
            edits,
            scored[done],
            read,
            unedited=unedited,
            batch_size=batch_size,
            max_memory=max_memory,
            progress=report,
        )
        for column, i in enumerate(which):
            edited[i] = kept[:, column].view(*cells.shape, n_batch).movedim(-1, 0)
            of_base[i] = unedited[:, column]
            if given_runs is not None:
                of_source[i] = given_runs[:, column]
    of_donor = None if source is None else torch.stack(of_source)
    return Scores(torch.stack(edited), torch.stack(of_base), of_donor)


def goes_alongside(
    model: HookedTransformer,
    contrast: Contrast,
    cells: Grid,
    metrics: Sequence[Metric],
    batch_size: int | None,
    max_memory: int,
) -> bool:
    """Whether `sweep_alongside` can make this sweep: every row in one batch, scored at the same
    position, and no scores or patterns edited, which only traces keep."""
    if obstacles(model.cfg) or not set(SOFTMAX).isdisjoint(itertools.chain(*cells.written)):
        return False
    n_pairs, n_pos = contrast.base.shape
    positions = {None if metric.pos is None else metric.pos % n_pos for metric in metrics}
    n_scored = n_pos if None in positions else 1
    n_most = rows_at_once(model, n_pos, n_scored, batch_size, max_memory)
    return len(positions) == 1 and cells.n_cells * n_pairs <= n_most


def sweep_alongside(
    model: HookedTransformer,
    contrast: Contrast,
    differs: Differs,
    cells: Grid,
    metrics: Sequence[Metric],
    progress: Progress | None = None,
) -> Scores:
    """`sweep` without traces: base and source run and all edited ones go through the model in one
    pass. The source run is the base run with other embeddings, so what the two share is computed
    once, and edited rows take their values from it on the way."""
    ids, source_ids = (to_ids(model, x) for x in (contrast.base, contrast.source))
    weights, n_pairs = lay_out(model), len(ids)
    prompts = np.arange(n_pairs)
    embed = whole_site("embed")
    pair, pos = differs(embed).nonzero()
    embeds = weights.W_E[source_ids[on(ids.device, pair), on(ids.device, pos)]]
    edits = [Edit(embed, n_pairs + pair, (pos,), embeds)]
    for edit in edits_of(
        cells, model.cfg, ids.shape, differs, lambda site, writes: n_pairs + writes.batch
    ):
        edits.append(replace(edit, row=2 * n_pairs + edit.row))
    scored = scored_positions(ids, metrics[0].pos)
    batch = np.tile(prompts, cells.n_cells + 2)
    logits, ran, place = replay_alongside(weights, ids, batch, edits, scored)
    of_source = on(ids.device, place[n_pairs : 2 * n_pairs])
    runs = Runs(next_ids(ids)[:, scored], logits[:n_pairs], logits[of_source])
    with torch.no_grad():
        prompt = on(ids.device, batch[ran])
        scores = torch.stack([metric(logits, prompt, runs) for metric in metrics])
    n_edited = int((ran >= 2 * n_pairs).sum())
    if progress is not None and n_edited:
        progress(n_edited, n_edited)
    edited = scores[:, on(ids.device, place[2 * n_pairs :])]
    edited = edited.unflatten(1, (*cells.shape, n_pairs)).movedim(-1, 1)
    return Scores(edited, scores[:, :n_pairs], scores[:, of_source])


def runs_at(base: Trace, source: Trace | None, pos: int | None) -> Runs:
    """The unedited runs at a metric's scored positions."""
    scored = scored_positions(base.ids, pos)
    of_source = None if source is None else source.logits_at(scored)
    return Runs(next_ids(base.ids)[:, scored], base.logits_at(scored), of_source)


def next_ids(ids: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """The token after each position, -1 at the end."""
    return torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-1)
