"""The same function in fewer parts: LayerNorms folded, means taken out, all in float64.

W acts on the left as in TransformerLens, x W + b; P takes the mean out of a vector; gamma and beta
are a LayerNorm's weight and bias.

    fold_ln                  x -> W: W' = P diag(gamma) W, b' = b + beta W; gamma' = 1, beta' = 0
    center_writing_weights   what writes into the stream: W' = W P, b' = b P
    center_unembed           W_U and b_U less their mean over the vocabulary
    fold_value_biases        b_O' = b_O + b_V W_O, b_V' = 0, because attention sums to 1

(Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; TransformerLens' weight
processing, which goes through float32.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from .equivalence import LOGITS, compare, gpt_sites
from .errors import ModelError
from .gpt import GPT, Block

LOG_PROBS = "log-probs"

MAY_CHANGE: Mapping[str, frozenset[str]] = {
    "fold_ln": frozenset({"unembed.hook_in"}),
    "center_writing_weights": frozenset(
        {
            "hook_embed", "hook_pos_embed", "hook_resid_pre", "hook_resid_mid", "hook_resid_post",
            "hook_attn_out", "hook_mlp_out",
        }
    ),
    "center_unembed": frozenset({LOGITS, "unembed.hook_out"}),
    "fold_value_biases": frozenset({"hook_v", "hook_z"}),
}  # fmt: skip
"""What each option may change, by the last part of a site's name; all else must stay equal."""


def fold(gpt: GPT, options: Iterable[str]) -> GPT:
    """A new GPT in float64 that predicts the same, with `options` of `MAY_CHANGE` applied.

    The order in which they are given does not matter. A tied unembedding becomes a tensor of its
    own when one of the two is changed.

    Raises:
        ModelError: when an option is unknown.

    Cost: one copy of the weights in float64.
    """
    chosen = set(options)
    if unknown := sorted(chosen - MAY_CHANGE.keys()):
        raise ModelError(f"there is no folding {unknown[0]!r}: use {', '.join(MAY_CHANGE)}.")
    folded = _with_room(gpt)
    # the order is fixed: what is centred must hold all that will be folded into it
    for option, apply in _FOLDINGS.items():
        if option in chosen:
            with torch.no_grad():
                apply(folded)
    return folded.eval()


def prove_folding(
    gpt: GPT, folded: GPT, options: Iterable[str], ids: Mapping[str, Int[Tensor, "batch pos"]]
) -> pd.DataFrame:
    """The `differences` of a Proof between a GPT and what it was folded to.

    Only sites that must stay equal are compared, and log-probs where the unembedding was centred.
    """
    changed = frozenset().union(*(MAY_CHANGE[option] for option in options))

    def both(batch: Tensor, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        before, after = gpt_sites(gpt, batch, dtype), gpt_sites(folded, batch, dtype)
        kept = {site for site in before if site.rsplit(".", 1)[-1] not in changed}
        kept -= changed
        ours = {site: value for site, value in before.items() if site in kept}
        if LOGITS in changed:
            ours[LOG_PROBS] = before[LOGITS].log_softmax(-1)
            after[LOG_PROBS] = after[LOGITS].log_softmax(-1)
        return ours, after

    return compare(both, ids)


def _with_room(gpt: GPT) -> GPT:
    """A copy in float64 that has every bias, and an unembedding of its own."""
    config = dataclasses.replace(
        gpt.config, qkv_bias=True, bias=True, unembed_bias=True, tied_embeddings=False
    )
    with torch.device("meta"):
        room = GPT(config)
    there = gpt.state_dict()
    state = {
        name: there[name].detach().to(torch.float64, copy=True)
        if name in there
        else torch.zeros(parameter.shape, dtype=torch.float64, device=gpt.device)
        for name, parameter in room.state_dict().items()
    }
    room.load_state_dict(state, assign=True)
    return room


def _fold_ln(gpt: GPT) -> None:
    readers: list[tuple[torch.nn.LayerNorm, torch.nn.Linear]] = [(gpt.ln_final, gpt.unembed)]
    for block in gpt.layers:
        readers.append((block.ln1, block.attn.qkv_proj))
        if block.ln2 is not None and block.mlp is not None:
            readers.append((block.ln2, block.mlp.in_proj))
    for ln, linear in readers:
        linear.bias.add_(linear.weight @ ln.bias)
        linear.weight.mul_(ln.weight)
        # a normalized vector has no mean, so what would read it may go
        linear.weight.sub_(linear.weight.mean(dim=1, keepdim=True))
        ln.weight.fill_(1.0)
        ln.bias.zero_()


def _fold_value_biases(gpt: GPT) -> None:
    for block in gpt.layers:
        _, _, b_V = block.attn.qkv_proj.bias.chunk(3)
        block.attn.out_proj.bias.add_(block.attn.out_proj.weight @ b_V)
        b_V.zero_()


def _center_writing_weights(gpt: GPT) -> None:
    gpt.embed.weight.sub_(gpt.embed.weight.mean(dim=1, keepdim=True))
    gpt.pos_embed.weight.sub_(gpt.pos_embed.weight.mean(dim=1, keepdim=True))
    for linear in (linear for block in gpt.layers for linear in _writers(block)):
        linear.weight.sub_(linear.weight.mean(dim=0))
        linear.bias.sub_(linear.bias.mean())


def _center_unembed(gpt: GPT) -> None:
    gpt.unembed.weight.sub_(gpt.unembed.weight.mean(dim=0))
    gpt.unembed.bias.sub_(gpt.unembed.bias.mean())


def _writers(block: Block) -> list[torch.nn.Linear]:
    return [block.attn.out_proj, *([block.mlp.out_proj] if block.mlp is not None else [])]


_FOLDINGS: Mapping[str, Callable[[GPT], None]] = {
    "fold_ln": _fold_ln,
    "fold_value_biases": _fold_value_biases,
    "center_writing_weights": _center_writing_weights,
    "center_unembed": _center_unembed,
}
