"""What the model loses when LayerNorm's scale stops depending on its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.engine import trace
from interp.errors import InputError
from interp.forward import forward
from interp.inputs import Input
from interp.norms import state_names
from interp.result_sets import labelled_set
from interp.sites import Site
from interp.sphere.states import sphere_norms
from interp.weights import Weights

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer, HookedTransformerConfig


def scale_sites(cfg: HookedTransformerConfig) -> list[Site]:
    """The sites of s, in the order of the states that are read."""
    kinds = ("ln1_scale",) if cfg.attn_only else ("ln1_scale", "ln2_scale")
    blocks = [Site(kind, layer) for layer in range(cfg.n_layers) for kind in kinds]
    return [*blocks, Site("ln_final_scale")]


def frozen_scale_loss(model: HookedTransformer, input: Input) -> xr.Dataset:
    """How much worse the model predicts with each LayerNorm's scale held at its mean.

    (Heimersheim 2024, "You can remove GPT2's LayerNorm by fine-tuning", 2409.13710, without the
    fine-tuning.) Position 0 has a mean of its own: its stream often stands apart.

    Returns:
        `delta_loss` [state], nats a token, with the scale of the one LayerNorm that reads that
        state held; `joint_delta_loss`, with all held together; `loss` as the model is;
        `spread` [state], the standard deviation of the scale over its mean, positions from 1 on
        (of these very values, so 0 where there is a single one).

    Raises:
        InputError: unreadable input; fewer than two tokens; a model without normalisation.

    Cost: one forward pass for each LayerNorm and two more.
    """
    sphere_norms(model)
    sites = scale_sites(model.cfg)
    run = trace(model, input, sites=sites)
    ids = run.ids
    if ids.shape[1] < 2:
        raise InputError("One token came, but a loss needs a next one: give at least two tokens.")
    means = {site: mean_over_batch(run[site]) for site in sites}
    loss = _loss(run.logits, ids)
    deltas = [_loss(_logits(run.weights, ids, {site: means[site]}), ids) - loss for site in sites]
    joint = _loss(_logits(run.weights, ids, means), ids) - loss
    later = [run[site][:, 1:] for site in sites]
    spread = torch.stack([s.std(correction=0) / s.mean() for s in later])
    result = labelled_set(
        model,
        {
            "delta_loss": (torch.stack(deltas), ("state",), "nats"),
            "spread": (spread, ("state",), "1"),
        },
        ids=ids,
        coords={"state": state_names(model.cfg)},
    )
    return result.assign(joint_delta_loss=float(joint), loss=float(loss))


def scale_jitter(
    model: HookedTransformer, input: Input, *, size: float = 0.1, repeats: int = 4, seed: int = 0
) -> xr.Dataset:
    """How often attention and prediction change their mind when every scale is a little off.

    Each s is multiplied by 1 + size * u, u uniform in [-1, 1], anew for each LayerNorm, token and
    repeat (Menary, Kaski & Freitas 2024, 2406.17837, jitter norms by about 10 %).

    Returns:
        `pattern_flips` [layer, head], the share of queries from position 1 on whose most attended
        key changes; `prediction_flips`, the share of positions whose top token changes;
        `delta_loss`, nats a token.

    Raises:
        InputError: unreadable input; fewer than two tokens; size outside 0 to 1; no repeats; a
            model without normalisation.

    Cost: repeats + 1 forward passes.
    """
    sphere_norms(model)
    if not 0 <= size < 1 or repeats < 1:
        raise InputError(
            f"size={size} and repeats={repeats} came, but size must be from 0 to below 1 and "
            "repeats at least 1: change them."
        )
    layers = range(model.cfg.n_layers)
    patterns = [Site("pattern", layer) for layer in layers]
    run = trace(model, input, sites=patterns)
    ids = run.ids
    if ids.shape[1] < 2:
        raise InputError("One token came, but attention needs a choice: give at least two tokens.")
    generator = torch.Generator().manual_seed(seed)
    flips = torch.zeros(model.cfg.n_layers, model.cfg.n_heads)
    changed, loss = 0.0, 0.0
    for _ in range(repeats):
        seen: dict[Site, Tensor] = {}

        def jitter(site: Site, value: Tensor, seen: dict[Site, Tensor] = seen) -> Tensor:
            if site.kind.endswith("_scale"):
                noise = torch.rand(value.shape, generator=generator) * 2 - 1
                return value * (1 + size * noise.to(value))
            if site.kind == "pattern":
                seen[site] = value
            return value

        with torch.no_grad():
            final = forward(run.weights, ids, jitter)
        logits = final @ run.weights.W_U + run.weights.b_U
        for layer, site in enumerate(patterns):
            moved = seen[site][:, :, 1:].argmax(-1) != run[site][:, :, 1:].argmax(-1)
            flips[layer] += moved.float().mean((0, 2)).cpu() / repeats
        changed += float((logits.argmax(-1) != run.logits.argmax(-1)).float().mean()) / repeats
        loss += float(_loss(logits, ids)) / repeats
    result = labelled_set(
        model,
        {"pattern_flips": (flips, ("layer", "head"), "1")},
        ids=ids,
        size=size,
        repeats=repeats,
        seed=seed,
    )
    delta = loss - float(_loss(run.logits, ids))
    return result.assign(prediction_flips=changed, delta_loss=delta)


def mean_over_batch(scale: Float[Tensor, "batch pos 1"]) -> Float[Tensor, "1 pos 1"]:
    """The mean scale of position 0, and that of all later positions, at each position."""
    first, later = scale[:, :1].mean(), scale[:, 1:].mean()
    return torch.cat([first.reshape(1, 1, 1), later.expand(1, scale.shape[1] - 1, 1)], dim=1)


def _logits(
    weights: Weights, ids: Tensor, held: dict[Site, Tensor]
) -> Float[Tensor, "batch pos d_vocab"]:
    """The logits with some sites held at given values."""

    def hold(site: Site, value: Tensor) -> Tensor:
        return held[site].expand_as(value) if site in held else value

    with torch.no_grad():
        return forward(weights, ids, hold) @ weights.W_U + weights.b_U


def _loss(logits: Float[Tensor, "batch pos d_vocab"], ids: Tensor) -> Float[Tensor, ""]:
    """Mean cross-entropy of the next token."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
