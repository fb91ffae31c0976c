"""The stream states of one run, each with the normalisation that reads it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.engine import Trace, traced
from interp.errors import InputError
from interp.inputs import Input, to_ids
from interp.norms import Norm, norms, stream_sites
from interp.sites import Site
from interp.sphere.laws import direction

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer, HookedTransformerConfig


@dataclass(frozen=True, eq=False)
class State:
    """One stream state x, the normalisation that reads it, and what that gives."""

    norm: Norm
    x: Float[Tensor, "batch pos d_model"]
    y: Float[Tensor, "batch pos d_model"]

    @cached_property
    def centred(self) -> Float[Tensor, "batch pos d_model"]:
        """x~: what the normalisation sees of x."""
        return self.norm.centred(self.x)

    @cached_property
    def direction(self) -> Float[Tensor, "batch pos d_model"]:
        """x^ = x~ / |x~|: where the state stands on the sphere; NaN for a constant row."""
        return direction(self.centred)

    @cached_property
    def s(self) -> Float[Tensor, "batch pos 1"]:
        """What the normalisation divides by."""
        return (self.centred.square().mean(-1, keepdim=True) + self.norm.eps).sqrt()


def normalized_sites(cfg: HookedTransformerConfig) -> list[Site]:
    """The sites of y, in the order of the states."""
    kinds = ("ln1_normalized",) if cfg.attn_only else ("ln1_normalized", "ln2_normalized")
    blocks = [Site(kind, layer) for layer in range(cfg.n_layers) for kind in kinds]
    return [*blocks, Site("ln_final_normalized")]


@dataclass(frozen=True, eq=False)
class States:
    """All stream states of one run, in forward order."""

    ids: Int[Tensor, "batch pos"]
    states: list[State]

    def __iter__(self) -> Iterator[State]:
        return iter(self.states)

    def __getitem__(self, index: int) -> State:
        return self.states[index]


def stream_states(model: HookedTransformer, input: Input | Trace) -> States:
    """The stream states of the model on an input; y is what the model computed, not we again.

    Raises:
        InputError: unreadable input; a model without normalisation, or one that `trace` cannot
            run and that is not merely RMSNorm's.

    Cost: one forward pass, and the states. RMSNorm models go through TransformerLens' hooks, on a
    private copy of the modules that shares the weights: slower, and as safe in threads.
    """
    readers = sphere_norms(model)
    sites = [*stream_sites(model.cfg), *normalized_sites(model.cfg)]
    if readers[-1].kind == "RMS" and not isinstance(input, Trace):
        ids = to_ids(model, input)
        held = _hooked_values(model, ids, sites)
    else:
        run = traced(model, input, sites)
        ids, held = run.ids, {site: run[site] for site in sites}
    kinds = ("resid_pre",) if model.cfg.attn_only else ("resid_pre", "resid_mid")
    stream = [held[Site(kind, layer)] for layer in range(model.cfg.n_layers) for kind in kinds]
    stream.append(held[Site("resid_post", model.cfg.n_layers - 1)])
    read = [held[site] for site in normalized_sites(model.cfg)]
    return States(ids, [State(*each) for each in zip(readers, stream, read, strict=True)])


def _hooked_values(
    model: HookedTransformer, ids: Int[Tensor, "batch pos"], sites: list[Site]
) -> dict[Site, Tensor]:
    """What sites hold, by TransformerLens' cache, without touching the model's own hooks."""
    shared = [*model.parameters(), *model.buffers(), model.tokenizer, model.cfg]
    shell = copy.deepcopy(model, {id(thing): thing for thing in shared})
    shell.reset_hooks(including_permanent=True)
    names = {site.hook_name for site in sites}
    with torch.no_grad():
        _, cache = shell.run_with_cache(ids, names_filter=lambda name: name in names)
    return {site: cache[site.hook_name] for site in sites}


def sphere_norms(model: HookedTransformer) -> list[Norm]:
    """The model's normalisations; refuses a model that has none, and so no sphere."""
    readers = norms(model)
    if readers[-1].kind == "none":
        raise InputError(
            f"Model {model.cfg.model_name!r} has no normalisation, so its stream lies on no "
            "sphere: choose a model with LN, LNPre, RMS or RMSPre."
        )
    return readers


def layernorms(model: HookedTransformer, question: str) -> list[Norm]:
    """The model's LayerNorms; refuses RMSNorm, to which `question` does not apply."""
    readers = sphere_norms(model)
    if readers[-1].kind != "LN":
        raise InputError(
            f"Model {model.cfg.model_name!r} normalises with {model.cfg.normalization_type}, "
            f"which subtracts no mean, so {question} does not arise: choose a model with LN or "
            "LNPre."
        )
    return readers
