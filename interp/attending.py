"""Attention of packed tokens, fused or spelled out.

Tokens of one *group* look at the same keys and values, whichever rows they belong to. To attend,
they are padded to as many for each group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.forward import attention, attention_scores, causal, mix_values

# Called with "attn_scores" and with "pattern", and what these hold; may overwrite some of it.
Write: TypeAlias = Callable[[str, Float[Tensor, "token head key"]], None]


@dataclass(frozen=True, eq=False)
class OwnKeys:
    """Keys and values that one token sees in place of those that its group looks at.

    Attributes:
        token: which token sees each of them.
        pos: the position whose key it is.
        k, v: the key and the value.
    """

    token: Int[Tensor, " own"]
    pos: Int[Tensor, " own"]
    k: Float[Tensor, "own head d_head"]
    v: Float[Tensor, "own head d_head"]


def fused(
    q: Float[Tensor, "token head d_head"],
    pos: Int[Tensor, " token"],
    group: Int[Tensor, " token"],
    K: Float[Tensor, "group key head d_head"],
    V: Float[Tensor, "group key head d_head"],
    attn_scale: float,
) -> Float[Tensor, "token head d_head"]:
    """Attention in one kernel, of tokens in the order of group and position, none twice."""
    first, (n_groups, n_keys) = int(pos.min()), K.shape[:2]
    n_slots = n_keys - first
    at = group * n_slots + (pos - first)
    dense = len(q) == n_groups * n_slots
    padded = q if dense else q.new_zeros(n_groups * n_slots, *q.shape[1:]).index_copy_(0, at, q)
    padded = padded.unflatten(0, (n_groups, n_slots))
    z = attention(padded, K, V, causal(n_keys, q.device)[first:], attn_scale).flatten(0, 1)
    return z if dense else z.index_select(0, at)


def spelled_out(
    q: Float[Tensor, "token head d_head"],
    pos: Int[Tensor, " token"],
    group: Int[Tensor, " token"],
    K: Float[Tensor, "group key head d_head"],
    V: Float[Tensor, "group key head d_head"],
    attn_scale: float,
    write: Write,
    own: OwnKeys | None = None,
) -> Float[Tensor, "token head d_head"]:
    """Attention through its scores and its pattern, which `write` may change."""
    order = group.argsort(stable=True)
    count = torch.bincount(group, minlength=len(K))
    slot = torch.empty_like(group)
    slot[order] = torch.arange(len(group), device=group.device)
    slot -= (count.cumsum(0) - count)[group]
    n_slots = int(count.max())
    padded = q.new_zeros(len(K), n_slots, *q.shape[1:])
    padded[group, slot] = q
    at = group.new_zeros(len(K), n_slots)
    at[group, slot] = pos
    visible = torch.arange(K.shape[1], device=q.device) <= at[..., None]
    packed = attention_scores(padded, K, visible, attn_scale).transpose(1, 2)[group, slot]
    if own is not None:
        scores = (own.k * q[own.token]).sum(-1) / attn_scale
        packed[own.token, :, own.pos] = scores
    write("attn_scores", packed)
    packed = packed.softmax(dim=-1)
    write("pattern", packed)
    of_own = torch.zeros_like(q)
    if own is not None:
        of_own.index_add_(0, own.token, packed[own.token, :, own.pos][..., None] * own.v)
        packed[own.token, :, own.pos] = 0
    pattern = q.new_zeros(len(K), n_slots, *packed.shape[1:])
    pattern[group, slot] = packed
    return of_own + mix_values(pattern.transpose(1, 2), V)[group, slot]
