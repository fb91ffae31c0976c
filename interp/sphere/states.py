"""The stream states of one run, each with the normalisation that reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from interp.engine import Trace, trace
from interp.errors import InputError
from interp.inputs import Input
from interp.norms import Norm, norms, stream_sites
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer, HookedTransformerConfig


@dataclass(frozen=True, eq=False)
class State:
    """One stream state x, the normalisation that reads it, and what that gives."""

    norm: Norm
    x: Float[Tensor, "batch pos d_model"]
    y: Float[Tensor, "batch pos d_model"]

    @property
    def centred(self) -> Float[Tensor, "batch pos d_model"]:
        """x~: what the normalisation sees of x."""
        return self.norm.centred(self.x)


def normalized_sites(cfg: HookedTransformerConfig) -> list[Site]:
    """The sites of y, in the order of the states."""
    kinds = ("ln1_normalized",) if cfg.attn_only else ("ln1_normalized", "ln2_normalized")
    blocks = [Site(kind, layer) for layer in range(cfg.n_layers) for kind in kinds]
    return [*blocks, Site("ln_final_normalized")]


def trace_states(model: HookedTransformer, input: Input) -> Trace:
    """A trace that keeps what `states` needs and no more; refuses a model without a sphere."""
    sphere_norms(model)
    return trace(model, input, sites=[*stream_sites(model.cfg), *normalized_sites(model.cfg)])


def states(run: Trace) -> Iterator[State]:
    """The states in forward order; y is what the model itself computed, not a recomputation."""
    readers = sphere_norms(run.model)
    for norm, x, site in zip(readers, run.stream, normalized_sites(run.model.cfg), strict=True):
        yield State(norm, x, run[site])


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
