"""What the residual stream says at each depth, and who wrote it.

The logit lens reads every stream state as if it were the last one. Direct logit attribution reads
the last state as a sum of writes. Both go through the model's own final normalisation with its
gain and bias, folded or not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from interp.components import attention_constants, heads_read, write_kinds
from interp.engine import Trace, trace
from interp.errors import InputError
from interp.inputs import Input, to_id, without_padding
from interp.logit_question import LogitQuestion, ask
from interp.norms import state_names, stream_sites
from interp.readout import readout
from interp.result_sets import Variable, labelled_set
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def logit_lens(
    model: HookedTransformer,
    input: Input,
    *,
    target: str | int | None = None,
    top: int = 5,
    logits: bool = False,
) -> xr.Dataset:
    """What the model would predict if it stopped after each sublayer.

    lens_l = ln_final(x_l) W_U + b_U, with the mean and scale of x_l itself (nostalgebraist 2020,
    "interpreting GPT: the logit lens"). The last state's lens is the model's output.

    Args:
        target: the token to follow; by default, at each position, the one that the model ends up
            ranking first.
        top: how many of the best tokens to return at each state.
        logits: also return `logits` [state, batch, pos, token].

    Returns:
        Over [state, batch, pos]: `top_ids` and `top_probability` (with a further axis `top`, best
        first); `probability` and `rank` of the followed token (rank 0 is best);
        `cross_entropy` of the token that really comes next, NaN at the last position; `entropy`;
        `kl_to_final`, KL(final || lens), these three in nats.
        Over [batch, pos]: `followed`, the token id; `depth`, the index of the first state from
        which on the top token stays what it is at the end.

    Raises:
        InputError: unreadable input, an unknown target, or `top` outside 1 to d_vocab.

    Cost: one forward pass and one unembedding of all positions for each state. Memory for a few
    [batch, pos, d_vocab] tensors, and for one more each state when logits are asked for.
    """
    return read_states(model, input, None, target=target, top=top, logits=logits)


def read_states(
    model: HookedTransformer,
    input: Input,
    translate: Callable[[Tensor], Tensor] | None,
    *,
    target: str | int | None,
    top: int,
    logits: bool,
    **settings: Hashable,
) -> xr.Dataset:
    """What the logit lens returns, of the states as `translate` changes them.

    Args:
        translate: takes and returns all states, [state, batch, pos, d_model], and must leave the
            last one as it is; None changes nothing.
    """
    if not 1 <= top <= model.cfg.d_vocab:
        raise InputError(
            f"top={top} came, but the vocabulary has {model.cfg.d_vocab} tokens: "
            f"ask for 1 to {model.cfg.d_vocab}."
        )
    fixed = None if target is None else to_id(model, target)
    run = trace(model, input, sites=stream_sites(model.cfg))
    read = readout(model)
    final = read(run.stream[-1]).log_softmax(-1)
    likeliest = without_padding(model, final).argmax(-1)
    followed = likeliest if fixed is None else torch.full_like(run.ids, fixed)

    states = []
    for x in run.stream if translate is None else translate(run.stream):
        lens = read(x)
        log_probs = lens.log_softmax(-1)
        states.append(_lens_measures(log_probs, final, run.ids, followed))
        best = without_padding(model, log_probs).topk(top, dim=-1)
        states[-1] |= {"top_ids": best.indices, "top_probability": best.values.exp()}
        if logits:
            states[-1]["logits"] = lens
    measures = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    settled = measures["top_ids"][..., 0] == measures["top_ids"][-1, ..., 0]
    stays = settled.flip(0).cumprod(0).sum(0)

    dims = ("state", "batch", "pos")
    variables: dict[str, Variable] = {
        name: (values, (*dims, *_LENS_AXES.get(name, ())), _LENS_UNITS[name])
        for name, values in measures.items()
    }
    variables["followed"] = (followed, dims[1:], "token id")
    variables["depth"] = (len(states) - stays, dims[1:], "state index")
    return labelled_set(
        model,
        variables,
        ids=run.ids,
        coords={"state": state_names(model.cfg)},
        target=target,
        **settings,
    )


_LENS_AXES = {"top_ids": ("top",), "top_probability": ("top",), "logits": ("token",)}
_LENS_UNITS = {
    "top_ids": "token id",
    "top_probability": "probability",
    "probability": "probability",
    "rank": "tokens ranked above",
    "cross_entropy": "nats",
    "entropy": "nats",
    "kl_to_final": "nats",
    "logits": "logits",
}


def _lens_measures(
    log_probs: Float[Tensor, "batch pos token"],
    final: Float[Tensor, "batch pos token"],
    ids: Int[Tensor, "batch pos"],
    followed: Int[Tensor, "batch pos"],
) -> dict[str, Tensor]:
    """What the lens reports about one state beside its top tokens, from its log-probabilities."""
    probs, final_probs = log_probs.exp(), final.exp()
    of_followed = log_probs.gather(-1, followed[..., None])
    next_log_prob = log_probs[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    unknown_end = torch.full_like(log_probs[:, :1, 0], torch.nan)
    return {
        "probability": of_followed[..., 0].exp(),
        "rank": (log_probs > of_followed).sum(-1),
        "cross_entropy": torch.cat([-next_log_prob, unknown_end], dim=1),
        "entropy": -(probs * log_probs).sum(-1),
        "kl_to_final": (final_probs * (final - log_probs)).sum(-1),
    }


def direct_logit_attribution(
    model: HookedTransformer,
    input: Input | Trace,
    target: str | int | None,
    contrast: str | int | None = None,
    *,
    pos: int | None = None,
) -> xr.Dataset:
    """Who wrote the logit: the last stream state as a sum of writes, each read by the unembedding.

    A component's part is c A / s: its write c (see `interp.components`), through the final
    LayerNorm with its scale s held at what it was, its gain, and W_U. Parts and the constant
    `bias` (final LayerNorm's bias times W_U, plus b_U) sum to the logit: exactly, folded or
    not, at every position. Holding the scale makes this a sum, not a prediction of what removing
    the component does; `interp.sphere.direct_effect` gives that.

    Args:
        target: the token whose logit is taken apart; None for all tokens.
        contrast: a token whose logit is subtracted; the parts are then of the difference.
        pos: one position (negative counts from the end); None for all.

    Returns:
        `part` [component, batch, pos] in logits (with a last axis `token` when target is None);
        `logit` [batch, pos] as the model gave it; `remainder`, logit minus the sum of parts:
        rounding. `kind` (embed, head, attn_bias, mlp, bias) and `layer` (-1 for none) are
        coordinates along component.

    Raises:
        InputError: unreadable input, an unknown token, a contrast without a target, a position
            outside the prompt.

    Cost: one forward pass, and for a named token little more than the labels: W_O A is formed
    first, so no head's write ever is. With all tokens, memory for components * batch * pos *
    d_vocab numbers: choose a position then.
    """
    kinds = ("z",) if model.cfg.attn_only else ("z", "mlp_out")
    sites = [Site(kind, layer) for layer in range(model.cfg.n_layers) for kind in kinds]
    sites += [Site("embed"), Site("pos_embed")]
    asked = ask(model, input, target, contrast, pos, sites)
    part = torch.cat([*_parts(asked), asked.read.c0.expand(1, *asked.x.shape[:-1], -1)])
    logit = asked.asked(asked.run.logits_at(torch.tensor(asked.chosen)))
    remainder = logit - part.sum(0)
    labels, kind, layer = zip(*write_kinds(model), strict=True)
    return asked.answer(
        {
            "part": (asked.said(part), ("component", *asked.axes), "logits"),
            "logit": (asked.said(logit), asked.axes, "logits"),
            "remainder": (asked.said(remainder), asked.axes, "logits"),
        },
        {
            "component": [*labels, "bias"],
            "kind": ("component", [*kind, "bias"]),
            "layer": ("component", [*layer, -1]),
        },
    )


def _parts(asked: LogitQuestion) -> Iterator[Float[Tensor, "component batch pos token"]]:
    """c A / s of each component, in the order of `write_kinds`, a few at a time."""
    run, A, scale = asked.run, asked.read.A, asked.scale
    for kind in ("embed", "pos_embed"):
        yield (asked.at(run[kind]) @ A / scale)[None]
    for layer in range(run.model.cfg.n_layers):
        v0, bias = attention_constants(run.model, layer)
        z = asked.at(run["z", layer]) - v0
        yield heads_read(z, run.model.blocks[layer].attn.W_O.detach(), A) / scale
        yield (bias @ A / scale)[None]
        if not run.model.cfg.attn_only:
            yield (asked.at(run["mlp_out", layer]) @ A / scale)[None]
