"""How much of the stream is place, how much is text, and how far back the model looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from interp.corpus import Corpus, Windows, from_all, windows
from interp.engine import trace
from interp.errors import InputError
from interp.norms import final_norm, state_names, stream_sites
from interp.replay import Progress
from interp.result_sets import labelled_set
from interp.tally import over_corpus

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def position_token_split(
    model: HookedTransformer,
    corpus: Corpus,
    *,
    length: int | None = None,
    at_most: int = 512,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The analysis of variance of the stream: position, context and what is neither.

    A state h of window c at position t is mu + pos_t + ctx_c + resid, with pos_t and ctx_c the
    means over windows and over positions (Song & Zhong 2023, arXiv:2310.04861). In a full table
    the three are orthogonal: |h - mu|^2 sums to C |pos|^2 + T |ctx|^2 + |resid|^2. The token at a
    position is a factor that crosses both and is not balanced, so its share depends on what is
    fitted before it, and both are given. The mean over d_model, which LayerNorm cannot see, is
    left out.

    Args:
        at_most: windows used, spread evenly over the corpus.
        length: tokens in a window; n_ctx by default.

    Returns:
        Over [state]: `total`, the variance of the stream, summed over coordinates (stream^2);
        shares of it: `position`, `context`, `residual` (they sum to 1), and by least squares
        `token` (token means alone), `token_after_position`, what they add to position, and
        `position_after_token`; `position_dims`, how many principal axes hold 95 % of |pos|^2;
        `max_cosine`, the largest |cos(pos_t, ctx_c)|.

    Raises:
        InputError: whatever `interp.corpus.windows` raises.

    Cost: one forward pass over at most `at_most` windows; memory for
    states * (windows + length + distinct tokens) * d_model numbers in float64.
    """
    text = windows(model, corpus, length=length, at_most=at_most)
    found = [part for part in from_all(_sums(model, text, batch_size, progress)) if part]
    by_position, by_token, squares = (
        torch.stack([part[i] for part in found]).sum(0) for i in range(3)
    )
    by_window = torch.cat([part[3] for part in found], dim=1)
    tokens, number = np.unique(text.rows, return_inverse=True)
    number = torch.from_numpy(number.reshape(text.rows.shape))
    count = torch.zeros(text.length, len(tokens), dtype=torch.double)
    for t in range(text.length):
        count[t] = torch.bincount(number[:, t], minlength=len(tokens)).double()

    n_windows, n_pos = text.rows.shape
    n = n_windows * n_pos
    mu = by_position.sum(1, keepdim=True) / n
    pos, ctx = by_position / n_windows - mu, by_window / n_pos - mu
    total = squares - n * mu[:, 0].square().sum(-1)
    of_position = n_windows * pos.square().sum((1, 2))
    of_context = n_pos * ctx.square().sum((1, 2))
    of_token = _explained(by_token, count.sum(0)) - n * mu[:, 0].square().sum(-1)
    of_both = of_token + _added(by_token, by_position, count.T)
    power = torch.linalg.svdvals(pos).square()
    held = power.cumsum(-1) / power.sum(-1, keepdim=True)
    directions = (torch.nn.functional.normalize(x, dim=-1) for x in (pos, ctx))
    cosines = torch.einsum("std,scd->stc", *directions)
    share = {
        "position": of_position,
        "context": of_context,
        "residual": total - of_position - of_context,
        "token": of_token,
        "token_after_position": of_both - of_position,
        "position_after_token": of_both - of_token,
    }
    return labelled_set(
        model,
        {
            "total": (total / n, ("state",), "stream^2"),
            **{name: (part / total, ("state",), "share") for name, part in share.items()},
            "position_dims": ((held < 0.95 - 1e-12).sum(-1) + 1, ("state",), "dimensions"),
            "max_cosine": (cosines.abs().amax((1, 2)), ("state",), "1"),
        },
        coords={"state": state_names(model.cfg)},
        windows=n_windows,
        length=n_pos,
    )


