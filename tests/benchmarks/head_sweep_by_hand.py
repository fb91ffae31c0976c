"""The least that a sweep over heads takes: one script for this one question and this one shape.

All heads' z patched over all positions, a prompt pair, four lines of algebra and no generality:
both runs and all edited rows go through each block in one matrix product, rows join at their
layer, carry the suffix from the first changed token on, and in the last layer its last token
only. No site is kept, nothing is labelled, no other question can be asked of it. What any engine
adds to this is the price of being asked other questions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformer_lens import HookedTransformer

from interp.inputs import Contrast
from interp.weights import lay_out


@torch.no_grad()
def head_sweep(model: HookedTransformer, pair: Contrast) -> Tensor:
    """Logits at the last position, [layer, head, d_vocab]."""
    weights, n_heads, eps = lay_out(model), model.cfg.n_heads, model.cfg.eps
    ids = torch.cat([pair.source, pair.base])
    n_pos, d_model = ids.shape[1], model.cfg.d_model
    start = int(pair.first_difference[0])
    n_suffix = n_pos - start

    def norm(x: Tensor, ln) -> Tensor:
        return F.layer_norm(x, (d_model,), ln.gain, ln.shift, eps)

    def by_head(x: Tensor) -> Tensor:
        return x.unflatten(-1, (n_heads, -1)).transpose(-2, -3)

    def qkv(x: Tensor, block) -> tuple[Tensor, ...]:
        flat = torch.addmm(block.b_QKV, norm(x, block.ln1).flatten(0, 1), block.W_QKV)
        return tuple(map(by_head, flat.view(*x.shape[:2], -1).chunk(3, dim=-1)))

    x = weights.W_E[ids] + weights.W_pos[:n_pos]
    rows = x.new_zeros(0, n_suffix, d_model)
    visible = torch.ones(n_suffix, n_pos, dtype=torch.bool).tril(start)
    for block in weights.blocks:
        at = slice(-1, None) if block is weights.blocks[-1] else slice(None)
        q, k, v = qkv(x, block)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        joining = z[1:, start:].repeat(n_heads, 1, 1).unflatten(-1, (n_heads, -1))
        source = z[0, start:].unflatten(-1, (n_heads, -1))
        for head in range(n_heads):
            joining[head, :, head] = source[:, head]
        mixed, stream = joining.flatten(2)[:, at], x[1:, start:].expand(n_heads, -1, -1)[:, at]
        if len(rows):
            q, k_own, v_own = qkv(rows, block)
            k, v = (
                torch.cat([base[1:, :, :start].expand(len(rows), -1, -1, -1), own], dim=2)
                for base, own in ((k, k_own), (v, v_own))
            )
            out = F.scaled_dot_product_attention(q[:, :, at], k, v, attn_mask=visible[at])
            mixed = torch.cat([out.transpose(1, 2).flatten(2), mixed])
            stream = torch.cat([rows[:, at], stream])
        z, x = z[:, at], x[:, at]
        n_whole, whole, shape = z.shape[0] * z.shape[1], x.shape, stream.shape
        y = torch.cat([x.flatten(0, 1), stream.flatten(0, 1)])
        y = y + torch.addmm(block.b_O, torch.cat([z.flatten(0, 1), mixed.flatten(0, 1)]), block.W_O)
        mlp = block.mlp
        assert mlp is not None
        post = mlp.act_fn(torch.addmm(mlp.b_in, norm(y, block.ln2), mlp.W_in))
        y = y + torch.addmm(mlp.b_out, post, mlp.W_out)
        x, rows = y[:n_whole].view(whole), y[n_whole:].view(shape)
    logits = weights.unembed(norm(rows[:, -1], weights.ln_final))
    return logits.view(len(weights.blocks), n_heads, -1)
