"""Who writes into the residual stream, and what.

The last stream state is a sum of writes, in forward order: `embed`, `pos_embed`, and for each
layer its heads `L0H0`, `L0H1` ..., the attention's bias `0_attn_bias`, and `0_mlp_out`.

A head writes (z - v0) W_O, where v0 = b_V + ln1's bias times W_V. Attention rows sum to 1, so v0
reaches every query whatever the head attends to: it is a constant, and belongs with b_O in the
attention's bias. Counted so, a head's write does not depend on whether LayerNorm's bias was
folded into b_V, or b_V into b_O.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.norms import attention_norm
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    from interp.engine import Trace

WriteKind = Literal["embed", "head", "attn_bias", "mlp", "attn"]


@dataclass(frozen=True, eq=False)
class Write:
    """One component's write into the stream.

    Kind `attn` is a whole attention sublayer, the sum of its heads and its bias.
    `state` is the stream state that the component's sublayer reads and adds to; None for the
    embeddings, which start the stream.
    """

    label: str
    kind: WriteKind
    layer: int | None
    state: int | None
    value: Float[Tensor, "batch pos d_model"]


def value_bias(model: HookedTransformer, layer: int) -> Float[Tensor, "head d_head"]:
    """v0 of each head of a layer: the part of its z that attention cannot change."""
    attn = model.blocks[layer].attn
    return attn.b_V.detach() + attention_norm(model, layer).bias @ attn.W_V.detach()


def attention_bias(model: HookedTransformer, layer: int) -> Float[Tensor, " d_model"]:
    """What a layer's attention writes at every position: b_O and all heads' v0 W_O."""
    return attention_constants(model, layer)[1]


def attention_constants(
    model: HookedTransformer, layer: int
) -> tuple[Float[Tensor, "head d_head"], Float[Tensor, " d_model"]]:
    """`value_bias` and `attention_bias`, the second of which is made from the first."""
    attn, v0 = model.blocks[layer].attn, value_bias(model, layer)
    return v0, attn.b_O.detach() + v0.flatten() @ attn.W_O.detach().flatten(0, 1)


def write_sites(cfg: HookedTransformerConfig) -> list[Site]:
    """What a trace must keep so that `writes`, `updates` and the stream can be had from it."""
    kinds = ["resid_pre", "z", "attn_out", "resid_post"]
    kinds += [] if cfg.attn_only else ["resid_mid", "mlp_out"]
    blocks = [Site(kind, layer) for layer in range(cfg.n_layers) for kind in kinds]
    return [Site("embed"), Site("pos_embed"), *blocks]


def write_kinds(model: HookedTransformer) -> list[tuple[str, WriteKind, int]]:
    """Label, kind and layer (-1 for the embeddings) of each of `writes`, without a forward pass."""
    cfg = model.cfg
    kinds: list[tuple[str, WriteKind, int]] = [("embed", "embed", -1), ("pos_embed", "embed", -1)]
    for layer in range(cfg.n_layers):
        kinds.extend((f"L{layer}H{head}", "head", layer) for head in range(cfg.n_heads))
        kinds.append((f"{layer}_attn_bias", "attn_bias", layer))
        if not cfg.attn_only:
            kinds.append((f"{layer}_mlp_out", "mlp", layer))
    return kinds


def heads_read(
    z: Float[Tensor, "batch pos head d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    A: Float[Tensor, "d_model token"],
) -> Float[Tensor, "head batch pos token"]:
    """z W_O A of each head, the smaller product first: for a few tokens no write is ever made."""
    if A.shape[1] <= z.shape[0] * z.shape[1]:
        return torch.einsum("bphe,het->hbpt", z, W_O @ A)
    return torch.einsum("bphe,hed->hbpd", z, W_O) @ A


def writes(run: Trace) -> Iterator[Write]:
    """Each component's write in forward order; they sum to the last stream state.

    One is made at a time: memory is that of a few [batch, pos, d_model] tensors.
    """
    model, cfg = run.model, run.model.cfg
    states_a_layer = 1 if cfg.attn_only else 2
    yield Write("embed", "embed", None, None, run["embed"])
    yield Write("pos_embed", "embed", None, None, run["pos_embed"])
    for layer in range(cfg.n_layers):
        state = states_a_layer * layer
        v0, bias = attention_constants(model, layer)
        z = run["z", layer] - v0
        W_O = model.blocks[layer].attn.W_O.detach()
        for head in range(cfg.n_heads):
            yield Write(f"L{layer}H{head}", "head", layer, state, z[:, :, head] @ W_O[head])
        constant = bias.expand_as(run.stream[0])
        yield Write(f"{layer}_attn_bias", "attn_bias", layer, state, constant)
        if not cfg.attn_only:
            yield Write(f"{layer}_mlp_out", "mlp", layer, state + 1, run["mlp_out", layer])


def updates(run: Trace) -> Iterator[Write]:
    """The writes of the sublayers in forward order, each attention's whole write before its parts.

    So the first update at each state is the whole of what its sublayer adds.
    """
    at = None
    for write in writes(run):
        if write.state is None or write.layer is None:
            continue
        if write.kind == "head" and write.state != at:
            label, whole = f"{write.layer}_attn_out", run["attn_out", write.layer]
            yield Write(label, "attn", write.layer, write.state, whole)
        at = write.state
        yield write
