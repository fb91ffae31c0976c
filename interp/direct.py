"""Direct logit attribution, taken further apart: by neuron, by source position, by depth.

All of it holds the final LayerNorm's scale s at what it was, so that everything adds up; what
that scale does when something is removed is in `interp.sphere.direct_effect`. A is the readout
of `interp.readout`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import xarray as xr

from interp.components import value_bias
from interp.engine import Trace
from interp.errors import InputError
from interp.inputs import Input
from interp.logit_question import ask
from interp.norms import state_names, stream_sites
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def neuron_attribution(
    model: HookedTransformer,
    input: Input | Trace,
    target: str | int | None,
    contrast: str | int | None = None,
    *,
    pos: int | None = None,
) -> xr.Dataset:
    """What each neuron wrote into a logit: its activation times W_out's row, read by A / s.

    Args:
        target, contrast: the token whose logit is meant (None: each token's), and the one
            subtracted, if any.
        pos: one position (negative counts from the end); None for all.

    Returns:
        `part` [layer, neuron, batch, pos] and `bias` [layer, batch, pos], b_out's part, in logits
        (with a last axis `token` when target is None).
        The neurons of a layer and its bias sum to the part of that layer's MLP in
        `direct_logit_attribution`.

    Raises:
        InputError: unreadable input, an unknown token, a position outside the prompt, or a model
            without MLPs.

    Cost: one forward pass, and one multiplication for each number returned.
    """
    need_mlp(model)
    layers = range(model.cfg.n_layers)
    asked = ask(model, input, target, contrast, pos, [Site("mlp_post", layer) for layer in layers])
    parts, biases = [], []
    for layer in layers:
        mlp: Any = model.blocks[layer].mlp
        writes = mlp.W_out.detach() @ asked.read.A
        post = asked.at(asked.run["mlp_post", layer])
        parts.append((post[..., None] * writes / asked.scale[..., None]).movedim(2, 0))
        biases.append(mlp.b_out.detach() @ asked.read.A / asked.scale)
    return asked.answer(
        {
            "part": (asked.said(torch.stack(parts)), ("layer", "neuron", *asked.axes), "logits"),
            "bias": (asked.said(torch.stack(biases)), ("layer", *asked.axes), "logits"),
        }
    )


def source_attribution(
    model: HookedTransformer,
    input: Input | Trace,
    target: str | int | None,
    contrast: str | int | None = None,
    *,
    pos: int | None = None,
) -> xr.DataArray:
    """What each head wrote into a logit, by the position that it read it from.

    A head's write is a sum over key positions k of pattern[q, k] (v_k - v0) W_O; each term goes
    through A / s. v0 is the part of the value that comes from every position alike
    (`interp.components`).

    Args:
        target, contrast: the token whose logit is meant (None: each token's), and the one
            subtracted, if any.
        pos: one query position (negative counts from the end); None for all.

    Returns:
        `part` [layer, head, batch, query_pos, key_pos], in logits (with a last axis `token` when
        target is None). Its sum over key_pos is the head's part in `direct_logit_attribution`.

    Raises:
        InputError: unreadable input, an unknown token, or a position outside the prompt.

    Cost: one forward pass, one [batch, pos, d_head] product a head, and one multiplication for
    each number returned. W_O A is formed first, so no head's write ever is.
    """
    layers = range(model.cfg.n_layers)
    sites = [Site(kind, layer) for layer in layers for kind in ("v", "pattern")]
    asked = ask(model, input, target, contrast, pos, sites)
    parts = []
    for layer in layers:
        reads = model.blocks[layer].attn.W_O.detach() @ asked.read.A
        v = asked.run["v", layer] - value_bias(model, layer)
        moved = torch.einsum("bkhe,het->hbkt", v, reads)
        pattern = asked.run["pattern", layer][:, :, asked.chosen].transpose(0, 1)
        parts.append(pattern[..., None] * moved[:, :, None] / asked.scale[:, :, None])
    axes = ("batch", "query_pos", "key_pos", *asked.axes[2:])
    part = (asked.said(torch.stack(parts)), ("layer", "head", *axes), "logits")
    return asked.answer({"part": part}, pos="query_pos")["part"]


def accumulated_contributions(
    model: HookedTransformer,
    input: Input | Trace,
    target: str | int | None,
    contrast: str | int | None = None,
    *,
    pos: int | None = None,
) -> xr.DataArray:
    """Direct logit attribution summed up to each depth: every state read at the final scale.

    Differences of neighbouring states are the parts of the sublayers between them, so this adds
    up where the logit lens, which gives each state its own scale, does not. The constant bias is
    counted from the first state on.

    Args:
        target, contrast: the token whose logit is meant (None: each token's), and the one
            subtracted, if any.
        pos: one position (negative counts from the end); None for all.

    Returns:
        `accumulated` [state, batch, pos], in logits (with a last axis `token` when target is
        None); the last state's is the logit.

    Raises:
        InputError: unreadable input, an unknown token, or a position outside the prompt.

    Cost: one forward pass, and for each state one product with a column of the unembedding.
    """
    asked = ask(model, input, target, contrast, pos, stream_sites(model.cfg))
    stream = asked.run.stream[:, :, asked.chosen]
    accumulated = asked.said(stream @ asked.read.A / asked.scale + asked.read.c0)
    return asked.answer(
        {"accumulated": (accumulated, ("state", *asked.axes), "logits")},
        {"state": state_names(model.cfg)},
    )["accumulated"]


def need_mlp(model: HookedTransformer) -> None:
    """Refuses a model without MLPs, and so without neurons."""
    if model.cfg.attn_only:
        raise InputError(
            f"Model {model.cfg.model_name!r} has no MLP, so there are no neurons to look at: "
            "choose a model that has."
        )
