"""Attention of packed tokens, fused or spelled out.

Tokens of one *group* look at the same keys and values, whichever rows they belong to. To attend,
they are padded to as many for each group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.forward import attention, attention_scores, mix_values
from interp.packing import Edit, Tokens, distinct, on, write

# Edits of "attn_scores" and of "pattern".
InAttention: TypeAlias = Mapping[str, Sequence[Edit]]

# Bytes of keys that rows look at together: what is larger does not stay in the cache, and memory
# fresh from the system costs more than what is written to it.
_KEYS = 2**19


@dataclass(frozen=True, eq=False)
class OwnKeys:
    """Keys and values that rows see in place of their prompt's.

    Attributes:
        at: the row that sees each of them, and the position whose key it is.
        k, v: the key and the value.
    """

    at: Tokens
    k: Float[Tensor, "own head d_head"]
    v: Float[Tensor, "own head d_head"]

    @cached_property
    def place(self) -> tuple[Int[Tensor, " own"], Int[Tensor, " own"]]:
        """Row and position, to index with."""
        return on(self.k.device, self.at.row), on(self.k.device, self.at.pos)


def row_by_row(
    q: Float[Tensor, "token head d_head"],
    tokens: Tokens,
    own: OwnKeys,
    prompt: Int[np.ndarray, " row"],
    K: Float[Tensor, "prompt key head d_head"],
    V: Float[Tensor, "prompt key head d_head"],
    attn_scale: float,
    edits: InAttention,
    apart: int = 0,
) -> Float[Tensor, "token head d_head"]:
    """Attention of rows that each look at a copy of their prompt's keys and values with their own
    written into it, as many rows at a time as the cache holds. The first `apart` rows look apart
    from the rest, unless all rows have all keys of their own."""
    n_keys = K.shape[1]
    step = max(1, _KEYS // (K[0].numel() * K.element_size()))
    edited_rows = [edit.row for of_kind in edits.values() for edit in of_kind]
    edited = set(distinct(edited_rows, len(prompt)).tolist()) if edited_rows else set()
    everywhere_own = len(own.at) == len(prompt) * n_keys
    if everywhere_own:
        apart = 0
    else:  # rows gather from these over and over, which takes longer where they lie strewn
        K, V = K.contiguous(), V.contiguous()
    bounds = [*range(0, apart, step), *range(apart, len(prompt), step), len(prompt)]
    of_q, of_k = (at.row.searchsorted(bounds).tolist() for at in (tokens, own.at))
    prompts = on(q.device, prompt)
    z = torch.empty_like(q)
    for i, (first, stop) in enumerate(pairwise(bounds)):
        some = prompts[first:stop]
        here, theirs = (slice(*of[i : i + 2]) for of in (of_q, of_k))
        n_own = theirs.stop - theirs.start
        if n_own == len(some) * n_keys:  # nothing of the prompt's is seen
            K_rows, V_rows = (x[theirs].unflatten(0, (-1, n_keys)) for x in (own.k, own.v))
        else:
            K_rows, V_rows = (every.index_select(0, some) for every in (K, V))
            at = on(q.device, own.at.key[theirs] - first * n_keys)
            K_rows.flatten(0, 1).index_copy_(0, at, own.k[theirs])
            V_rows.flatten(0, 1).index_copy_(0, at, own.v[theirs])
        asking = tokens.at(here)
        group = asking.row - first
        if edited.isdisjoint(range(first, stop)):
            z[here] = fused(q[here], asking.pos, group, K_rows, V_rows, attn_scale)
        else:
            z[here] = spelled_out(q[here], asking, group, K_rows, V_rows, attn_scale, edits)
    return z


def fused(
    q: Float[Tensor, "token head d_head"],
    pos: Int[np.ndarray, " token"],
    group: Int[np.ndarray, " token"],
    K: Float[Tensor, "group key head d_head"],
    V: Float[Tensor, "group key head d_head"],
    attn_scale: float,
) -> Float[Tensor, "token head d_head"]:
    """Attention in one kernel, of tokens in the order of group and position, none twice."""
    first, (n_groups, n_keys) = int(pos.min()), K.shape[:2]
    slots = (n_groups, n_keys - first)
    seen = on(q.device, np.tri(n_keys - first, n_keys, first, dtype=bool)) if first else None
    if len(q) == slots[0] * slots[1]:
        return attention(q.unflatten(0, slots), K, V, attn_scale, seen).flatten(0, 1)
    at = on(q.device, group * slots[1] + (pos - first))
    padded = q.new_zeros(slots[0] * slots[1], *q.shape[1:]).index_copy_(0, at, q)
    z = attention(padded.unflatten(0, slots), K, V, attn_scale, seen)
    return z.flatten(0, 1).index_select(0, at)


def spelled_out(
    q: Float[Tensor, "token head d_head"],
    tokens: Tokens,
    group: Int[np.ndarray, " token"],
    K: Float[Tensor, "group key head d_head"],
    V: Float[Tensor, "group key head d_head"],
    attn_scale: float,
    edits: InAttention,
    own: OwnKeys | None = None,
) -> Float[Tensor, "token head d_head"]:
    """Attention through its scores and its pattern, and their edits. `own` is for rows of one
    token each."""
    order, count = group.argsort(kind="stable"), np.bincount(group, minlength=len(K))
    n_slots = int(count.max())
    slot = np.empty_like(group)
    slot[order] = np.arange(len(group)) - (count.cumsum() - count).repeat(count)
    asked_from = np.zeros((len(K), n_slots), dtype=np.int64)
    asked_from[group, slot] = tokens.pos
    visible = on(q.device, np.arange(K.shape[1]) <= asked_from[..., None])
    at = on(q.device, group * n_slots + slot)

    def padded(packed: Float[Tensor, "token ..."]) -> Float[Tensor, "group slot ..."]:
        into = packed.new_zeros(len(K) * n_slots, *packed.shape[1:])
        return into.index_copy_(0, at, packed).unflatten(0, (len(K), n_slots))

    scores = attention_scores(padded(q), K, visible, attn_scale)
    packed = scores.transpose(1, 2).flatten(0, 1).index_select(0, at)
    of_own = torch.zeros_like(q)
    if own is not None:
        row, pos = own.place
        packed[row, :, pos] = (own.k * q[row]).sum(-1) / attn_scale
    write(edits.get("attn_scores", ()), tokens, packed)
    packed = packed.softmax(dim=-1)
    write(edits.get("pattern", ()), tokens, packed)
    if own is not None:
        row, pos = own.place
        of_own.index_add_(0, row, packed[row, :, pos][..., None] * own.v)
        packed[row, :, pos] = 0
    mixed = mix_values(padded(packed).transpose(1, 2), V)
    return of_own + mixed.flatten(0, 1).index_select(0, at)
