"""Sampling from a GPT."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .errors import ModelError
from .gpt import GPT, KeyValueCache
from .tokenizer import decode, encode, vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def generate_text(
    gpt: GPT,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    n_new: int,
    *,
    n_samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> list[str]:
    """`n_samples` continuations of a prompt, the prompt included; settings as in `generate`.

    Raises:
        ModelError: when the prompt is empty, longer than n_ctx, or holds a character outside the
            vocabulary.
    """
    ids = prompt_ids(gpt, tokenizer, prompt).expand(n_samples, -1)
    sampled = generate(
        gpt,
        ids.to(gpt.device),
        n_new,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        n_known=len(vocabulary(tokenizer)),
    )
    return [decode(tokenizer, row) for row in sampled]


def prompt_ids(gpt: GPT, tokenizer: PreTrainedTokenizerFast, prompt: str) -> Int[Tensor, "1 pos"]:
    """The ids of a prompt that fits the context; errors as in `generate_text`."""
    if not prompt:
        raise ModelError("the prompt is empty: give at least one token to continue.")
    ids = encode(tokenizer, prompt)
    if len(ids) > gpt.config.n_ctx:
        raise ModelError(
            f"the prompt has {len(ids)} tokens and the model's context is "
            f"n_ctx={gpt.config.n_ctx}: shorten it by {len(ids) - gpt.config.n_ctx}."
        )
    return ids[None]


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
    n_known: int | None = None,
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
        n_known: sample only ids below it, when the embedding is padded beyond the vocabulary.
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
        cache = KeyValueCache()
        for _ in range(n_new):
            if use_cache and ids.shape[1] <= n_ctx:
                logits = gpt(ids[:, cache.n_pos :], cache)
            else:
                logits = gpt(ids[:, -n_ctx:])
            chosen = sample(
                logits[:, -1, :n_known],
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