def _sums(
    model: HookedTransformer, text: Windows, batch_size: int, progress: Progress | None
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Sums of the stream over this process's windows: by position and by token [state, row,
    d_model], of its squares [state], and by window [state, window, d_model]."""
    norm, sites, tokens = final_norm(model), stream_sites(model.cfg), np.unique(text.rows)
    sums: list[Tensor] | None = None
    by_window = []
    for _, ids in text.batches(batch_size, progress):
        stream = norm.centred(trace(model, ids, sites=sites).stream.double()).cpu()
        number = torch.from_numpy(np.searchsorted(tokens, ids.cpu().numpy())).flatten()
        by_token = stream.new_zeros(len(stream), len(tokens), stream.shape[-1])
        by_token.index_add_(1, number, stream.flatten(1, 2))
        part = [stream.sum(1), by_token, stream.square().sum((1, 2, 3))]
        sums = part if sums is None else [a + b for a, b in zip(sums, part, strict=True)]
        by_window.append(stream.sum(2))
    if sums is None:
        return None
    return sums[0], sums[1], sums[2], torch.cat(by_window, dim=1)


def _explained(
    sums: Float[Tensor, "state row d_model"], count: Float[Tensor, " row"]
) -> Float[Tensor, " state"]:
    """The sum of squares of the fitted means of one factor, mean included."""
    return (sums.square().sum(-1) / count).sum(-1)


def _added(
    first: Float[Tensor, "state row d_model"],
    second: Float[Tensor, "state column d_model"],
    count: Float[Tensor, "row column"],
) -> Float[Tensor, " state"]:
    """The sum of squares that the second factor's effects add to the first factor's means.

    The normal equations of both, with the first eliminated: S beta = r, where
    S = D_second - N^T N / D_first and r = (sums of second) - N^T (means of first).
    """
    rows = count.sum(1, keepdim=True)
    S = count.sum(0).diag() - count.T @ (count / rows)
    r = second - count.T @ (first / rows)
    # S is singular: a constant may move between the factors. The pseudo-inverse leaves it at 0.
    inverse = torch.linalg.pinv(S, hermitian=True, rtol=1e-10)
    return (r * (inverse @ r)).sum((1, 2))


def effective_context(
    model: HookedTransformer,
    corpus: Corpus,
    *,
    kept: Sequence[int] | None = None,
    length: int | None = None,
    at_most: int = 512,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> xr.Dataset:
    """How many of the last tokens the prediction at the end of a window really needs.

    All tokens older than the last n are replaced by those of the next window, which stand at the
    same positions, so nothing but the text changes.

    Args:
        kept: the values of n; powers of two and the whole window by default.
        at_most: windows used, spread evenly over the corpus.
        length: tokens in a window; n_ctx by default.

    Returns:
        Over [kept], means over windows of the prediction at the last position, with `_low` and
        `_high`: `kl`, KL(whole || resampled) in nats, and `top1_agreement`, how often the top
        token stays the same. Keeping the whole window gives 0 and 1.

    Raises:
        InputError: n outside 1 to the window's length, fewer than two windows, or whatever
            `interp.corpus.windows` raises.

    Cost: one forward pass over the windows for each n.
    """
    text = windows(model, corpus, length=length, at_most=at_most)
    n_pos = text.length
    powers = [2**i for i in range(n_pos.bit_length()) if 2**i < n_pos]
    sizes = [*powers, n_pos] if kept is None else list(kept)
    if len(text) < 2 or not sizes or not all(1 <= n <= n_pos for n in sizes):
        raise InputError(
            f"kept={sizes} and {len(text)} windows of {n_pos} tokens came, but 1 to {n_pos} "
            "tokens can be kept, and two windows are needed to resample from."
        )

    def measures(ids: Tensor, others: Tensor) -> Float[Tensor, "batch kept measure"]:
        whole = _last_log_probs(model, ids)
        rows = []
        for n in sizes:
            mixed = torch.cat([others[:, : n_pos - n], ids[:, n_pos - n :]], dim=1)
            log_q = _last_log_probs(model, mixed)
            kl = (whole.exp() * (whole - log_q)).sum(-1)
            rows.append(torch.stack([kl, (whole.argmax(-1) == log_q.argmax(-1)).double()], -1))
        return torch.stack(rows, dim=1)

    batches = _with_next(text, batch_size, progress)
    summed = over_corpus((first, measures(ids, others)) for first, ids, others in batches)
    low, high = summed.interval()
    variables = {}
    for suffix, values in (("", summed.mean), ("_low", low), ("_high", high)):
        variables["kl" + suffix] = (values[:, 0], ("kept",), "nats")
        variables["top1_agreement" + suffix] = (values[:, 1], ("kept",), "share of windows")
    return labelled_set(model, variables, coords={"kept": sizes}, windows=len(text), length=n_pos)


def _with_next(
    text: Windows, batch_size: int, progress: Progress | None
) -> Iterator[tuple[int, Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]]:
    """Batches, each with the windows that follow its own; the first follows the last."""
    for first, ids in text.batches(batch_size, progress):
        yield first, ids, text.at((np.arange(first, first + len(ids)) + 1) % len(text))


def _last_log_probs(
    model: HookedTransformer, ids: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch token"]:
    run = trace(model, ids, sites=[])
    return run.logits_at(slice(-1, None))[:, 0].double().log_softmax(-1)
