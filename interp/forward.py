"""The forward pass as a pure function of weights and token ids.

Each stage is a function of its own, so that `forward` (whole prompts) and `interp.wavefront`
(only the tokens that an edit reaches) run the same arithmetic. Stages take tokens in any packing:
`[..., d_model]` in, `[..., d_model]` out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.sites import Site, whole_site

if TYPE_CHECKING:
    from interp.weights import Block, LayerNorm, Weights

# What stands between a site and the rest of the pass: it sees the value that the site holds and
# returns the value to go on with.
Tap: TypeAlias = Callable[[Site, Tensor], Tensor]


def centred(x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
    """What LayerNorm does first: the vector without its mean."""
    return x - x.mean(-1, keepdim=True)


def scale_of(x: Float[Tensor, "... d_model"], eps: float) -> Float[Tensor, "... 1"]:
    """The divisor of LayerNorm for a centred vector, sqrt(variance + eps)."""
    return (x.square().mean(-1, keepdim=True) + eps).sqrt()


def normalised(
    x: Float[Tensor, "... d_model"], eps: float
) -> tuple[Float[Tensor, "... d_model"], Float[Tensor, "... 1"]]:
    """LayerNorm's vector before gain and shift, and the divisor that it was divided by."""
    if torch.is_grad_enabled():  # the kernel's divisor has no gradient
        x = centred(x)
        scale = scale_of(x, eps)
        return x / scale, scale
    y, _, inverse = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
    return y, inverse.reciprocal()


def affine(y: Float[Tensor, "... d_model"], ln: LayerNorm) -> Float[Tensor, "... d_model"]:
    """LayerNorm's gain and shift."""
    if ln.gain is None or ln.shift is None:
        return y
    return torch.addcmul(ln.shift, y, ln.gain)


def layer_norm(
    x: Float[Tensor, "... d_model"], ln: LayerNorm, eps: float
) -> Float[Tensor, "... d_model"]:
    """LayerNorm in one kernel, where nobody looks at its parts."""
    return torch.layer_norm(x, x.shape[-1:], ln.gain, ln.shift, eps)


def linear(
    x: Float[Tensor, "... d_in"], W: Float[Tensor, "d_in d_out"], b: Float[Tensor, " d_out"]
) -> Float[Tensor, "... d_out"]:
    """x @ W + b in one pass."""
    return F.linear(x, W.T, b)


def project_qkv(
    read: Float[Tensor, "... d_model"], block: Block, n_heads: int
) -> tuple[Float[Tensor, "... head d_head"], ...]:
    """Queries, keys and values of all heads."""
    qkv = linear(read, block.W_QKV, block.b_QKV)
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


def attention(
    q: Float[Tensor, "group query head d_head"],
    k: Float[Tensor, "group key head d_head"],
    v: Float[Tensor, "group key head d_head"],
    attn_scale: float,
    visible: Bool[Tensor, "query key"] | None = None,
) -> Float[Tensor, "group query head d_head"]:
    """Scores, pattern and averages in one kernel, where nobody looks at what lies between. Whole
    prompts, unless it is said which keys a query sees."""
    by_head = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(
        *by_head, attn_mask=visible, is_causal=visible is None, scale=1 / attn_scale
    ).transpose(1, 2)


def causal(n_pos: int, device: torch.device) -> Tensor:
    """True where a query (row) may see a key (column)."""
    return torch.ones(n_pos, n_pos, dtype=torch.bool, device=device).tril()


def forward(
    weights: Weights,
    ids: Int[Tensor, "batch pos"],
    tap: Tap,
    sites: Collection[Site] | None = None,
) -> Float[Tensor, "batch pos d_model"]:
    """What the unembedding reads, at every position, with `tap` at the sites on the way.

    Sites are passed in forward order; `sites` are those that `tap` must see, all when left out.
    Time is that of one plain forward pass. Attention runs in one kernel where `tap` need see
    neither scores nor pattern, and is spelled out where it must.
    """
    cfg, n_heads = weights.cfg, weights.cfg.n_heads
    n_pos = ids.shape[1]

    def seen(*kinds: str, layer: int | None) -> bool:
        return sites is None or any(whole_site(kind, layer) in sites for kind in kinds)

    def read(kind: str, layer: int | None, x: Tensor, ln: LayerNorm | None) -> Tensor:
        if ln is None:
            return x
        if not seen(f"{kind}_scale", f"{kind}_normalized", layer=layer):
            return layer_norm(x, ln, cfg.eps)
        y, scale = normalised(x, cfg.eps)
        given = tap(whole_site(f"{kind}_scale", layer), scale)
        if given is not scale:
            y = centred(x) / given
        return affine(tap(whole_site(f"{kind}_normalized", layer), y), ln)

    embed = tap(whole_site("embed"), weights.W_E[ids])
    pos_embed = tap(whole_site("pos_embed"), weights.W_pos[:n_pos].expand_as(embed))
    x = embed + pos_embed
    for layer, block in enumerate(weights.blocks):
        x = tap(whole_site("resid_pre", layer), x)
        qkv = project_qkv(read("ln1", layer, x, block.ln1), block, n_heads)
        q, k, v = (tap(whole_site(kind, layer), y) for kind, y in zip("qkv", qkv, strict=True))
        if seen("attn_scores", "pattern", layer=layer):
            scores = attention_scores(q, k, causal(n_pos, ids.device), block.attn_scale)
            pattern = tap(whole_site("attn_scores", layer), scores).softmax(dim=-1)
            z = mix_values(tap(whole_site("pattern", layer), pattern), v)
        else:
            z = attention(q, k, v, block.attn_scale)
        z = tap(whole_site("z", layer), z)
        x = x + tap(whole_site("attn_out", layer), linear(z.flatten(-2), block.W_O, block.b_O))
        if (mlp := block.mlp) is not None:
            x = tap(whole_site("resid_mid", layer), x)
            y = read("ln2", layer, x, block.ln2)
            if seen("mlp_pre", "mlp_post", layer=layer):
                pre = tap(whole_site("mlp_pre", layer), linear(y, mlp.W_in, mlp.b_in))
                post = tap(whole_site("mlp_post", layer), mlp.act_fn(pre))
                out = linear(post, mlp.W_out, mlp.b_out)
            else:
                out = mlp(y)
            x = x + tap(whole_site("mlp_out", layer), out)
        x = tap(whole_site("resid_post", layer), x)
    return read("ln_final", None, x, weights.ln_final)
