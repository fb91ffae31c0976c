"""Sampling from a GPT."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .errors import ModelError
from .gpt import GPT, KeyValueCache


@torch.inference_mode()
def generate(
    gpt: GPT,
    ids: Int[Tensor, "batch pos"],
    n_new: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    use_cache: bool = True,
) -> Int[Tensor, "batch longer"]:
    """Each row of `ids` with `n_new` sampled tokens appended.

    Up to n_ctx tokens each step costs one token's forward pass on cached keys and values. Beyond
    that the model reads the last n_ctx tokens; their positions shift with every token, so each
    step costs a whole forward pass.

    Args:
        temperature: the logits are divided by it; 0 takes the most likely token.
        top_k: sample among the k most likely tokens only.
        top_p: sample among the fewest tokens whose probability sums to at least p.
        seed: makes the sample repeatable; torch's global random state is left alone.
        use_cache: False recomputes every position at every step; the result is the same.

    Raises:
        ModelError: when `ids` is empty or a setting is outside its range.
    """
    if ids.numel() == 0:
        raise ModelError("the prompt is empty: give at least one token to continue.")
    _check_settings(n_new, temperature, top_k, top_p)
    generator = torch.Generator(gpt.device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    n_ctx = gpt.config.n_ctx
    was_training = gpt.training
    gpt.eval()
    try:
        cache: KeyValueCache = []
        fed = 0
        for _ in range(n_new):
            if use_cache and ids.shape[1] <= n_ctx:
                logits = gpt(ids[:, fed:], cache)
                fed = ids.shape[1]
            else:
                logits = gpt(ids[:, -n_ctx:])
            chosen = sample(
                logits[:, -1],
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                generator=generator,
            )
            ids = torch.cat([ids, chosen[:, None]], dim=1)
    finally:
        gpt.train(was_training)
    return ids


def sample(
    logits: Float[Tensor, "batch d_vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " batch"]:
    """One token id a row, drawn from the tempered, truncated distribution.

    Equal logits at the edge of `top_k` or `top_p` are kept in the order of their ids, so that
    exactly k tokens stay.
    """
    if temperature == 0:
        return logits.argmax(dim=-1)
    ordered, order = (logits / temperature).sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        ordered[:, top_k:] = -torch.inf
    if top_p is not None:
        probability = ordered.softmax(dim=-1)
        before = probability.cumsum(dim=-1) - probability
        before[:, 0] = 0.0  # the most likely token always stays, whatever rounding left here
        ordered[before >= top_p] = -torch.inf
    drawn = torch.multinomial(ordered.softmax(dim=-1), 1, generator=generator)
    return order.gather(-1, drawn).squeeze(-1)


def _check_settings(n_new: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if n_new < 0:
        raise ModelError(f"{n_new} new tokens were asked for: give a number from 0 up.")
    if not 0 <= temperature < float("inf"):
        raise ModelError(
            f"temperature {temperature} is outside its range: give a number from 0 (greedy) up."
        )
    if top_k is not None and top_k < 1:
        raise ModelError(f"top-k {top_k} leaves no token: give a number from 1 up.")
    if top_p is not None and not 0 < top_p <= 1:
        raise ModelError(f"top-p {top_p} is outside its range: give a number above 0, at most 1.")
