"""Rows that begin inside attention, told by what they make of z.

Up to there such a row is the base run, and its edits of q, k, v, scores and pattern each lie in
one head. So no other head's z differs, and the row may as well begin at z with what its own heads
make. A *lane* is one such head of one row. Lanes stand where `Tokens` and `Edit` say rows: they
are rows of a model of one layer and one head, whose prompts are the base run's heads. So all
layers' lanes are computed together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attending import OwnKeys, row_by_row
from interp.packing import (
    IN_ATTENTION,
    ORDER,
    SOFTMAX,
    Edit,
    Tokens,
    distinct,
    joined,
    moment,
    on,
    where_true,
    write,
)
from interp.sites import SITE_KINDS, whole_site

if TYPE_CHECKING:
    from interp.engine import Trace


def joining_at_z(
    base: Trace,
    batch: Int[np.ndarray, " row"],
    edits: Sequence[Edit],
    first: Int[np.ndarray, " row"],
    scored: Int[np.ndarray, " scored"],
) -> tuple[list[Edit], Int[np.ndarray, " row"]]:
    """The edits, and the moment of each row's first, with rows that would join inside attention
    joining at z. Arguments are as in `interp.wavefront.Wavefront`."""
    n_layers, starting, rest = base.model.cfg.n_layers, {}, []
    for edit in edits:
        if edit.site.kind not in IN_ATTENTION:
            rest.append(edit)
            continue
        starts = first[edit.row] == moment(edit.site, n_layers)
        if starts.any():
            starting.setdefault(edit.site.kind, []).append(edit.kept(starts))
        if not starts.all():
            rest.append(edit.kept(~starts))
    if not starting:
        return rest, first
    made = made_of_z(base, batch, first // len(ORDER), starting, scored)
    first = first.copy()
    for layer, edit in made.items():
        within = first == moment(whole_site("q", layer), n_layers)
        first[within] = moment(edit.site, n_layers)
    # A row's own edit of z comes after what it makes of z.
    return [*made.values(), *rest], first


def made_of_z(
    base: Trace,
    batch: Int[np.ndarray, " row"],
    layer: Int[np.ndarray, " row"],
    edits: Mapping[str, Sequence[Edit]],
    scored: Int[np.ndarray, " scored"],
) -> dict[int, Edit]:
    """For each layer, the edit of its z that edits inside its attention amount to.

    Args:
        base: the base run.
        batch: which prompt of `base` each row edits.
        layer: where each row begins; it ascends, and counts only for rows that are edited here.
        edits: by kind, "q", "k", "v", "attn_scores" or "pattern"; only of rows that begin there,
            each in the layer where it begins.
        scored: positions whose logits are wanted, ascending.
    """
    cfg, end = base.model.cfg, int(scored[-1]) + 1
    sites = {edit.site for group in edits.values() for edit in group}
    layers = sorted({site.layer for site in sites if site.layer is not None})

    def by_head(kind: str) -> Float[Tensor, "prompt pos 1 d_head"]:
        values = [base.values[whole_site(kind, at)][:, :end] for at in layers]
        return torch.cat(values).transpose(1, 2).flatten(0, 1).unsqueeze(2)

    tables = {kind: _by_lane(group, cfg.n_heads) for kind, group in edits.items()}
    every = (table.row for group in tables.values() for table in group)
    lanes = distinct(every, len(batch) * cfg.n_heads)
    nth = np.empty(len(batch) * cfg.n_heads, dtype=np.int64)
    nth[lanes] = np.arange(len(lanes))
    edits = {
        kind: [replace(table, row=nth[table.row]) for table in group]
        for kind, group in tables.items()
    }
    row, head = lanes // cfg.n_heads, lanes % cfg.n_heads
    nth_layer = np.searchsorted(layers, layer[row])
    prompt = (nth_layer * len(base.ids) + batch[row]) * cfg.n_heads + head

    def edited_tokens(*kinds: str) -> Tokens:
        of_kinds = (edit for kind in kinds for edit in edits.get(kind, ()))
        return Tokens.edited(of_kinds, len(lanes), end)

    def held(kind: str, every: Tensor, tokens: Tokens) -> Float[Tensor, "token 1 d_head"]:
        at = on(every.device, prompt[tokens.row] * end + tokens.pos)
        value = every.flatten(0, 1).index_select(0, at)
        write(edits.get(kind, ()), tokens, value)
        return value

    has_own, asked = edited_tokens("k", "v"), edited_tokens("q", *SOFTMAX)
    reached = has_own.onwards()
    if layers[-1] == cfg.n_layers - 1:
        goes_on = np.isin(reached.pos, scored) | (layer[row[reached.row]] < layers[-1])
        reached = reached.at(where_true(goes_on))
    keys = distinct((reached.key, asked.key), len(lanes) * end)
    tokens = Tokens.of(keys, end)

    Q, K, V = (by_head(kind) for kind in "qkv")
    scale = base.final.new_tensor([base.weights.blocks[at].attn_scale for at in layers])
    in_layer = nth_layer[tokens.row]
    q = held("q", Q, tokens) / scale[on(scale.device, in_layer), None, None]
    own = OwnKeys(has_own, held("k", K, has_own), held("v", V, has_own))
    in_softmax = {kind: edits.get(kind, ()) for kind in SOFTMAX}
    z = row_by_row(q, tokens, own, prompt, K, V, 1.0, in_softmax).squeeze(1)

    # Lanes ascend by row, and rows by layer.
    start = in_layer.searchsorted(range(len(layers) + 1)).tolist()
    of_row, of_head = row[tokens.row], head[tokens.row]
    made = {}
    for at, here in zip(layers, map(slice, start, start[1:]), strict=True):
        index = (tokens.pos[here], of_head[here])
        made[at] = Edit(whole_site("z", at), of_row[here], index, z[here])
    return made


def _by_lane(edits: Sequence[Edit], n_heads: int) -> list[Edit]:
    """Edits of one kind as tables for all layers, where row times `n_heads` plus head is the row.
    Edits of one layer may overlap, so each goes into a table of its own, in their order."""
    axes = SITE_KINDS[edits[0].site.kind].axes
    by_layer: dict[int | None, list[Edit]] = {}
    for edit in edits:
        by_layer.setdefault(edit.site.layer, []).append(edit)
    tables = []
    for nth in zip_longest(*by_layer.values()):
        together = [edit for edit in nth if edit is not None]
        columns = map(np.concatenate, zip(*(edit.index for edit in together), strict=True))
        index = dict(zip(axes, columns, strict=True))
        lane = np.concatenate([edit.row for edit in together]) * n_heads + index["head"]
        index["head"] = np.zeros_like(lane)
        value = joined([edit.value for edit in together])
        tables.append(Edit(together[0].site, lane, tuple(index.values()), value))
    return tables
