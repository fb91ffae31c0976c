"""The model against the statistics of its text, and its loss along the context.

Every mean is over the windows of a corpus and comes with a 95 % bootstrap interval over windows
(`interp.tally`); the `low` and `high` of a quantity are those of its mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import repeated_blocks
from interp.circuits import direct_path
from interp.corpus import Corpus, Windows, windows
from interp.engine import trace
from interp.errors import InputError
from interp.ngrams import NGrams
from interp.replay import Progress
from interp.result_sets import Variable, labelled_set
from interp.tally import Tally, over_corpus, tally

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

_MEASURES = {
    "kl_model_ngram": "nats",
    "kl_ngram_model": "nats",
    "top1_agreement": "share of positions",
    "cross_entropy": "nats",
    "gap": "nats",
}


def ngram_comparison(
    model: HookedTransformer,
    ngrams: NGrams,
    corpus: Corpus,
    *,
    length: int | None = None,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Which n-gram model does the model resemble?

    Args:
        ngrams: counted on the training text (`count_ngrams`).
        corpus: text to compare on, best held out.
        length: tokens in a window; n_ctx by default.

    Returns:
        Over [order], each with `_low` and `_high`: `kl_model_ngram`, KL(model || n-gram);
        `kl_ngram_model`, the other way round; `top1_agreement`, how often both rank the same
        token first; `cross_entropy` of the n-gram model on the tokens that really come next;
        `gap`, its cross-entropy minus the model's. `model_cross_entropy`, a number. All at the
        positions of a window whose next token lies in it.

    Raises:
        InputError: n-grams of another vocabulary, or whatever `interp.corpus.windows` raises.

    Cost: one forward pass over the corpus and ngrams.order * batch_size * pos * d_vocab numbers
    at a time.
    """
    if ngrams.d_vocab != model.cfg.d_vocab:
        raise InputError(
            f"The n-grams are of {ngrams.d_vocab} tokens and the model's vocabulary has "
            f"{model.cfg.d_vocab}: count them with the model's own tokenizer."
        )
    text = _windows(model, corpus, length)

    def measures(ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch column"]:
        """Each order's, and the model's own loss as one more column."""
        log_q = trace(model, ids, sites=[]).logits.double().log_softmax(-1)[:, :-1].cpu()
        after = ids.cpu()[:, 1:, None]
        own = -log_q.gather(-1, after)[..., 0].mean(-1)
        rows = [_compare(log_q, p.log(), after, own) for p in ngrams.by_order(ids[:, :-1])]
        return torch.cat([torch.stack(rows, 1).flatten(1), own[:, None]], dim=1)

    whole = over_corpus((at, measures(ids)) for at, ids in text.batches(batch_size, progress))
    names = list(_MEASURES)
    by_order = (ngrams.order, len(names))
    variables: dict[str, Variable] = {}
    bounds = zip(("", "_low", "_high"), (whole.mean, *whole.interval()), strict=True)
    for suffix, values in bounds:
        table = values[:-1].view(by_order)
        for i, name in enumerate(names):
            variables[name + suffix] = (table[:, i], ("order",), _MEASURES[name])
    result = labelled_set(
        model,
        variables,
        coords={"order": list(range(1, ngrams.order + 1))},
        windows=len(text),
        length=text.length,
    )
    return result.assign(model_cross_entropy=float(whole.mean[-1]))


def _compare(
    log_q: Float[Tensor, "batch pos token"],
    log_p: Float[Tensor, "batch pos token"],
    after: Int[Tensor, "batch pos 1"],
    own: Float[Tensor, " batch"],
) -> Float[Tensor, "batch measure"]:
    """Each window's `_MEASURES`, of a model q and an n-gram model p."""
    loss = -log_p.gather(-1, after)[..., 0].mean(-1)
    return torch.stack(
        [
            (log_q.exp() * (log_q - log_p)).sum(-1).mean(-1),
            (log_p.exp() * (log_p - log_q)).sum(-1).mean(-1),
            (log_q.argmax(-1) == log_p.argmax(-1)).double().mean(-1),
            loss,
            loss - own,
        ],
        dim=1,
    )


def loss_by_position(
    model: HookedTransformer,
    corpus: Corpus,
    *,
    length: int | None = None,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> xr.Dataset:
    """How much the context helps: the loss at each position of a window.

    Returns:
        Over [pos], the position that predicts: `loss`, `low`, `high`, in nats. And `in_context`,
        `in_context_low`, `in_context_high`: the mean loss of the last 8 positions minus that of
        positions 8 to 15, the in-context learning score of Olsson et al. 2022 cut to a short
        context; below 0 when later tokens are predicted better. NaN in windows too short for it.

    Raises:
        InputError: whatever `interp.corpus.windows` raises.

    Cost: one forward pass over the corpus; memory of a batch and RESAMPLES * length numbers.
    """
    text = _windows(model, corpus, length)

    def losses(ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch column"]:
        each = _next_token_losses(model, ids)
        return torch.cat([each, in_context_score(each)[:, None]], dim=1)

    whole = over_corpus((at, losses(ids)) for at, ids in text.batches(batch_size, progress))
    return _along_positions(model, whole, "in_context", windows=len(text), length=text.length)


def in_context_score(losses: Float[Tensor, "batch pos"]) -> Float[Tensor, " batch"]:
    """Mean loss of the last 8 positions minus that of positions 8 to 15; NaN below 24 positions."""
    if losses.shape[1] < 24:
        return torch.full_like(losses[:, 0], torch.nan)
    return losses[:, -8:].mean(-1) - losses[:, 8:16].mean(-1)


def repeated_block_loss(
    model: HookedTransformer, *, block: int | None = None, n_blocks: int = 64, seed: int = 0
) -> xr.Dataset:
    """The loss on random tokens, read twice: what in-context copying is worth.

    Args:
        block: tokens in a block; min(n_ctx // 2, 32) by default. See `induction_scores`.
        n_blocks: how many blocks are read.

    Returns:
        Over [pos], the position that predicts: `loss`, `low`, `high`. And `second_minus_first`
        with `_low` and `_high`: the mean loss inside the second copy minus that inside the first,
        at the same places of the block. In nats.

    Raises:
        InputError: a block of fewer than two tokens or one that does not fit twice into the
            context, or fewer than two blocks.

    Cost: one forward pass over n_blocks rows of 2 * block tokens.
    """
    n_ctx = model.cfg.n_ctx
    block = min(n_ctx // 2, 32) if block is None else block
    if not 2 <= block <= n_ctx // 2 or n_blocks < 2:
        raise InputError(
            f"block={block}, n_blocks={n_blocks} came, but a block has 2 to {n_ctx // 2} tokens "
            "and at least 2 blocks are needed."
        )
    ids = repeated_blocks(model.cfg.d_vocab, block, n_blocks, seed).to(model.unembed.W_U.device)
    losses = _next_token_losses(model, ids)
    gain = losses[:, block:].mean(-1) - losses[:, : block - 1].mean(-1)
    whole = tally(torch.cat([losses, gain[:, None]], dim=1), 0)
    settings = {"block": block, "n_blocks": n_blocks, "seed": seed}
    return _along_positions(model, whole, "second_minus_first", **settings)


def _next_token_losses(
    model: HookedTransformer, ids: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch predicting"]:
    """-log probability of the token that comes next, at every position but the last."""
    log_probs = trace(model, ids, sites=[]).logits.log_softmax(-1)[:, :-1]
    return -log_probs.gather(-1, ids[:, 1:, None])[..., 0]


def _along_positions(
    model: HookedTransformer, whole: Tally, summary: str, **settings: int
) -> xr.Dataset:
    """Losses by position, and in the tally's last column what `summary` names, with intervals."""
    low, high = whole.interval()
    bounds = {"loss": whole.mean, "low": low, "high": high}
    result = labelled_set(
        model,
        {name: (row[:-1], ("pos",), "nats") for name, row in bounds.items()},
        ids=None,
        coords=None,
        **settings,
    )
    ends = {"": whole.mean, "_low": low, "_high": high}
    return result.assign({summary + end: float(row[-1]) for end, row in ends.items()})


def direct_path_against_bigram(model: HookedTransformer, ngrams: NGrams) -> xr.Dataset:
    """Does the path from embedding straight to unembedding hold the bigrams of the text?

    Returns:
        Over [token]: `kl`, KL(bigram || direct path), and `kl_unigram`, KL(bigram || unigram),
        what a path that knows no token would score; nats. `share`, the text's frequency of the
        token. Their means by frequency: `mean_kl`, `mean_kl_unigram`.

    Raises:
        InputError: n-grams of another vocabulary or of order 1.

    Cost: a few [d_vocab, d_vocab] tables.
    """
    if ngrams.d_vocab != model.cfg.d_vocab or ngrams.order < 2:
        raise InputError(
            f"N-grams of order {ngrams.order} on {ngrams.d_vocab} tokens came, but bigrams on the "
            f"model's {model.cfg.d_vocab} are needed: count them with its own tokenizer."
        )
    every = torch.arange(ngrams.d_vocab)[:, None]
    bigram = ngrams.probabilities(every, 2)[:, 0]
    unigram = ngrams.probabilities(every[:1], 1)[0]
    log_q = torch.from_numpy(direct_path(model).to_numpy()).double()
    share = torch.zeros(ngrams.d_vocab, dtype=torch.double)
    counts = ngrams.counts[0].double()
    share[ngrams.keys[0]] = counts / counts.sum()
    kl = (bigram * (bigram.log() - log_q)).sum(-1)
    kl_unigram = (bigram * (bigram.log() - unigram.log())).sum(-1)
    result = labelled_set(
        model,
        {
            "kl": (kl, ("token",), "nats"),
            "kl_unigram": (kl_unigram, ("token",), "nats"),
            "share": (share, ("token",), "share of the text"),
        },
    )
    return result.assign(
        mean_kl=float((share * kl).sum()), mean_kl_unigram=float((share * kl_unigram).sum())
    )


def _windows(model: HookedTransformer, corpus: Corpus, length: int | None) -> Windows:
    text = windows(model, corpus, length=length)
    if text.length < 2:
        raise InputError(
            "Windows of 1 token came, but a loss needs a next token: ask for a length of 2 or more."
        )
    return text
