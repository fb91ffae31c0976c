"""Edited runs of prompts, traced before or run with them, as many as you like, each exact."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.base_run import BaseAlongside, TracedBase
from interp.engine import Trace
from interp.errors import InputError
from interp.packing import Edit, first_moments, moment, on, taken
from interp.sites import SITE_KINDS, Site, sites_of, whole_site
from interp.wavefront import Wavefront
from interp.weights import Weights

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

# Called with the rows done and the rows in all; may raise, which stops the sweep.
Progress: TypeAlias = Callable[[int, int], None]
# Turns logits, and the prompt that each row of them belongs to, into what is kept of each row.
Read: TypeAlias = Callable[
    [Float[Tensor, "row scored d_vocab_out"], Int[Tensor, " row"]], Float[Tensor, "row ..."]
]

DEFAULT_MEMORY = 2**29

# What edited runs take from their base run: where rows may join, and all that attention looks at.
_READ = frozenset(("embed", "pos_embed", "resid_pre", "q", "k", "v", "z", "resid_mid"))


def sites_read(cfg: HookedTransformerConfig, kinds: Collection[str]) -> list[Site]:
    """The sites that a trace must keep to serve as base of edits at these kinds of site."""
    last = whole_site("resid_post", cfg.n_layers - 1)
    return [s for s in sites_of(cfg) if s.kind in _READ or s.kind in kinds or s == last]


def replay(
    base: Trace,
    edits: Sequence[Mapping[Site, Tensor | float]],
    *,
    pos: int = -1,
    batch_size: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
) -> Float[Tensor, "edit batch d_vocab_out"]:
    """Logits of a traced input when sites hold other values than they did.

    Each entry of `edits` is one run: all its sites hold the given values together, everything
    after them follows, everything before them stays. Equal to the same edit made with
    TransformerLens' hooks, up to rounding.

    Args:
        base: a trace that kept every site.
        edits: for each run, the value of each edited Site, broadcastable to `base[site]`. Where
            two Sites of one run overlap, the later one wins.
        pos: the position whose logits are returned.
        batch_size: most rows (edits times prompts) computed at once; left to `max_memory` if None.
        max_memory: about how many bytes the rows computed at once may take.

    Raises:
        InputError: a site or position outside the model, or a value of the wrong shape.
    """
    n_batch = len(base.ids)
    rows = np.arange(len(edits) * n_batch).reshape(len(edits), n_batch)
    tables = [
        _table(base, site, value, rows[i])
        for i, sites in enumerate(edits)
        for site, value in sites.items()
    ]
    logits = replay_rows(
        base,
        np.tile(np.arange(n_batch), len(edits)),
        tables,
        scored_positions(base.ids, pos),
        lambda logits, _: logits[:, 0],
        batch_size=batch_size,
        max_memory=max_memory,
    )
    return logits.unflatten(0, (len(edits), n_batch))


def scored_positions(ids: Int[Tensor, "batch pos"], pos: int | None) -> Int[Tensor, " scored"]:
    """One position of the prompts counted from either end, or all of them for None."""
    n_pos = ids.shape[1]
    if pos is None:
        return torch.arange(n_pos, device=ids.device)
    if not isinstance(pos, Integral) or not -n_pos <= pos < n_pos:
        raise InputError(
            f"The scored position is {pos}, but the prompt has {n_pos} tokens: choose one from 0 "
            f"to {n_pos - 1}, or from -1 back to {-n_pos}."
        )
    return torch.tensor([pos % n_pos], device=ids.device)


def replay_rows(
    base: Trace,
    batch: Int[np.ndarray, " row"],
    edits: Sequence[Edit],
    scored: Int[Tensor, " scored"],
    read: Read,
    *,
    unedited: Float[Tensor, "batch ..."] | None = None,
    batch_size: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Float[Tensor, "row ..."]:
    """What `read` keeps of each row's logits at the scored positions.

    Args:
        base: a trace that kept what the edits read, see `sites_read`.
        batch: which prompt of `base` each row edits.
        edits: what the rows change; a row without any equals the base run.
        scored: positions whose logits are wanted, ascending.
        read: called for some rows at a time, so that never all logits are in memory.
        unedited: what `read` keeps of the base run, if that is known.
        batch_size, max_memory: as in `replay`.
        progress: called after each batch of rows.
    """
    n_layers, device = base.model.cfg.n_layers, base.ids.device
    at = scored.cpu().numpy()
    edits = [_reaching(edit, at, n_layers) for edit in edits]
    order, ranked = _in_order(edits, first_moments(edits, len(batch), n_layers), n_layers)
    size = rows_at_once(base.model, int(at[-1]) + 1, len(at), batch_size, max_memory)
    run = _wavefront if isinstance(base.program, Weights) else _whole_runs
    with torch.no_grad():
        if unedited is None:
            everyone = torch.arange(len(base.ids), device=device)
            unedited = read(base.logits_at(scored), everyone)
        # Rows that cannot differ from the base run are the base run.
        kept = unedited.index_select(0, on(device, batch))
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            if len(rows) == len(order):
                chunk = ranked
            else:
                chunk = [_between(edit, start, start + len(rows)) for edit in ranked]
            prompt = batch[rows]
            logits = run(base, prompt, [e for e in chunk if len(e.row)], at)
            kept.index_copy_(0, on(device, rows), read(logits, on(device, prompt)))
            if progress is not None:
                progress(start + len(rows), len(order))
    return kept


def replay_alongside(
    weights: Weights,
    ids: Int[Tensor, "prompt pos"],
    batch: Int[np.ndarray, " row"],
    edits: Sequence[Edit],
    scored: Int[Tensor, " scored"],
) -> tuple[
    Float[Tensor, "ran scored d_vocab_out"], Int[np.ndarray, " ran"], Int[np.ndarray, " row"]
]:
    """Logits of prompts and of edited runs of them, which go through the model in one pass.

    Args:
        weights: what they run with.
        ids: the prompts.
        batch: which prompt each row edits; the first rows are the prompts themselves.
        edits: what the rows change, scores and patterns excepted. A row may take values from
            another one that comes before it, or from a prompt's.
        scored: positions whose logits are wanted, ascending.

    Returns:
        The logits of all rows that had to be run, which rows these are, and for each row the place
        of its logits among them: that of its prompt where nothing can differ.
    """
    n_layers, at, n_prompts = len(weights.blocks), scored.cpu().numpy(), len(ids)
    reaching = (_reaching(edit, at, n_layers) for edit in edits)
    edits = [edit for edit in reaching if len(edit.row)]
    first = first_moments(edits, len(batch), n_layers)
    first[:n_prompts] = moment(whole_site("embed"), n_layers)
    order, ranked = _in_order(edits, first, n_layers)
    place = batch.copy()
    place[order] = np.arange(len(order))
    base = BaseAlongside(weights, ids, batch[order], int(at[-1]) + 1)
    return Wavefront(base, batch[order], ranked, first[order], at).logits(), order, place


def rows_at_once(
    model: HookedTransformer, n_pos: int, n_scored: int, batch_size: int | None, max_memory: int
) -> int:
    """How many rows may be computed together.

    Raises:
        InputError: a `batch_size` that is no number of rows.
    """
    if batch_size is not None and (not isinstance(batch_size, Integral) or batch_size < 1):
        raise InputError(
            f"batch_size is {batch_size!r}, but it is how many runs are computed at once: give a "
            "whole number from 1 on, or None to leave it to max_memory."
        )
    cfg = model.cfg
    heads = cfg.n_heads * cfg.d_head
    a_token = 4 * cfg.d_model + 8 * heads + 2 * (cfg.d_mlp or 0)
    row = cfg.dtype.itemsize * (n_pos * a_token + 2 * n_scored * cfg.d_vocab_out)
    return batch_size or max(1, max_memory // row)


def count_edited(
    base: Trace, n_rows: int, edits: Sequence[Edit], scored: Int[Tensor, " scored"]
) -> int:
    """How many of the rows that `replay_rows` gets can differ from the base run."""
    at, n_layers = scored.cpu().numpy(), base.model.cfg.n_layers
    first = first_moments([_reaching(edit, at, n_layers) for edit in edits], n_rows, n_layers)
    return int((first <= moment(whole_site("ln_final_normalized"), n_layers)).sum())


def _wavefront(base: Trace, batch: np.ndarray, edits: list[Edit], scored: np.ndarray) -> Tensor:
    first = first_moments(edits, len(batch), base.model.cfg.n_layers)
    known = TracedBase(base, batch, int(scored[-1]) + 1)
    return Wavefront(known, batch, edits, first, scored).logits()


def _whole_runs(base: Trace, batch: np.ndarray, edits: list[Edit], scored: np.ndarray) -> Tensor:
    """Every row as a whole run, for programs that cannot be entered half-way."""

    def tap(site: Site, value: Tensor) -> Tensor:
        for edit in edits:
            if edit.site == site:
                index = tuple(on(value.device, i) for i in (edit.row, *edit.index))
                assert isinstance(edit.value, Tensor)
                value = value.index_put(index, edit.value)
        return value

    final = base.program.run(base.ids[on(base.ids.device, batch)], tap)
    return base.program.unembed(final[:, on(final.device, scored)])


def _reaching(edit: Edit, scored: Int[np.ndarray, " scored"], n_layers: int) -> Edit:
    """Only the cells that logits at the scored positions can depend on: none after the last of
    them, and in the last layer, past its keys and values, none beside them."""
    last_attention = moment(Site("q", n_layers - 1), n_layers)
    if moment(edit.site, n_layers) < last_attention or edit.site.kind in ("k", "v"):
        reaches = edit.pos <= scored[-1]
    else:
        nearest = scored[np.minimum(scored.searchsorted(edit.pos), len(scored) - 1)]
        reaches = nearest == edit.pos
    return edit.kept(reaches)


def _in_order(
    edits: Sequence[Edit], first: Int[np.ndarray, " row"], n_layers: int
) -> tuple[Int[np.ndarray, " edited"], list[Edit]]:
    """The rows that are edited at all, in the order of their first edit, and the edits of rows
    counted in that order."""
    edited = first <= moment(whole_site("ln_final_normalized"), n_layers)
    order = first.argsort(kind="stable")[: edited.sum()]
    rank = np.empty_like(first)
    rank[order] = np.arange(len(order))
    return order, [_ranked(edit, rank) for edit in edits]


def _ranked(edit: Edit, rank: Int[np.ndarray, " row"]) -> Edit:
    row, value = rank[edit.row], edit.value
    if isinstance(value, np.ndarray):
        value = rank[value]
    if (row[1:] >= row[:-1]).all():
        return Edit(edit.site, row, edit.index, value)
    by_row = row.argsort(kind="stable")
    return Edit(edit.site, row, edit.index, value).at(by_row)


def _between(edit: Edit, start: int, stop: int) -> Edit:
    lo, hi = edit.row.searchsorted((start, stop)).tolist()
    some = edit.at(slice(lo, hi))
    return replace(some, row=some.row - start)


def _table(base: Trace, site: Site, value: Tensor | float, rows: Int[np.ndarray, " batch"]) -> Edit:
    """One run's edit of one Site as a table of cells."""
    whole = base[site.whole]
    addressed = base[site]
    given = torch.as_tensor(value, dtype=whole.dtype, device=whole.device)
    try:
        given = given.expand_as(addressed)
    except RuntimeError:
        raise InputError(
            f"The value for {site} has shape {tuple(given.shape)}, but the site holds "
            f"{tuple(addressed.shape)} with the batch first: give a value of that shape or one "
            "that broadcasts to it."
        ) from None
    kind = SITE_KINDS[site.kind]
    ranges = []
    for axis, size in zip(kind.axes, whole.shape[1:], strict=False):
        at = site.pos if axis == "query_pos" else getattr(site, axis)
        ranges.append(np.arange(size) if at is None else np.array([at]))
    n_cells = addressed.shape[: addressed.ndim - kind.vector].numel()
    grid = np.meshgrid(np.arange(len(rows)), *ranges, indexing="ij")
    row, *index = (axis.ravel() for axis in grid)
    vector = addressed.shape[-1:] if kind.vector else ()
    cells = given.reshape(n_cells, *vector)
    edit = Edit(site.whole, rows[row], tuple(index), cells)
    if "key_pos" not in kind.axes:
        return edit
    _, query_pos, key_pos = edit.index
    unseen = key_pos > query_pos
    of_unseen = taken(cells, unseen.nonzero()[0])
    if (of_unseen != (0 if site.kind == "pattern" else -torch.inf)).any():
        raise InputError(
            f"The value for {site} lets a position attend to a later one, but the model is causal: "
            f"give {'0' if site.kind == 'pattern' else '-inf'} where key_pos is beyond pos."
        )
    return edit.kept(~unseen)
