"""Where heads look: attention patterns, and what kind of head each one is.

Every score is the mean, over the queries it is defined for, of the attention that goes to a set
of key cells:

    previous_token   the key before the query                        A[q, q-1],  q >= 1
    first_token      the first key                                   A[q, 0],    q >= 1
    duplicate_token  earlier keys that hold the query's own token    A[q, k],    k < q, t_k = t_q
    induction        keys just after those, before the query itself  A[q, k+1],  k+1 < q, t_k = t_q

(Olsson et al. 2022, "In-context Learning and Induction Heads"; Wang et al. 2022 for duplicate
tokens.) `entropy` (nats) and `distance` (tokens) are means over q >= 1 as well. The query at
position 0 can only look at itself and says nothing. The chance level of each score is its exact
value for a head that attends to all keys up to the query equally.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.engine import trace
from interp.errors import InputError
from interp.inputs import Input
from interp.results import labelled
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

SCORE_UNITS = {
    "previous_token": "probability",
    "first_token": "probability",
    "duplicate_token": "probability",
    "induction": "probability",
    "entropy": "nats",
    "distance": "tokens",
}


def score_cells(
    ids: Int[Tensor, "batch pos"],
) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
    """The key cells of each kind of attention, for the queries of each row of ids."""
    batch, n_pos = ids.shape
    query = torch.arange(n_pos, device=ids.device)[:, None]
    key = torch.arange(n_pos, device=ids.device)[None, :]
    duplicate = (ids[:, :, None] == ids[:, None, :]) & (key < query)
    after = torch.zeros_like(duplicate)
    after[:, :, 1:] = duplicate[:, :, :-1]
    return {
        "previous_token": (key == query - 1).expand(batch, -1, -1),
        "first_token": ((key == 0) & (query > 0)).expand(batch, -1, -1),
        "duplicate_token": duplicate,
        "induction": after & (key < query),
    }


def attention_on(
    pattern: Float[Tensor, "batch head query_pos key_pos"],
    cells: Bool[Tensor, "batch query_pos key_pos"],
) -> Float[Tensor, "batch head"]:
    """Mean attention on `cells`, over the queries that have at least one such cell.

    NaN in a row that has none: the question does not arise there.
    """
    asked = cells.any(-1).sum(-1).to(pattern.dtype)
    return torch.einsum("bhqk,bqk->bh", pattern, cells.to(pattern.dtype)) / asked[:, None]


def pattern_scores(
    pattern: Float[Tensor, "batch head query_pos key_pos"], ids: Int[Tensor, "batch pos"]
) -> Float[Tensor, "score batch head"]:
    """All six scores of attention patterns, in the order of `SCORE_UNITS`.

    Cost: a few passes over the pattern, which is also the memory it takes.
    """
    n_pos = ids.shape[-1]
    position = torch.arange(n_pos, device=ids.device, dtype=pattern.dtype)
    shares = [attention_on(pattern, cells) for cells in score_cells(ids).values()]
    later = pattern[:, :, 1:]
    entropy = torch.special.entr(later).sum(-1).mean(-1)
    distance = (position[1:] - later @ position).mean(-1)
    return torch.stack([*shares, entropy, distance])


def uniform_pattern(n_pos: int, like: Tensor) -> Float[Tensor, "1 1 query_pos key_pos"]:
    """The chance head: equal attention to every key up to the query."""
    tril = torch.ones(n_pos, n_pos, dtype=like.dtype, device=like.device).tril()
    return (tril / tril.sum(-1, keepdim=True))[None, None]


def attention_patterns(model: HookedTransformer, input: Input) -> xr.DataArray:
    """How much each query attends to each key, in every head.

    Returns:
        `pattern` [batch, layer, head, query_pos, key_pos], probabilities: each row sums to 1 and
        cells after the query are 0.

    Raises:
        InputError: input that is not text or ids the model can read.

    Cost: one forward pass; n_layers * n_heads * pos^2 numbers for each row of the batch.
    """
    run = trace(model, input, sites=_pattern_sites(model))
    pattern = torch.stack([run["pattern", layer] for layer in range(model.cfg.n_layers)], dim=1)
    return labelled(
        model,
        pattern,
        ("batch", "layer", "head", "query_pos", "key_pos"),
        name="pattern",
        units="probability",
        ids=run.ids,
    )


def _pattern_sites(model: HookedTransformer) -> list[Site]:
    return [Site("pattern", layer) for layer in range(model.cfg.n_layers)]


def head_scores(model: HookedTransformer, input: Input) -> xr.Dataset:
    """What kind of head each head is, on this input, beside chance.

    Returns:
        `value` [score, batch, layer, head]: previous_token, first_token, duplicate_token,
        induction (probabilities), entropy (nats) and distance (tokens), as this module defines
        them; `chance` [score, batch]: the same for uniform causal attention. `units` is a
        coordinate along score. NaN where no query qualifies (no repeated token, or one position).

    Raises:
        InputError: input that is not text or ids the model can read.

    Cost: one forward pass and a few passes over its patterns, a layer at a time.
    """
    run = trace(model, input, sites=_pattern_sites(model))
    ids, n_pos = run.ids, run.ids.shape[-1]
    layers = [pattern_scores(run["pattern", layer], ids) for layer in range(model.cfg.n_layers)]
    uniform = uniform_pattern(n_pos, layers[0]).expand(len(ids), -1, -1, -1)
    values = labelled(
        model,
        torch.stack(layers, dim=2),
        ("score", "batch", "layer", "head"),
        name="value",
        units="see the units coordinate",
        ids=ids,
        coords={"score": list(SCORE_UNITS)},
    )
    chance = pattern_scores(uniform, ids)[:, :, 0]
    return _scored(values, {"chance": (("score", "batch"), chance.cpu().numpy())})


def _scored(values: xr.DataArray, beside: dict[str, tuple]) -> xr.Dataset:
    """A Dataset of scores with what to compare them with, and the unit of each score."""
    units = [SCORE_UNITS[score] for score in values["score"].to_numpy()]
    scored = values.to_dataset().assign(beside).assign_coords(units=("score", units))
    return scored.assign_attrs(values.attrs)


def repeated_blocks(d_vocab: int, block: int, n_blocks: int, seed: int) -> Int[Tensor, "batch pos"]:
    """Random blocks of token ids, each followed by itself.

    Without replacement inside a block where the vocabulary allows it, so that the second copy of
    a token has exactly one earlier occurrence.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = torch.ones(n_blocks, d_vocab)
    drawn = torch.multinomial(weights, block, replacement=d_vocab < block, generator=generator)
    return torch.cat([drawn, drawn], dim=1)


