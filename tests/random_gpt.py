"""GPTs with every parameter random and odd, distinct sizes."""

from __future__ import annotations

from typing import Any

import torch

from model import GPT, GPTConfig

SIZES = {"d_vocab": 11, "n_ctx": 7, "n_layers": 2, "n_heads": 3, "d_model": 15}

VARIANTS: dict[str, dict[str, Any]] = {
    "course": {"qkv_bias": False},
    "nanogpt": {},
    "nanogpt without biases": {"qkv_bias": False, "bias": False, "tied_embeddings": True},
    "tanh GELU, tied": {"act_fn": "gelu_new", "tied_embeddings": True},
    "ReLU, biased unembedding, scaled by width": {
        "act_fn": "relu",
        "unembed_bias": True,
        "attn_scale": 15**0.5,
    },
    "scores divided by the layer's number too": {"scale_attn_by_inverse_layer_idx": True},
    "narrow MLP, large epsilon": {"d_mlp": 13, "eps": 0.1},
    "attention-only": {"d_mlp": 0},
    "dropout": {"dropout": 0.3},
}


def random_gpt(seed: int = 0, dtype: torch.dtype = torch.float64, **settings: Any) -> GPT:
    """LayerNorm weights and all biases are random too: a fresh LayerNorm hides mistakes."""
    gpt = GPT(GPTConfig(**(SIZES | settings))).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in gpt.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.5 * drawn + (parameter.ndim == 1) * 0.3)
    return gpt


def random_ids(seed: int = 0, batch: int = 3, pos: int = 7, d_vocab: int = 11) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(d_vocab, (batch, pos), generator=generator)
