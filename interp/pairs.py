"""From a cell of a head's circuit to the places in a prompt where it is at work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import xarray as xr

from interp.circuits import check_head, ov_circuit, qk_circuit
from interp.engine import trace
from interp.errors import InputError
from interp.forward import causal
from interp.inputs import Input, to_id
from interp.norms import final_norm, norms
from interp.result_sets import labelled_set
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def pair_places(
    model: HookedTransformer,
    input: Input,
    layer: int,
    head: int,
    circuit: Literal["QK", "OV"],
    token: str | int,
    other_token: str | int,
) -> xr.Dataset:
    """Where in the prompt a pair of tokens meets in a head, and what the weights give it there.

    A place of a QK pair is a query that holds `token` and a key that holds `other_token`. A place
    of an OV pair is a key that holds `token` and a query that `other_token` comes right after, so
    that attending there foretells it, or tells against it.

    Returns:
        Over [place], most attended first: `attention`, the head's, and `weight`, what the cell of
        `interp.circuits.circuit_table` amounts to with this prompt's LayerNorm scales. For QK that
        is the score's part from the two tokens' embeddings alone, cell / (s_q s_k), as in
        `score_split`; for OV what the key's embedding alone adds to the logit of `other_token` at
        the query, attention * cell / (s_k s_final). `cell` is the cell itself. `batch`,
        `query_pos` and `key_pos` are coordinates. No place is no error.

    Raises:
        InputError: unreadable input, an unknown token or circuit, or a head that the model does
            not have.

    Cost: one forward pass, and a few passes over one head's pattern.
    """
    if circuit not in ("QK", "OV"):
        raise InputError(f"Circuit {circuit!r} came, but there are 'QK' and 'OV': choose one.")
    check_head(model, layer, head)
    first, second = to_id(model, token), to_id(model, other_token)
    last = Site("resid_post", model.cfg.n_layers - 1)
    run = trace(model, input, sites=[Site("resid_pre", layer), Site("pattern", layer), last])
    holds = run.ids == first
    if circuit == "QK":
        met = holds[:, :, None] & (run.ids == second)[:, None, :]
    else:
        comes_next = torch.zeros_like(holds)
        comes_next[:, :-1] = run.ids[:, 1:] == second
        met = comes_next[:, :, None] & holds[:, None, :]
    met = met & causal(run.ids.shape[1], met.device)
    batch, query, key = met.nonzero(as_tuple=True)
    attention = run["pattern", layer][batch, head, query, key]

    norm = norms(model)[layer * (1 if model.cfg.attn_only else 2)]
    scale = norm.scale(run["resid_pre", layer])[..., 0]
    make = qk_circuit if circuit == "QK" else ov_circuit
    matrix = make(model, layer, head)
    cell = matrix.A[first] @ matrix.B[:, second]
    if circuit == "QK":
        weight = cell / (scale[batch, query] * scale[batch, key])
    else:
        final = final_norm(model).scale(run[last])[..., 0]
        weight = attention * cell / (scale[batch, key] * final[batch, query])
    order = attention.argsort(descending=True, stable=True)
    unit = "score" if circuit == "QK" else "logits"
    result = labelled_set(
        model,
        {
            "attention": (attention[order], ("place",), "probability"),
            "weight": (weight[order], ("place",), unit),
        },
        ids=run.ids,
        coords={
            "batch": ("place", batch[order].tolist()),
            "query_pos": ("place", query[order].tolist()),
            "key_pos": ("place", key[order].tolist()),
        },
        layer=layer,
        head=head,
        circuit=circuit,
        token=token,
        other_token=other_token,
    )
    return result.assign(cell=float(cell))
