"""The forward pass as a pure function of weights and token ids.

Each stage is a function of its own, so that `forward` (whole prompts) and `interp.wavefront`
(only the tokens that an edit reaches) run the same arithmetic. Stages take tokens in any packing:
`[..., d_model]` in, `[..., d_model]` out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.sites import Site

if TYPE_CHECKING:
    from interp.weights import Block, LayerNorm, Weights

# What stands between a site and the rest of the pass: it sees the value that the site holds and
# returns the value to go on with.
Tap: TypeAlias = Callable[[Site, Tensor], Tensor]


def scale_of(x: Float[Tensor, "... d_model"], eps: float) -> Float[Tensor, "... 1"]:
    """The divisor of LayerNorm, sqrt(variance + eps)."""
    centred = x - x.mean(-1, keepdim=True)
    return (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def normalized(
    x: Float[Tensor, "... d_model"], scale: Float[Tensor, "... 1"]
) -> Float[Tensor, "... d_model"]:
    """LayerNorm before gain and shift, with the divisor given."""
    return (x - x.mean(-1, keepdim=True)) / scale


def affine(y: Float[Tensor, "... d_model"], ln: LayerNorm) -> Float[Tensor, "... d_model"]:
    """LayerNorm's gain and shift."""
    return y if ln.gain is None or ln.shift is None else y * ln.gain + ln.shift


def project_qkv(
    read: Float[Tensor, "... d_model"], block: Block, n_heads: int
) -> tuple[Float[Tensor, "... head d_head"], ...]:
    """Queries, keys and values of all heads."""
    qkv = read @ block.W_QKV + block.b_QKV
    return qkv.unflatten(-1, (3, n_heads, -1)).unbind(-3)


def attention_scores(
    q: Float[Tensor, "group query head d_head"],
    k: Float[Tensor, "group key head d_head"],
    visible: Float[Tensor, "*group_1 query key"] | Tensor,
    attn_scale: float,
) -> Float[Tensor, "group head query key"]:
    """Scaled products of queries and keys, minus infinity where a key is not visible."""
    scores = (q.transpose(1, 2) / attn_scale) @ k.permute(0, 2, 3, 1)
    return scores.masked_fill(~visible.unsqueeze(-3), -torch.inf)


def mix_values(
    pattern: Float[Tensor, "group head query key"], v: Float[Tensor, "group key head d_head"]
) -> Float[Tensor, "group query head d_head"]:
    """Each head's values, averaged with the weights of its pattern."""
    return (pattern @ v.transpose(1, 2)).transpose(1, 2)


def causal(n_pos: int, device: torch.device) -> Tensor:
    """True where a query (row) may see a key (column)."""
    return torch.ones(n_pos, n_pos, dtype=torch.bool, device=device).tril()


def forward(
    weights: Weights, ids: Int[Tensor, "batch pos"], tap: Tap
) -> Float[Tensor, "batch pos d_model"]:
    """What the unembedding reads, at every position, with `tap` at every site on the way.

    Sites are passed in forward order. Time is that of one plain forward pass (attention is
    spelled out, since scores and pattern are sites).
    """
    cfg, n_heads = weights.cfg, weights.cfg.n_heads
    n_pos = ids.shape[1]
    visible = causal(n_pos, ids.device)

    def read(kind: str, layer: int | None, x: Tensor, ln: LayerNorm | None) -> Tensor:
        if ln is None:
            return x
        scale = tap(Site(f"{kind}_scale", layer), scale_of(x, cfg.eps))
        return affine(tap(Site(f"{kind}_normalized", layer), normalized(x, scale)), ln)

    embed = tap(Site("embed"), weights.W_E[ids])
    pos_embed = tap(Site("pos_embed"), weights.W_pos[:n_pos].expand_as(embed))
    x = embed + pos_embed
    for layer, block in enumerate(weights.blocks):
        x = tap(Site("resid_pre", layer), x)
        qkv = project_qkv(read("ln1", layer, x, block.ln1), block, n_heads)
        q, k, v = (tap(Site(kind, layer), y) for kind, y in zip("qkv", qkv, strict=True))
        scores = attention_scores(q, k, visible, block.attn_scale)
        scores = tap(Site("attn_scores", layer), scores)
        pattern = tap(Site("pattern", layer), scores.softmax(dim=-1))
        z = tap(Site("z", layer), mix_values(pattern, v))
        x = x + tap(Site("attn_out", layer), z.flatten(-2) @ block.W_O + block.b_O)
        if (mlp := block.mlp) is not None:
            x = tap(Site("resid_mid", layer), x)
            pre = read("ln2", layer, x, block.ln2) @ mlp.W_in + mlp.b_in
            post = tap(Site("mlp_post", layer), mlp.act_fn(tap(Site("mlp_pre", layer), pre)))
            x = x + tap(Site("mlp_out", layer), post @ mlp.W_out + mlp.b_out)
        x = tap(Site("resid_post", layer), x)
    return read("ln_final", None, x, weights.ln_final)
