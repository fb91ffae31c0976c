"""Repeated random tokens: the data on which a 2-layer attention-only model grows induction heads.

Each window repeats one random block; its period is random too, so that only matching tokens, not
counting positions, predicts the next one. (Olsson et al. 2022, "In-context Learning and Induction
Heads", score heads on such sequences.)
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .config import GPTConfig
from .corpus import Batch
from .errors import ModelError
from .gpt import IGNORE_INDEX

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ALPHABET = string.ascii_lowercase + "012345"
N_VALIDATION = 512
"""windows that are scored, drawn apart from those trained on"""

INDUCTION = GPTConfig(
    d_vocab=len(ALPHABET),
    n_ctx=32,
    n_layers=2,
    n_heads=4,
    d_model=64,
    d_mlp=0,
    qkv_bias=False,
)
"""The textbook's model: two layers of attention and nothing else."""


@dataclasses.dataclass(frozen=True)
class RepeatedTokens:
    """Windows of a random block repeated; only what can be predicted is a target.

    The block has 1/4 to 1/2 of the window's length, without a token twice where the vocabulary
    allows. Targets within its first copy are ignored, so the loss is that of copying: ln d_vocab
    before training, and near 0 once induction heads have formed.
    """

    d_vocab: int = len(ALPHABET)

    def batch(self, step: int, *, n_windows: int, n_ctx: int, seed: int) -> Batch:
        """Windows fixed by `seed` and `step` alone."""
        rng = np.random.default_rng((seed, step))
        order = rng.random((n_windows, self.d_vocab)).argsort(axis=1)
        periods = rng.integers(n_ctx // 4, n_ctx // 2 + 1, size=(n_windows, 1))
        places = np.arange(n_ctx + 1) % periods
        ids = np.take_along_axis(order, places % self.d_vocab, axis=1)
        targets = np.where(np.arange(1, n_ctx + 1) >= periods, ids[:, 1:], IGNORE_INDEX)
        return torch.from_numpy(ids[:, :-1].copy()), torch.from_numpy(targets)

    def validation(self, *, n_windows: int, n_ctx: int) -> Iterator[Batch]:
        for step in range(0, N_VALIDATION, n_windows):
            n = min(n_windows, N_VALIDATION - step)
            yield self.batch(step, n_windows=n, n_ctx=n_ctx, seed=2**32)

    def validation_sample(self, *, n_windows: int, n_ctx: int) -> Iterator[Batch]:
        yield self.batch(0, n_windows=n_windows, n_ctx=n_ctx, seed=2**32)

    def check_context(self, n_ctx: int) -> None:
        if n_ctx < 8:
            raise ModelError(f"the context is n_ctx={n_ctx}: a block and its copy need at least 8.")

    def describe(self) -> dict[str, Any]:
        return {"task": "induction", "d_vocab": self.d_vocab}

    @property
    def largest_id(self) -> int:
        return self.d_vocab - 1

    @property
    def source(self) -> dict[str, Any]:
        return {"task": "induction"}

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        from .tokenizer import vocabulary_tokenizer

        return vocabulary_tokenizer(ALPHABET[: self.d_vocab])
