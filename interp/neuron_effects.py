"""Neurons on one prompt: which wrote the logit, where one fires, what its removal does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.direct import need_mlp, neuron_attribution
from interp.engine import trace
from interp.errors import InputError
from interp.inputs import Input, to_id, to_ids, vocabulary
from interp.readout import readout
from interp.replay import replay, scored_positions
from interp.result_sets import labelled_set
from interp.results import labelled
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def neuron_activation(
    model: HookedTransformer, input: Input, layer: int, neuron: int
) -> xr.DataArray:
    """How strongly one neuron fires at each position (mlp_post).

    Returns:
        `activation` [batch, pos].

    Raises:
        InputError: unreadable input, a model without MLPs, or a neuron that does not exist.

    Cost: one forward pass.
    """
    need_mlp(model)
    site = Site("mlp_post", layer)
    Site("mlp_post", layer, neuron=neuron).check(model.cfg, 1)
    run = trace(model, input, sites=[site])
    return labelled(
        model,
        run[site][..., neuron],
        ("batch", "pos"),
        name="activation",
        units="activation",
        ids=run.ids,
        layer=layer,
        neuron=neuron,
    )


def top_neurons(
    model: HookedTransformer,
    input: Input,
    target: str | int,
    contrast: str | int | None = None,
    *,
    pos: int = -1,
    top: int = 12,
    words: int = 6,
) -> xr.Dataset:
    """The neurons that wrote most of a logit at one position, with what each writes.

    Args:
        input: one prompt.
        target, contrast, pos: as in `neuron_attribution`.
        top: how many neurons, by the size of their part.
        words: how many tokens to name on either side.

    Returns:
        Over [rank], largest part first: `part`, in logits; `activation`; `layer` and `neuron` are
        coordinates. Over [rank, word]: `promoted` and `suppressed`, the ids of the tokens whose
        logits one unit of activation moves most, with their strings in `promoted_tokens`,
        `suppressed_tokens`. `whole`, the sum of all neurons' parts.

    Raises:
        InputError: whatever `neuron_attribution` raises; several prompts; `top` or `words` below 1.

    Cost: one forward pass of two, and a [top, d_model, d_vocab] product.
    """
    if top < 1 or words < 1:
        raise InputError(f"top={top}, words={words} came, but at least 1 of each is needed.")
    ids = to_ids(model, input)
    if len(ids) > 1:
        raise InputError(f"{len(ids)} prompts came, but the top neurons are of one: give one.")
    parts = neuron_attribution(model, ids, target, contrast, pos=pos)["part"]
    table = torch.from_numpy(parts.to_numpy()[:, :, 0, 0])
    n_neurons = table.shape[1]
    flat = table.flatten()
    order = flat.abs().argsort(descending=True, stable=True)[:top]
    layers, neurons = (order // n_neurons).tolist(), (order % n_neurons).tolist()
    at = int(parts["pos"][0])
    run = trace(model, ids, sites=[Site("mlp_post", layer) for layer in sorted(set(layers))])
    pairs = list(zip(layers, neurons, strict=True))
    activation = torch.stack([run["mlp_post", layer][0, at, neuron] for layer, neuron in pairs])
    rows = [model.blocks[layer].mlp.W_out.detach()[neuron] for layer, neuron in pairs]
    written = torch.stack(rows) @ readout(model).A
    k = min(words, written.shape[-1])
    names = vocabulary(model)
    found = {
        "promoted": written.topk(k).indices,
        "suppressed": written.topk(k, largest=False).indices,
    }
    dims = ("rank", "word")
    result = labelled_set(
        model,
        {
            "part": (flat[order], dims[:1], "logits"),
            "activation": (activation, dims[:1], "activation"),
            **{name: (ids, dims, "token id") for name, ids in found.items()},
        },
        ids=ids,
        coords={
            "layer": ("rank", layers),
            "neuron": ("rank", neurons),
            **{
                f"{name}_tokens": (dims, [[names[i] for i in row] for row in ids.tolist()])
                for name, ids in found.items()
            },
        },
        target=target,
        contrast=contrast,
        pos=at,
    )
    return result.assign(whole=float(flat.sum()))


def neuron_ablation(
    model: HookedTransformer,
    input: Input,
    layer: int,
    neuron: int,
    target: str | int,
    contrast: str | int | None = None,
    *,
    pos: int = -1,
    to: float = 0.0,
) -> xr.Dataset:
    """What the model says when one neuron is held at a value, at every position. Exact.

    Args:
        target, contrast: the token whose logit is scored, and the one subtracted, if any.
        pos: the position that is read.
        to: the value that the neuron is held at: 0, or its mean over a text, which removes what
            it says and keeps what it always says.

    Returns:
        Over [batch, token]: `probability` as the model gives it and `ablated`, both at `pos`.
        Over [batch], in logits: `base` and `held`, the scored logits with and without; `total` =
        base - held, what the neuron did for it, in three: `frozen`, its direct part with the
        final LayerNorm's scale held (as `neuron_attribution` has it for to=0); `rescale`, what
        the scale adds to that; `downstream`, what later components make of it.

    Raises:
        InputError: unreadable input, an unknown token, a model without MLPs, a neuron or position
            that does not exist.

    Cost: one forward pass, and another from the neuron's layer on.
    """
    need_mlp(model)
    site = Site("mlp_post", layer, neuron=neuron)
    site.check(model.cfg, 1)
    asked = to_id(model, target), None if contrast is None else to_id(model, contrast)
    run = trace(model, input)
    scored = scored_positions(run.ids, pos)
    at = int(scored)
    before, after = run.logits[:, at], replay(run, [{site: to}], pos=at)[0]

    def score(logits: Float[Tensor, "batch token"]) -> Float[Tensor, " batch"]:
        first = logits[:, asked[0]]
        return first if asked[1] is None else first - logits[:, asked[1]]

    read = readout(model)
    final = run.stream[-1][:, at]
    lost = (run[site][:, at] - to)[:, None] * model.blocks[layer].mlp.W_out.detach()[neuron]
    frozen = score(lost @ read.A / read.norm.scale(final))
    direct = score(read(final) - read(final - lost))
    total = score(before) - score(after)
    dims, units = ("batch", "token"), "logits"
    words = vocabulary(model)
    return labelled_set(
        model,
        {
            "probability": (before.softmax(-1), dims, "probability"),
            "ablated": (after.softmax(-1), dims, "probability"),
            "base": (score(before), dims[:1], units),
            "held": (score(after), dims[:1], units),
            "total": (total, dims[:1], units),
            "frozen": (frozen, dims[:1], units),
            "rescale": (direct - frozen, dims[:1], units),
            "downstream": (total - direct, dims[:1], units),
        },
        ids=run.ids,
        coords={"token": range(len(words)), "tokens": ("token", words)},
        layer=layer,
        neuron=neuron,
        target=target,
        contrast=contrast,
        pos=at,
        to=to,
    )