def shuffled_copies(ids: Int[Tensor, "batch pos"], seed: int) -> Int[Tensor, "batch pos"]:
    """The same blocks with the second copy out of order, no token in its own place."""
    first = ids[:, : ids.shape[-1] // 2]
    generator = torch.Generator().manual_seed(seed + 1)
    cycle = torch.argsort(torch.rand(first.shape, generator=generator), dim=1)
    order = torch.empty_like(cycle).scatter_(1, cycle, cycle.roll(1, 1))
    return torch.cat([first, first.gather(1, order)], dim=1)


def induction_scores(
    model: HookedTransformer, *, block: int | None = None, n_blocks: int = 16, seed: int = 0
) -> xr.Dataset:
    """Previous-token, duplicate-token and induction attention on random repeated blocks.

    The model reads a block of random tokens twice, without BOS. Scores are means over the second
    copy: A[q, q-1], A[q, q-S] and A[q, q-S+1] for block length S (prefix matching, Olsson et al.
    2022). In the control the second copy is a shuffle of the block: the same cells, nothing to
    match.

    Args:
        block: tokens in a block; min(n_ctx // 2, 32) by default.
        n_blocks: how many blocks are averaged.
        seed: of the random tokens.

    Returns:
        `value`, `control` [score, layer, head]: means over blocks; `stderr` [score, layer, head]:
        standard error of `value` over blocks; `chance` [score]: uniform causal attention.

    Raises:
        InputError: a block that is shorter than two tokens or does not fit twice into the context,
            or fewer than two blocks.

    Cost: two forward passes over n_blocks rows of 2*block tokens.
    """
    cfg = model.cfg
    block = min(cfg.n_ctx // 2, 32) if block is None else block
    if not 2 <= block <= cfg.n_ctx // 2:
        raise InputError(
            f"A block of {block} tokens came; it must have at least 2 and fit twice into the "
            f"context of {cfg.n_ctx}: choose block from 2 to {cfg.n_ctx // 2}."
        )
    if n_blocks < 2:
        raise InputError(
            f"n_blocks={n_blocks} came; the standard error needs at least 2: ask for more blocks."
        )
    ids = repeated_blocks(cfg.d_vocab, block, n_blocks, seed)
    values = _copy_scores(model, ids)
    control = _copy_scores(model, shuffled_copies(ids, seed))
    uniform = uniform_pattern(2 * block, values)[0, 0]
    offsets = torch.tensor(list(_copy_offsets(block).values()))
    scores = labelled(
        model,
        values.mean(1),
        ("score", "layer", "head"),
        name="value",
        units="probability",
        coords={"score": list(_copy_offsets(block))},
        block=block,
        n_blocks=n_blocks,
        seed=seed,
    )
    dims = ("score", "layer", "head")
    chance = [uniform.diagonal(-int(offset))[block - int(offset) :].mean() for offset in offsets]
    return _scored(
        scores,
        {
            "control": (dims, control.mean(1).cpu().numpy()),
            "stderr": (dims, (values.std(1) / n_blocks**0.5).cpu().numpy()),
            "chance": (("score",), np.array([float(level) for level in chance])),
        },
    )


def _copy_offsets(block: int) -> dict[str, int]:
    """How far back each kind of head looks from the second copy of a block."""
    return {"previous_token": 1, "duplicate_token": block, "induction": block - 1}


def _copy_scores(
    model: HookedTransformer, ids: Int[Tensor, "batch pos"]
) -> Float[Tensor, "score batch layer head"]:
    """Mean attention at each offset from the second copy, [score, batch, layer, head]."""
    run, block = trace(model, ids, sites=_pattern_sites(model)), ids.shape[-1] // 2
    layers = []
    for layer in range(model.cfg.n_layers):
        pattern = run["pattern", layer]
        layers.append(
            torch.stack(
                [
                    pattern.diagonal(-offset, -2, -1)[..., block - offset :].mean(-1)
                    for offset in _copy_offsets(block).values()
                ]
            )
        )
    return torch.stack(layers, dim=2)
