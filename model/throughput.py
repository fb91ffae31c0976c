"""How fast a training step is, in FLOP, against what the machine can do."""

from __future__ import annotations

import time

import torch

from .config import GPTConfig


def flops_per_token(config: GPTConfig) -> int:
    """FLOP of one token's forward and backward pass, matrix products only.

    6 for each parameter of a matrix (2 forward, 4 backward; Kaplan et al. 2020, arXiv:2001.08361,
    section 2.1; looking an embedding up costs none), and 6 n_ctx d_model a layer for scores and
    weighted values, a causal half of the square.
    """
    d_model, d_mlp = config.d_model, config.d_mlp or 0
    matrices = config.n_layers * (4 * d_model**2 + 2 * d_model * d_mlp)
    matrices += d_model * config.d_vocab
    return 6 * matrices + 6 * config.n_layers * config.n_ctx * d_model


def matmul_rate(
    device: torch.device, dtype: torch.dtype = torch.float32, size: int = 1024
) -> float:
    """FLOP a second of a large matrix product, the fastest of six; takes about 0.1 s."""
    a = torch.randn(size, size, device=device, dtype=dtype)
    fastest = float("inf")
    for _ in range(6):
        _synchronise(device)
        start = time.perf_counter()
        torch.mm(a, a)
        _synchronise(device)
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * size**3 / fastest


def model_flops_utilisation(config: GPTConfig, tokens_per_second: float, rate: float) -> float:
    """The share of `rate` that training reaches (Chowdhery et al. 2022, arXiv:2204.02311)."""
    return tokens_per_second * flops_per_token(config) / rate


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
