"""The loss on data that a GPT was not trained on."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .corpus import Batch
from .gpt import GPT, IGNORE_INDEX, next_token_loss
from .sources import Data

TOKENS_AT_ONCE = 8192
"""in one forward pass"""
SAMPLE_WINDOWS = 64


@torch.no_grad()
def mean_loss(gpt: GPT, batches: Iterable[Batch]) -> float:
    """In nats, over every target of `batches`, without dropout."""
    was_training = gpt.training
    gpt.eval()
    total, count = 0.0, 0
    for x, y in batches:
        n_targets = int((y != IGNORE_INDEX).sum())
        loss = next_token_loss(gpt(x.to(gpt.device)), y.to(gpt.device))
        total, count = total + float(loss) * n_targets, count + n_targets
    gpt.train(was_training)
    return total / count


def validation_loss(gpt: GPT, data: Data) -> float:
    """The loss on the whole validation split, every position scored once."""
    n_ctx = gpt.config.n_ctx
    n_windows = max(1, TOKENS_AT_ONCE // n_ctx)
    return mean_loss(gpt, data.validation(n_windows=n_windows, n_ctx=n_ctx))


def validation_estimate(gpt: GPT, data: Data) -> float:
    """The loss on a fixed sample of the validation split."""
    n_ctx = gpt.config.n_ctx
    return mean_loss(gpt, data.validation_sample(n_windows=SAMPLE_WINDOWS, n_ctx=n_ctx))
