"""What a run is scored by: numbers read off the logits at one position or at all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.inputs import to_id

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

Target: TypeAlias = str | int | Sequence[str] | Sequence[int]


@dataclass(frozen=True, eq=False)
class Runs:
    """The unedited runs that a metric may compare with, at the scored positions.

    Attributes:
        next_ids: the token that follows each scored position in the base prompts, -1 at the end.
        base: logits of the base run.
        source: logits of the source run; None where there is none, as in an ablation.
    """

    next_ids: Int[Tensor, "batch scored"]
    base: Float[Tensor, "batch scored d_vocab_out"]
    source: Float[Tensor, "batch scored d_vocab_out"] | None = None


Score: TypeAlias = Callable[
    [Float[Tensor, "row scored d_vocab_out"], Int[Tensor, " row"], Runs], Tensor
]


@dataclass(frozen=True, eq=False)
class Metric:
    """A number for each run.

    Attributes:
        name: what it is, as in results.
        units: "logits", "nats", "1".
        pos: the scored position, counted from either end; None for all of them.
        score: called with logits, the prompt that each row of them belongs to, and the unedited
            runs; returns one number a row.
        floor: the smallest change between base and source that a fraction may be divided by.
    """

    name: str
    units: str
    pos: int | None
    score: Score
    floor: float = 0.0

    def __call__(
        self,
        logits: Float[Tensor, "row scored d_vocab_out"],
        batch: Int[Tensor, " row"],
        runs: Runs,
    ) -> Float[Tensor, " row"]:
        """One number for each row.

        Raises:
            InputError: the score's result is not one real number a row.
        """
        scores = self.score(logits, batch, runs)
        if not isinstance(scores, Tensor) or scores.shape != (len(logits),):
            came = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise InputError(
                f"Metric {self.name!r} returned {came} for {len(logits)} runs, but one number a "
                f"run is needed: return a tensor of shape ({len(logits)},)."
            )
        return scores.to(logits.dtype)


def as_metric(metric: Metric | Callable[[Tensor], Tensor]) -> Metric:
    """A Metric, or any function from logits [row, d_vocab_out] at the last position to [row].

    Raises:
        InputError: it is neither.
    """
    if isinstance(metric, Metric):
        return metric
    if not callable(metric):
        raise InputError(
            f"The metric came as {type(metric).__name__}, but one of interp.metrics or a function "
            "of logits is allowed: for example logit_difference(model, 'a', 'b')."
        )
    name = getattr(metric, "__name__", "metric")
    return Metric(name, "1", -1, lambda logits, batch, runs: metric(logits[:, 0]))


def logit_difference(
    model: HookedTransformer, target: Target, other: Target, *, pos: int = -1
) -> Metric:
    """Logit of `target` minus logit of `other`, in logits (also a difference of log-probs).

    Args:
        model: whose vocabulary the tokens come from.
        target, other: one token for all prompts, or one for each.
        pos: the scored position.
    """
    a, b = _ids(model, target), _ids(model, other)

    def score(logits: Tensor, batch: Tensor, runs: Runs) -> Tensor:
        return _pick(logits[:, 0], a, batch) - _pick(logits[:, 0], b, batch)

    return Metric("logit difference", "logits", pos, score, floor=0.1)


def log_prob(model: HookedTransformer, target: Target, *, pos: int = -1) -> Metric:
    """Log-probability of `target`, in nats."""
    a = _ids(model, target)

    def score(logits: Tensor, batch: Tensor, runs: Runs) -> Tensor:
        return _pick(logits[:, 0], a, batch) - logits[:, 0].logsumexp(-1)

    return Metric("log-probability", "nats", pos, score, floor=0.1)


def probability(model: HookedTransformer, target: Target, *, pos: int = -1) -> Metric:
    """Probability of `target`. It can hide what pushes a token down (Zhang & Nanda 2023,
    arXiv:2309.16042): look at the logit difference too."""
    of = log_prob(model, target, pos=pos).score
    return Metric("probability", "1", pos, lambda *run: of(*run).exp(), floor=0.01)


def rank(model: HookedTransformer, target: Target, *, pos: int = -1) -> Metric:
    """How many tokens have a larger logit than `target`: 0 when it is the top prediction."""
    a = _ids(model, target)

    def score(logits: Tensor, batch: Tensor, runs: Runs) -> Tensor:
        own = _pick(logits[:, 0], a, batch)
        return (logits[:, 0] > own[:, None]).sum(-1)

    return Metric("rank", "tokens", pos, score, floor=1.0)


def kl_divergence(
    reference: str = "source",
    *,
    direction: str = "from reference",
    pos: int | None = -1,
) -> Metric:
    """Kullback-Leibler divergence between the edited run and an unedited one, in nats.

    Args:
        reference: which unedited run, "source" or "base".
        direction: "from reference" is KL(reference || edited), "to reference" the other way.
        pos: the scored position; None for the mean over all.
    """
    if reference not in ("source", "base") or direction not in ("from reference", "to reference"):
        raise InputError(
            f"KL came with reference={reference!r} and direction={direction!r}, but the reference "
            "is 'source' or 'base' and the direction 'from reference' or 'to reference'."
        )

    def score(logits: Tensor, batch: Tensor, runs: Runs) -> Tensor:
        of = getattr(runs, reference)
        if of is None:
            raise InputError(
                "KL to the source run needs one, but an ablation has none: use reference='base'."
            )
        p, q = of.log_softmax(-1)[batch], logits.log_softmax(-1)
        if direction == "to reference":
            p, q = q, p
        return (p.exp() * (p - q)).sum(-1).mean(-1)

    name = f"KL({reference} || edited)" if direction[0] == "f" else f"KL(edited || {reference})"
    return Metric(name, "nats", pos, score, floor=0.1)


def cross_entropy(*, pos: int | None = None) -> Metric:
    """Mean loss of predicting the base prompt's own next tokens, in nats.

    Args:
        pos: score only the prediction made at this position; None for all but the last.
    """

    def score(logits: Tensor, batch: Tensor, runs: Runs) -> Tensor:
        expected = runs.next_ids[batch]
        known = expected >= 0
        if not known[:1].any():
            raise InputError(
                "Cross-entropy was asked for at the last position, but no token follows it: choose "
                "an earlier position."
            )
        losses = -logits.log_softmax(-1).gather(-1, expected.clamp_min(0)[..., None])[..., 0]
        return (losses * known).sum(-1) / known.sum(-1)

    return Metric("cross-entropy", "nats", pos, score, floor=0.1)


def _ids(model: HookedTransformer, target: Target) -> Int[Tensor, " one_or_batch"]:
    tokens = [target] if isinstance(target, str | int) else list(target)
    return torch.tensor([to_id(model, token) for token in tokens], device=model.cfg.device)


def _pick(
    logits: Float[Tensor, "row d_vocab_out"],
    ids: Int[Tensor, " one_or_batch"],
    batch: Int[Tensor, " row"],
) -> Float[Tensor, " row"]:
    if len(ids) > 1 and len(batch) and int(batch.max()) >= len(ids):
        raise InputError(
            f"The metric has {len(ids)} target tokens for more prompts than that: give one token "
            "for all prompts, or one for each."
        )
    wanted = ids[batch] if len(ids) > 1 else ids.expand(len(batch))
    return logits.gather(-1, wanted[:, None])[:, 0]
