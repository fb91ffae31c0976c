"""Edited runs of a traced prompt, as many as you like, each exact."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.engine import Trace
from interp.errors import InputError
from interp.packing import Edit, first_moments, moment, on, taken
from interp.sites import SITE_KINDS, Site, sites_of, whole_site
from interp.wavefront import Wavefront
from interp.weights import Weights

if TYPE_CHECKING:
    from transformer_lens import HookedTransformerConfig

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
        scored_positions(base, pos),
        lambda logits, _: logits[:, 0],
        batch_size=batch_size,
        max_memory=max_memory,
    )
    return logits.unflatten(0, (len(edits), n_batch))


def scored_positions(base: Trace, pos: int | None) -> Int[Tensor, " scored"]:
    """One position counted from either end, or all of them for None."""
    n_pos = base.ids.shape[1]
    if pos is None:
        return torch.arange(n_pos, device=base.ids.device)
    if not -n_pos <= pos < n_pos:
        raise InputError(
            f"The scored position is {pos}, but the prompt has {n_pos} tokens: choose one from 0 "
            f"to {n_pos - 1}, or from -1 back to {-n_pos}."
        )
    return torch.tensor([pos % n_pos], device=base.ids.device)


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
    first = first_moments(edits, len(batch), n_layers)
    edited = first <= moment(whole_site("ln_final_normalized"), n_layers)
    order = first.argsort(kind="stable")[: edited.sum()]
    rank = np.empty_like(batch)
    rank[order] = np.arange(len(order))
    ranked = [_ranked(edit, rank) for edit in edits]
    size = batch_size or max(1, max_memory // _row_bytes(base, int(at[-1]) + 1, len(at)))
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


def _wavefront(base: Trace, batch: np.ndarray, edits: list[Edit], scored: np.ndarray) -> Tensor:
    return Wavefront(base, batch, edits, scored).logits()


def _whole_runs(base: Trace, batch: np.ndarray, edits: list[Edit], scored: np.ndarray) -> Tensor:
    """Every row as a whole run, for programs that cannot be entered half-way."""

    def tap(site: Site, value: Tensor) -> Tensor:
        for edit in edits:
            if edit.site == site:
                index = tuple(on(value.device, i) for i in (edit.row, *edit.index))
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
        reaches = np.isin(edit.pos, scored)
    return edit.kept(reaches)


def _ranked(edit: Edit, rank: Int[np.ndarray, " row"]) -> Edit:
    row = rank[edit.row]
    if (row[1:] >= row[:-1]).all():
        return Edit(edit.site, row, edit.index, edit.value)
    by_row = row.argsort(kind="stable")
    index = tuple(i[by_row] for i in edit.index)
    return Edit(edit.site, row[by_row], index, taken(edit.value, by_row))


def _between(edit: Edit, start: int, stop: int) -> Edit:
    lo, hi = edit.row.searchsorted((start, stop)).tolist()
    index = tuple(i[lo:hi] for i in edit.index)
    return Edit(edit.site, edit.row[lo:hi] - start, index, edit.value[lo:hi])


def _row_bytes(base: Trace, end: int, n_scored: int) -> int:
    """About what one row holds at its largest moment."""
    cfg = base.model.cfg
    heads = cfg.n_heads * cfg.d_head
    a_token = 4 * cfg.d_model + 8 * heads + 2 * (cfg.d_mlp or 0)
    return base.final.element_size() * (end * a_token + 2 * n_scored * cfg.d_vocab_out)


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
    edit = Edit(site.whole, rows[row], tuple(index), given.reshape(n_cells, *vector))
    if "key_pos" not in kind.axes:
        return edit
    _, query_pos, key_pos = edit.index
    unseen = key_pos > query_pos
    of_unseen = taken(edit.value, unseen.nonzero()[0])
    if (of_unseen != (0 if site.kind == "pattern" else -torch.inf)).any():
        raise InputError(
            f"The value for {site} lets a position attend to a later one, but the model is causal: "
            f"give {'0' if site.kind == 'pattern' else '-inf'} where key_pos is beyond pos."
        )
    return edit.kept(~unseen)
