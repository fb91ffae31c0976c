"""Attention scores, split by what the query and the key are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.circuits import check_head
from interp.components import write_sites
from interp.engine import Trace, trace
from interp.forward import causal
from interp.inputs import Input
from interp.norms import hop_names, norms
from interp.results import labelled
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def score_split(model: HookedTransformer, input: Input, layer: int, head: int) -> xr.DataArray:
    """One head's attention scores as a sum over pairs: what was asked by what, of what.

    Query and key are linear in the stream once LayerNorm's scales are held, and the stream is a
    sum of embedding, position and earlier sublayers; the score is bilinear, so it falls into token
    x token, token x position, position x token, position x position and later terms.

    Args:
        layer, head: whose scores.

    Returns:
        `score` [query_component, key_component, batch, query_pos, key_pos]: components are embed,
        pos_embed, each earlier sublayer (0_attn_out ...) and bias (LayerNorm's bias through W_Q
        or W_K, plus b_Q or b_K). They sum to the scores before softmax, attn_scale included. NaN
        for keys after the query. What depends on the query alone (key_component bias) moves no
        pattern.

    Raises:
        InputError: unreadable input, or a head that the model does not have.

    Cost: one forward pass, (2 layer + 3)^2 products [pos, d_head, pos].
    """
    check_head(model, layer, head)
    run = trace(model, input, sites=write_sites(model.cfg))
    n_writes = layer * (1 if model.cfg.attn_only else 2)
    sublayers = hop_names(model.cfg)[:n_writes]
    parts = _parts(run, sublayers)
    attn = model.blocks[layer].attn
    norm = norms(model)[n_writes]
    scale = norm.scale(run["resid_pre", layer])
    read = norm.centred(parts) / scale * norm.gain

    def projected(W: Tensor, b: Tensor) -> Float[Tensor, "component batch pos d_head"]:
        bias = norm.bias @ W + b
        return torch.cat([read @ W, bias.expand(1, *read.shape[1:3], -1)])

    q = projected(attn.W_Q.detach()[head], attn.b_Q.detach()[head]) / attn.attn_scale
    k = projected(attn.W_K.detach()[head], attn.b_K.detach()[head])
    scores = torch.einsum("ibqe,jbke->ijbqk", q, k)
    visible = causal(run.ids.shape[1], scores.device)
    names = ["embed", "pos_embed", *sublayers, "bias"]
    return labelled(
        model,
        scores.masked_fill(~visible, torch.nan),
        ("query_component", "key_component", "batch", "query_pos", "key_pos"),
        name="score",
        units="score",
        ids=run.ids,
        coords={"query_component": names, "key_component": names},
        layer=layer,
        head=head,
    )


def _parts(run: Trace, sublayers: list[str]) -> Float[Tensor, "component batch pos d_model"]:
    """The writes that a stream state is the sum of, attention sublayers whole."""
    outs = [label.split("_", 1) for label in sublayers]
    written = [run[Site(kind, int(at))] for at, kind in outs]
    return torch.stack([run["embed"], run["pos_embed"], *written])
