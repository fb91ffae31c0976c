"""What the model says comes next: its losses on a prompt, one prediction in full, a continuation.

Temperature, top-k and top-p change what is drawn from, never what the model said: results hold
both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.engine import program_of, trace
from interp.errors import InputError
from interp.inputs import Input, to_ids, token_strings, without_padding
from interp.replay import scored_positions
from interp.result_sets import labelled_set

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def token_losses(model: HookedTransformer, input: Input) -> xr.Dataset:
    """How well the model foresaw each token of the prompt.

    Returns:
        Over [batch, pos], of the token that stands at the position, given those before it:
        `loss`, -log of its probability, and `entropy`, the loss that the model itself expected,
        both in nats; `rank`, how many tokens it held likelier. NaN at position 0, which nothing
        foretells.

    Raises:
        InputError: input that is not text or ids the model can read.

    Cost: one forward pass and its logits.
    """
    run = trace(model, input, sites=[])
    log_probs = run.logits[:, :-1].log_softmax(-1)
    given = log_probs.gather(-1, run.ids[:, 1:, None])
    measures = {
        "loss": (-given[..., 0], "nats"),
        "entropy": (-(log_probs.exp() * log_probs).sum(-1), "nats"),
        "rank": ((log_probs > given).sum(-1).to(log_probs.dtype), "tokens ranked above"),
    }
    unknown = log_probs.new_full((len(run.ids), 1), torch.nan)
    return labelled_set(
        model,
        {
            name: (torch.cat([unknown, values], dim=1), ("batch", "pos"), units)
            for name, (values, units) in measures.items()
        },
        ids=run.ids,
    )


def next_token(
    model: HookedTransformer,
    input: Input,
    *,
    pos: int = -1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> xr.Dataset:
    """The whole prediction at one position, as the model gives it and as a sampler would use it.

    Args:
        pos: where it is read; the prediction is of the token after it.
        temperature: the logits are divided by it; 0 leaves the likeliest token alone.
        top_k: keep the k likeliest tokens only.
        top_p: keep the fewest tokens whose probability sums to at least p, at that temperature
            (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", 1904.09751).

    Returns:
        Over [batch, token], without ids that only pad the embedding: `logit`; `probability`, the
        model's own; `sampled`, after temperature and cuts, 0 for a token that was cut. Over
        [batch]: `entropy`, `sampled_entropy` in nats; `kept`, how many tokens can be drawn.
        Token strings are a coordinate, `tokens`.

    Raises:
        InputError: unreadable input, a position outside the prompt, or a setting outside its
            range.

    Cost: one forward pass, one unembedded position and one sort of its logits.
    """
    run = trace(model, input, sites=[])
    read_at = scored_positions(run.ids, pos)
    logits = run.logits_at(read_at)[:, 0]
    probability = logits.softmax(-1)
    entropy = torch.special.entr(probability).sum(-1)
    named = without_padding(model, logits)
    sampled = tempered(named, temperature, top_k, top_p)
    ids = (named[0] > -torch.inf).nonzero()[:, 0]
    logits, probability, sampled = (x[:, ids] for x in (logits, probability, sampled))
    dims = ("batch", "token")
    words = token_strings(model, ids)
    return labelled_set(
        model,
        {
            "logit": (logits, dims, "logits"),
            "probability": (probability, dims, "probability"),
            "sampled": (sampled, dims, "probability"),
            "entropy": (entropy, dims[:1], "nats"),
            "sampled_entropy": (torch.special.entr(sampled).sum(-1), dims[:1], "nats"),
            "kept": ((sampled > 0).sum(-1), dims[:1], "tokens"),
        },
        ids=run.ids,
        coords={"token": ids.tolist(), "tokens": ("token", words)},
        pos=int(read_at),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    )


def continuation(
    model: HookedTransformer,
    input: Input,
    n_new: int = 1,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Tokens drawn one after the other, each from the prediction after all before it.

    Args:
        n_new: how many; prompt and continuation together must fit the context.
        temperature, top_k, top_p: as in `next_token`.
        seed: of the draws; the same seed gives the same tokens.

    Returns:
        Over [batch, pos], pos counting on from the prompt: `id`; `probability` with which it was
        drawn; `loss`, the model's own on it, in nats. `tokens` is a coordinate: joined, they are
        the text.

    Raises:
        InputError: unreadable input, n_new below 1 or beyond the context, or a setting outside
            its range.

    Cost: one forward pass for each token.
    """
    ids = to_ids(model, input)
    n_prompt, n_ctx = ids.shape[1], model.cfg.n_ctx
    if not 1 <= n_new <= n_ctx - n_prompt:
        raise InputError(
            f"{n_new} new tokens were asked for after {n_prompt}, but the model reads at most "
            f"{n_ctx} in all: "
            + (
                f"ask for 1 to {n_ctx - n_prompt}."
                if n_prompt < n_ctx
                else "shorten the prompt first."
            )
        )
    generator = torch.Generator(ids.device).manual_seed(seed)
    drawn, program = [], program_of(model)
    for _ in range(n_new):
        with torch.no_grad():
            logits = program.unembed(program.run(ids, lambda _, value: value, ())[:, -1])
        chances = tempered(without_padding(model, logits), temperature, top_k, top_p)
        chosen = torch.multinomial(chances, 1, generator=generator)
        given = chances.gather(-1, chosen), -logits.log_softmax(-1).gather(-1, chosen)
        drawn.append((chosen, *given))
        ids = torch.cat([ids, chosen], dim=1)
    id, probability, loss = (torch.cat(values, dim=1) for values in zip(*drawn, strict=True))
    dims = ("batch", "pos")
    return labelled_set(
        model,
        {
            "id": (id, dims, "token id"),
            "probability": (probability, dims, "probability"),
            "loss": (loss, dims, "nats"),
        },
        ids=ids,
        coords={"pos": list(range(n_prompt, n_prompt + n_new))},
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )


def tempered(
    logits: Float[Tensor, "batch token"],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> Float[Tensor, "batch token"]:
    """What is left to draw from, as probabilities.

    Equal logits at the edge of a cut are kept in the order of their ids, so that exactly k stay.

    Raises:
        InputError: a setting outside its range.
    """
    if not 0 <= temperature < float("inf"):
        raise InputError(
            f"Temperature {temperature} came, but it must be finite and not negative: give 0 for "
            "the likeliest token, 1 for the model's own probabilities."
        )
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k={top_k} came, which leaves no token: give 1 or more.")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"top_p={top_p} came, but a share is wanted: give more than 0, at most 1.")
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    if temperature == 0:
        ordered[..., 1:] = -torch.inf
    else:
        ordered = ordered / temperature
    if top_k is not None:
        ordered[..., top_k:] = -torch.inf
    if top_p is not None:
        probability = ordered.softmax(-1)
        before = probability.cumsum(-1) - probability
        before[..., 0] = 0.0  # the likeliest token stays, whatever rounding left here
        ordered = ordered.masked_fill(before >= top_p, -torch.inf)
    return torch.zeros_like(logits).scatter(-1, order, ordered.softmax(-1))
