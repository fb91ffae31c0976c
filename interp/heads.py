"""What heads move, and what happens when they look elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import SCORE_UNITS, attention_on, pattern_scores, uniform_pattern
from interp.components import value_bias
from interp.corpus import Corpus, windows
from interp.engine import trace
from interp.errors import InputError
from interp.inputs import Input
from interp.norms import final_norm
from interp.readout import readout
from interp.replay import Progress, replay
from interp.result_sets import labelled_set
from interp.results import labelled
from interp.sites import Site
from interp.tally import over_corpus

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

# (layer, head, query position, key position)
Cell: TypeAlias = tuple[int, int, int, int]


def moved_by_heads(model: HookedTransformer, input: Input) -> xr.DataArray:
    """How much each head moves from each key to each query: pattern times |(v - v0) W_O|.

    An attention weight says where a head looks, not whether anything worth the name comes from
    there: a head at rest looks at a position whose value is nearly nothing (Kobayashi et al. 2020,
    "Attention is Not Only a Weight"). v0 is what every position gives alike (`interp.components`),
    and the mean, which LayerNorm cannot see, is not counted.

    Returns:
        `moved` [batch, layer, head, query_pos, key_pos], in stream units. Divided by its sum over
        key_pos it is the value-weighted pattern.

    Raises:
        InputError: input that is not text or ids the model can read.

    Cost: one forward pass and one [pos, d_head, d_model] product a head.
    """
    layers, norm = range(model.cfg.n_layers), final_norm(model)
    run = trace(model, input, sites=[Site(kind, n) for n in layers for kind in ("v", "pattern")])
    moved = []
    for layer in layers:
        W_O = norm.centred(model.blocks[layer].attn.W_O.detach())
        v = run["v", layer] - value_bias(model, layer)
        size = torch.einsum("bkhe,hed->bhkd", v, W_O).norm(dim=-1)
        moved.append(run["pattern", layer] * size[:, :, None])
    return labelled(
        model,
        torch.stack(moved, dim=1),
        ("batch", "layer", "head", "query_pos", "key_pos"),
        name="moved",
        units="stream",
        ids=run.ids,
    )


def edit_pattern(
    model: HookedTransformer,
    input: Input,
    cells: Mapping[Cell, float],
    *,
    rescale: bool = True,
    pos: int = -1,
) -> xr.Dataset:
    """What the model says when some attention weights are other than they were.

    Args:
        cells: for each (layer, head, query, key) the weight it shall have.
        rescale: scale the other weights of an edited row so that it still sums to 1; otherwise
            they stay, and the head moves more or less than before.
        pos: the position whose logits are returned.

    Returns:
        `base` and `edited` [batch, token], logits. All cells are edited in one run, and everything
        downstream follows.

    Raises:
        InputError: unreadable input, a cell or position that does not exist, a key after its
            query, no cells, a weight outside 0 to 1, weights of a row that leave less than
            nothing for the others, or others that are all 0 and so cannot be scaled.

    Cost: one forward pass, and what the edits can reach of another.
    """
    if not cells:
        raise InputError("No cells came, but at least one attention weight is to be edited.")
    run = trace(model, input)
    rows: dict[Site, Tensor] = {}
    given: dict[Site, list[int]] = {}
    for (layer, head, query, key), weight in cells.items():
        Site("pattern", layer, head, query, key_pos=key).check(model.cfg, run.ids.shape[1])
        if key > query:
            raise InputError(
                f"Cell {(layer, head, query, key)} lets position {query} attend to a later one, "
                "but the model is causal: choose a key up to the query."
            )
        if not 0 <= weight <= 1:
            raise InputError(
                f"Cell {(layer, head, query, key)} came with weight {weight}, but attention "
                "weights lie between 0 and 1."
            )
        site = Site("pattern", layer, head, query)
        row = rows.setdefault(site, run[site].clone())
        row[:, key] = weight
        given.setdefault(site, []).append(key)
    if rescale:
        rows = {site: _rescaled(site, row, given[site]) for site, row in rows.items()}
    edited = replay(run, [rows], pos=pos)[0]
    return labelled_set(
        model,
        {
            "base": (run.logits[:, pos], ("batch", "token"), "logits"),
            "edited": (edited, ("batch", "token"), "logits"),
        },
        ids=run.ids,
        cells=tuple(cells.items()),
        rescale=rescale,
        pos=pos,
    )


def _rescaled(
    site: Site, row: Float[Tensor, "batch key_pos"], given: list[int]
) -> Float[Tensor, "batch key_pos"]:
    """The row with what was not given scaled so that it sums to 1."""
    left = 1 - row[:, given].sum(-1, keepdim=True)
    others = row.clone()
    others[:, given] = 0
    total = others.sum(-1, keepdim=True)
    nothing_left = left.abs() < 1e-12
    if (left < -1e-12).any() or ((total == 0) & ~nothing_left).any():
        raise InputError(
            f"The weights of {site} at keys {given} leave {float(left.min()):.3g} for the other "
            "keys, which cannot be had by scaling them: give weights that sum to at most 1, or "
            "rescale=False."
        )
    scaled = others * torch.where(nothing_left, 0.0, left / total.clamp_min(1e-300))
    scaled[:, given] = row[:, given]
    return scaled


def copy_suppression(model: HookedTransformer, input: Input) -> xr.Dataset:
    """Which heads look back at the token that is about to be predicted, and for or against it.

    At each query the logit lens on what the head's layer reads names a token; the head suppresses
    copying when it attends to earlier places that hold this token, and takes its logit down
    (McDougall et al. 2023, arXiv:2310.04625). A copying head does the same with the other sign.

    Returns:
        Over [batch, layer, head], means over the queries whose named token stands at or before
        them: `attention`, the weight on those places; `chance` [batch, layer], the same for
        uniform causal attention; `effect`, what is moved from those places, as direct logit
        attribution to the named token less its mean over the vocabulary: negative is suppression.
        NaN where no query qualifies.

    Raises:
        InputError: input that is not text or ids the model can read.

    Cost: one forward pass, one unembedding of all positions for each layer, and one
    [pos, d_head, pos] product a head.
    """
    layers = range(model.cfg.n_layers)
    kinds = ("resid_pre", "v", "pattern")
    last = Site("resid_post", model.cfg.n_layers - 1)
    run = trace(model, input, sites=[*(Site(kind, n) for n in layers for kind in kinds), last])
    read, n_pos = readout(model), run.ids.shape[1]
    against = read.A - read.A.mean(-1, keepdim=True)
    scale = read.norm.scale(run[last])
    causal = torch.ones(n_pos, n_pos, dtype=torch.bool, device=run.ids.device).tril()
    rows = []
    for layer in layers:
        named = read(run["resid_pre", layer]).argmax(-1)
        cells = (run.ids[:, None, :] == named[:, :, None]) & causal
        pattern = run["pattern", layer]
        directions = against.T[named] / scale
        W_O = model.blocks[layer].attn.W_O.detach()
        reads = torch.einsum("bqd,hed->bqhe", directions, W_O)
        v = run["v", layer] - value_bias(model, layer)
        effect = pattern * torch.einsum("bkhe,bqhe->bhqk", v, reads)
        uniform = uniform_pattern(n_pos, pattern).expand(len(pattern), -1, -1, -1)
        chance = attention_on(uniform, cells).expand(-1, pattern.shape[1])
        rows.append(
            torch.stack([attention_on(pattern, cells), attention_on(effect, cells), chance])
        )
    attention, effect, chance = torch.stack(rows, dim=2)
    dims = ("batch", "layer", "head")
    return labelled_set(
        model,
        {
            "attention": (attention, dims, "probability"),
            "effect": (effect, dims, "logits"),
            "chance": (chance[..., 0], dims[:2], "probability"),
        },
        ids=run.ids,
    )


def head_scores_over(
    model: HookedTransformer,
    corpus: Corpus,
    *,
    length: int | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> xr.Dataset:
    """`head_scores` averaged over a corpus, with 95 % bootstrap intervals over its windows.

    Returns:
        Over [score, layer, head]: `value`, `low`, `high`; `chance` [score], the same mean for
        uniform causal attention. `units` is a coordinate of score. NaN for a score that some
        window does not define, such as duplicates where nothing repeats.

    Raises:
        InputError: whatever `interp.corpus.windows` raises.

    Cost: one forward pass over the corpus and a few passes over its patterns, in the memory of a
    batch. Several processes share the work (`interp.corpus`).
    """
    text = windows(model, corpus, length=length)
    sites = [Site("pattern", layer) for layer in range(model.cfg.n_layers)]

    def scores(ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch score layer head"]:
        """Each window's, with chance as one more layer."""
        run = trace(model, ids, sites=sites)
        layers = [pattern_scores(run[site], ids) for site in sites]
        uniform = uniform_pattern(text.length, layers[0]).expand(len(ids), -1, -1, -1)
        chance = pattern_scores(uniform, ids).expand(-1, -1, model.cfg.n_heads)
        return torch.stack([*layers, chance], dim=1).movedim(2, 0)

    whole = over_corpus((at, scores(ids)) for at, ids in text.batches(batch_size, progress))
    low, high = whole.interval()
    dims = ("score", "layer", "head")
    return labelled_set(
        model,
        {
            "value": (whole.mean[:, :-1], dims, "see the units coordinate"),
            "low": (low[:, :-1], dims, "see the units coordinate"),
            "high": (high[:, :-1], dims, "see the units coordinate"),
            "chance": (whole.mean[:, -1, 0], ("score",), "see the units coordinate"),
        },
        coords={
            "score": list(SCORE_UNITS),
            "units": ("score", list(SCORE_UNITS.values())),
        },
        windows=len(text),
        length=text.length,
    )
