"""Direct logit attribution, taken further apart: by neuron, by source position, by depth.

All of it holds the final LayerNorm's scale s at what it was, so that everything adds up; what
that scale does when something is removed is in `interp.sphere.direct_effect`. A is the readout
of `interp.readout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.components import value_bias
from interp.engine import Trace, trace
from interp.errors import InputError
from interp.inputs import Input, to_id
from interp.norms import state_names, stream_sites
from interp.readout import Readout, readout
from interp.residual import positions
from interp.result_sets import labelled_set
from interp.results import labelled
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


@dataclass(frozen=True, eq=False)
class _Question:
    """A traced input and what is asked of its logits."""

    run: Trace
    read: Readout
    chosen: list[int]
    scale: Float[Tensor, "batch pos 1"]


def _ask(
    model: HookedTransformer,
    input: Input,
    target: str | int,
    contrast: str | int | None,
    pos: int | None,
    sites: Sequence[Site],
) -> _Question:
    read = readout(
        model, to_id(model, target), None if contrast is None else to_id(model, contrast)
    )
    last = Site("resid_post", model.cfg.n_layers - 1)
    run = trace(model, input, sites=[*sites, last])
    chosen = positions(pos, run.ids.shape[1])
    return _Question(run, read, chosen, read.norm.scale(run[last][:, chosen]))


def neuron_attribution(
    model: HookedTransformer,
    input: Input,
    target: str | int,
    contrast: str | int | None = None,
    *,
    pos: int | None = None,
) -> xr.Dataset:
    """What each neuron wrote into a logit: its activation times W_out's row, read by A / s.

    Args:
        target, contrast: the token whose logit is meant, and the one subtracted, if any.
        pos: one position (negative counts from the end); None for all.

    Returns:
        `part` [layer, neuron, batch, pos] and `bias` [layer, batch, pos], b_out's part, in logits.
        The neurons of a layer and its bias sum to the part of that layer's MLP in
        `direct_logit_attribution`.

    Raises:
        InputError: unreadable input, an unknown token, a position outside the prompt, or a model
            without MLPs.

    Cost: one forward pass, and one multiplication for each number returned.
    """
    need_mlp(model)
    layers = range(model.cfg.n_layers)
    asked = _ask(model, input, target, contrast, pos, [Site("mlp_post", layer) for layer in layers])
    parts, biases = [], []
    for layer in layers:
        mlp = asked.run.weights.blocks[layer].mlp
        assert mlp is not None
        writes = (mlp.W_out @ asked.read.A)[:, 0]
        post = asked.run["mlp_post", layer][:, asked.chosen]
        parts.append((post * writes / asked.scale).movedim(-1, 0))
        biases.append((mlp.b_out @ asked.read.A / asked.scale)[..., 0])
    return labelled_set(
        model,
        {
            "part": (torch.stack(parts), ("layer", "neuron", "batch", "pos"), "logits"),
            "bias": (torch.stack(biases), ("layer", "batch", "pos"), "logits"),
        },
        ids=asked.run.ids,
        coords={"pos": asked.chosen},
        target=target,
        contrast=contrast,
    )


def source_attribution(
    model: HookedTransformer,
    input: Input,
    target: str | int,
    contrast: str | int | None = None,
    *,
    pos: int | None = None,
) -> xr.DataArray:
    """What each head wrote into a logit, by the position that it read it from.

    A head's write is a sum over key positions k of pattern[q, k] (v_k - v0) W_O; each term goes
    through A / s. v0 is the part of the value that comes from every position alike
    (`interp.components`).

    Args:
        target, contrast: the token whose logit is meant, and the one subtracted, if any.
        pos: one query position (negative counts from the end); None for all.

    Returns:
        `part` [layer, head, batch, query_pos, key_pos], in logits. Its sum over key_pos is the
        head's part in `direct_logit_attribution`.

    Raises:
        InputError: unreadable input, an unknown token, or a position outside the prompt.

    Cost: one forward pass, one [batch, pos, d_head] product a head, and one multiplication for
    each number returned. W_O A is formed first, so no head's write ever is.
    """
    layers = range(model.cfg.n_layers)
    sites = [Site(kind, layer) for layer in layers for kind in ("v", "pattern")]
    asked = _ask(model, input, target, contrast, pos, sites)
    parts = []
    for layer in layers:
        reads = model.blocks[layer].attn.W_O.detach() @ asked.read.A[:, 0]
        v = asked.run["v", layer] - value_bias(model, layer)
        moved = torch.einsum("bkhe,he->bhk", v, reads)
        pattern = asked.run["pattern", layer][:, :, asked.chosen]
        parts.append(pattern * moved[:, :, None] / asked.scale[:, None])
    return labelled(
        model,
        torch.stack(parts).transpose(1, 2),
        ("layer", "head", "batch", "query_pos", "key_pos"),
        name="part",
        units="logits",
        ids=asked.run.ids,
        coords={"query_pos": asked.chosen},
        target=target,
        contrast=contrast,
    )


def accumulated_contributions(
    model: HookedTransformer,
    input: Input,
    target: str | int,
    contrast: str | int | None = None,
    *,
    pos: int | None = None,
) -> xr.DataArray:
    """Direct logit attribution summed up to each depth: every state read at the final scale.

    Differences of neighbouring states are the parts of the sublayers between them, so this adds
    up where the logit lens, which gives each state its own scale, does not. The constant bias is
    counted from the first state on.

    Args:
        target, contrast: the token whose logit is meant, and the one subtracted, if any.
        pos: one position (negative counts from the end); None for all.

    Returns:
        `accumulated` [state, batch, pos], in logits; the last state's is the logit.

    Raises:
        InputError: unreadable input, an unknown token, or a position outside the prompt.

    Cost: one forward pass, and for each state one product with a column of the unembedding.
    """
    asked = _ask(model, input, target, contrast, pos, stream_sites(model.cfg))
    stream = asked.run.stream[:, :, asked.chosen]
    return labelled(
        model,
        (stream @ asked.read.A / asked.scale + asked.read.c0)[..., 0],
        ("state", "batch", "pos"),
        name="accumulated",
        units="logits",
        ids=asked.run.ids,
        coords={"state": state_names(model.cfg), "pos": asked.chosen},
        target=target,
        contrast=contrast,
    )


def need_mlp(model: HookedTransformer) -> None:
    """Refuses a model without MLPs, and so without neurons."""
    if model.cfg.attn_only:
        raise InputError(
            f"Model {model.cfg.model_name!r} has no MLP, so there are no neurons to look at: "
            "choose a model that has."
        )
