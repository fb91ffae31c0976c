"""The course GPT written the plain way: one Linear a head and projection, an explicit softmax.

What training speed is compared with, and a second opinion on the model's mathematics.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import GPTConfig
from model.gpt import GPT


class Head(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        d_model, d_head, n_ctx = config.d_model, config.d_model // config.n_heads, config.n_ctx
        self.query = nn.Linear(d_model, d_head, bias=config.qkv_bias)
        self.key = nn.Linear(d_model, d_head, bias=config.qkv_bias)
        self.value = nn.Linear(d_model, d_head, bias=config.qkv_bias)
        self.register_buffer("mask", torch.ones(n_ctx, n_ctx).tril() == 0, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        n_pos = x.shape[1]
        pattern = scores.masked_fill(self.mask[:n_pos, :n_pos], float("-inf")).softmax(dim=-1)
        return pattern @ v


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        assert config.d_mlp
        d_model = config.d_model
        self.ln1 = nn.LayerNorm(d_model, eps=config.eps)
        self.heads = nn.ModuleList(Head(config) for _ in range(config.n_heads))
        self.out_proj = nn.Linear(d_model, d_model)
        self.ln2 = nn.LayerNorm(d_model, eps=config.eps)
        self.in_proj = nn.Linear(d_model, config.d_mlp)
        self.mlp_out = nn.Linear(config.d_mlp, d_model)

    def forward(self, resid: Tensor) -> Tensor:
        normalised = self.ln1(resid)
        resid = resid + self.out_proj(torch.cat([head(normalised) for head in self.heads], dim=-1))
        return resid + self.mlp_out(F.gelu(self.in_proj(self.ln2(resid))))


class PerHeadGPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.d_vocab, config.d_model)
        self.pos_embed = nn.Embedding(config.n_ctx, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.ln_final = nn.LayerNorm(config.d_model, eps=config.eps)
        self.unembed = nn.Linear(config.d_model, config.d_vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        resid = self.embed(ids) + self.pos_embed(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            resid = block(resid)
        return self.unembed(self.ln_final(resid))


@torch.no_grad()
def with_the_weights_of(gpt: GPT) -> PerHeadGPT:
    """The same function of the ids, in the plain form."""
    plain = PerHeadGPT(gpt.config).to(gpt.embed.weight.dtype)
    source = dict(gpt.named_parameters())
    for name, parameter in plain.named_parameters():
        if ".heads." not in name:
            twin = name.replace(".mlp_out.", ".mlp.out_proj.")
            twin = twin.replace(".in_proj.", ".mlp.in_proj.")
            if ".out_proj." in name:
                twin = name.replace(".out_proj.", ".attn.out_proj.")
            parameter.copy_(source[twin])
    d_head, d_model = gpt.config.d_head, gpt.config.d_model
    for layer, block in enumerate(plain.blocks):
        for head, module in enumerate(block.heads):
            for part, linear in enumerate((module.query, module.key, module.value)):
                start = part * d_model + head * d_head
                for kind, parameter in linear.named_parameters():
                    fused = source[f"blocks.{layer}.attn.qkv_proj.{kind}"]
                    parameter.copy_(fused[start : start + d_head])
    return plain
