"""Which optimizer steps which parameter, and how fast."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.optim import AdamW, Optimizer

from .gpt import GPT
from .muon import Muon
from .precision import product_dtype
from .recipe import Recipe

PEAK = "peak"
"""Of each parameter group: its learning rate before warm-up and decay."""


def make_optimizers(gpt: GPT, recipe: Recipe) -> tuple[Muon, AdamW]:
    """Muon for the blocks' matrices, AdamW for embeddings, unembedding, biases and LayerNorms."""
    matrices: list[Tensor] = []
    fused_qkv: list[Tensor] = []
    embeddings: list[Tensor] = []
    unembedding: list[Tensor] = []
    vectors: list[Tensor] = []
    for name, parameter in gpt.named_parameters():
        if parameter.ndim < 2:
            vectors.append(parameter)
        elif name.startswith("blocks."):
            (fused_qkv if "qkv" in name else matrices).append(parameter)
        elif name in ("embed.weight", "pos_embed.weight"):
            embeddings.append(parameter)
        else:
            unembedding.append(parameter)

    rate, decay = recipe.learning_rate, recipe.weight_decay
    embedding_rate = rate * (1.0 if gpt.config.tied_embeddings else recipe.embedding_rate)
    muon = Muon(
        [
            {"params": matrices, "n_stacked": 1, PEAK: rate},
            {"params": fused_qkv, "n_stacked": 3, PEAK: rate},
        ],
        lr=rate,
        momentum=recipe.momentum,
        weight_decay=decay,
        dtype=product_dtype(recipe.precision),
    )
    adamw = AdamW(
        [
            {"params": embeddings, PEAK: embedding_rate, "weight_decay": decay},
            {"params": unembedding, PEAK: rate, "weight_decay": decay},
            {"params": vectors, PEAK: rate, "weight_decay": 0.0},
        ],
        lr=rate,
        betas=recipe.betas,
        fused=True,
    )
    return muon, adamw


def set_rates(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Every group's learning rate: its peak times `factor`."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group[PEAK] * factor
