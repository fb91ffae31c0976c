"""What each neuron does: when it fires over a text, and what it reads and writes.

Neurons that write where the unembedding hardly reads, and so act on confidence alone, are found by
`interp.sphere.null_writers`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from interp.circuits import token_vectors
from interp.corpus import Corpus, Windows, from_all, windows
from interp.direct import need_mlp
from interp.engine import program_of, trace
from interp.errors import InputError
from interp.inputs import token_strings, vocabulary
from interp.neuron_tally import NeuronTally
from interp.norms import norms
from interp.readout import readout
from interp.replay import Progress
from interp.result_sets import Variable, labelled_set
from interp.shell import Shell
from interp.sites import Site, whole_site
from interp.weights import Weights

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def neuron_statistics(
    model: HookedTransformer,
    corpus: Corpus,
    *,
    top: int = 10,
    bins: int = 40,
    limits: tuple[float, float] = (-1.0, 7.0),
    length: int | None = None,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> xr.Dataset:
    """When each neuron fires, over a corpus of any length.

    Args:
        top: how many of the strongest activations to keep, at most one from each window.
        bins, limits: of the histogram: `bins` equal steps between the limits. The first and the
            last bin also take what lies beyond.
        length: tokens in a window; n_ctx by default.

    Returns:
        Over [layer, neuron]: `mean`, `std` of the activation (mlp_post), and with an axis `bin`
        `count` (coordinates `bin_low`, `bin_high`); with an axis `top`, strongest first,
        `activation`, and where it was: `window`, the window of the corpus, and `at_pos`, the
        position in it (`neuron_examples` gives the text). Where a corpus has fewer windows than
        `top`, fewer are returned.

    Raises:
        InputError: a model without MLPs, top or bins below 1, limits out of order, or whatever
            `interp.corpus.windows` raises.

    Cost: one forward pass and about a third as much again; memory of a batch's activations and
    n_layers * d_mlp * (bins + 2 top) numbers, however long the corpus. Several processes share
    the work (`interp.corpus`).
    """
    need_mlp(model)
    low, high = limits
    if top < 1 or bins < 1 or not low < high:
        raise InputError(
            f"top={top}, bins={bins}, limits={limits} came, but at least 1 example, 1 bin and "
            "limits in ascending order are needed."
        )
    text = windows(model, corpus, length=length)
    tallies = [
        NeuronTally.empty(
            model.cfg.d_mlp or 0,
            top=top,
            bins=bins,
            limits=limits,
            dtype=model.cfg.dtype,
            device=model.cfg.device,
        )
        for _ in range(model.cfg.n_layers)
    ]
    program = program_of(model)
    for first, ids in text.batches(batch_size, progress):
        _tally(program, ids.to(model.cfg.device), tallies, first)
    by_layer = zip(*from_all([tally.cpu() for tally in tallies]), strict=True)
    return _statistics(model, text, [NeuronTally.joined(parts) for parts in by_layer])


def _tally(
    program: Weights | Shell,
    ids: Int[Tensor, "batch pos"],
    tallies: list[NeuronTally],
    first: int,
) -> None:
    """Count each layer's activations as they come, while they are in the processor's cache."""

    def tap(site: Site, value: Tensor) -> Tensor:
        if site.kind == "mlp_post" and site.layer is not None:
            tallies[site.layer].add(value, first)
            if site.layer == len(tallies) - 1:
                raise _AllSeen
        return value

    with torch.no_grad(), contextlib.suppress(_AllSeen):
        program.run(ids, tap, [whole_site("mlp_post", layer) for layer in range(len(tallies))])


class _AllSeen(Exception):  # noqa: N818 (no error: a way out)
    """Ends a forward pass behind the last MLP: what follows is not asked for."""


def _statistics(model: HookedTransformer, text: Windows, seen: list[NeuronTally]) -> xr.Dataset:
    dims, ranked = ("layer", "neuron"), ("layer", "neuron", "top")

    def of_layers(name: str) -> Tensor:
        return torch.stack([getattr(tally, name) for tally in seen])

    mean = of_layers("total") / text.rows.size
    variance = (of_layers("squares") / text.rows.size - mean.square()).clamp_min(0)
    edges = torch.linspace(*seen[0].limits, seen[0].count.shape[1] + 1)
    found = slice(min(seen[0].best.shape[1], len(text)))
    token = of_layers("token")[..., found]
    return labelled_set(
        model,
        {
            "mean": (mean, dims, "activation"),
            "std": (variance.sqrt(), dims, "activation"),
            "count": (of_layers("count").double(), (*dims, "bin"), "tokens"),
            "activation": (of_layers("best")[..., found], ranked, "activation"),
            "window": (token // text.length, ranked, "window index"),
            "at_pos": (token % text.length, ranked, "position"),
        },
        coords={"bin_low": ("bin", edges[:-1]), "bin_high": ("bin", edges[1:])},
        windows=len(text),
        length=text.length,
    )


def neuron_examples(
    model: HookedTransformer,
    corpus: Corpus,
    statistics: xr.Dataset,
    layer: int,
    neuron: int,
) -> xr.Dataset:
    """The windows in which a neuron fires most, token by token.

    Args:
        corpus: the one that `statistics` were made of.
        statistics: what `neuron_statistics` returned.

    Returns:
        `activation` [top, pos] of every token of those windows, strongest window first; `tokens`
        [top, pos] and `peak` [top], the position of the strongest, are coordinates.

    Raises:
        InputError: a corpus that is not the statistics' own, or a neuron that does not exist.

    Cost: one forward pass over `top` windows.
    """
    Site("mlp_post", layer, neuron=neuron).check(model.cfg, 1)
    settings = statistics.attrs["settings"]
    text = _same(model, corpus, settings)
    own = statistics.sel(layer=layer, neuron=neuron)
    ids = text.at(own["window"].to_numpy())
    activation = trace(model, ids, sites=[Site("mlp_post", layer)])["mlp_post", layer][..., neuron]
    strings = [token_strings(model, row) for row in ids]
    return labelled_set(
        model,
        {"activation": (activation, ("top", "pos"), "activation")},
        coords={
            "tokens": (("top", "pos"), strings),
            "peak": ("top", own["at_pos"].to_numpy()),
        },
        layer=layer,
        neuron=neuron,
    )


def _same(model: HookedTransformer, corpus: Corpus, settings: dict[str, int]) -> Windows:
    text = windows(model, corpus)
    if text.length != settings["length"]:
        text = windows(model, corpus, length=settings["length"])
    if len(text) != settings["windows"]:
        raise InputError(
            f"The corpus has {len(text)} windows of {text.length} tokens, but the statistics are "
            f"of {settings['windows']}: give the corpus that they were made of."
        )
    return text


def neuron_vocabulary(
    model: HookedTransformer, layer: int, neuron: int | None = None, *, top: int = 10
) -> xr.Dataset:
    """What a layer's neurons write and read, in terms of the vocabulary.

    Args:
        neuron: one neuron; all of the layer by default.
        top: how many tokens on either side.

    Returns:
        Over [neuron, top], strongest first: `promoted`, `suppressed` (token ids) with
        `promoted_by`, `suppressed_by`: logits times s that one unit of activation adds, W_out
        through the final gain and W_U, less its mean over the vocabulary, which no probability
        sees; `read` with `read_by`: the tokens whose embedding lies most along W_in (with ln2's
        gain, without the mean), in pre-activation times s. Strings are in `promoted_tokens` ...
        Over [neuron]: `effect_std`, the standard deviation of those logits over the vocabulary:
        small for a neuron that acts by the scale alone.

    Raises:
        InputError: a model without MLPs, a neuron that does not exist, `top` outside 1 to d_vocab.

    Cost: two [neuron, d_model, d_vocab] products.
    """
    need_mlp(model)
    Site("mlp_post", layer, neuron=neuron).check(model.cfg, 1)
    if not 1 <= top <= model.cfg.d_vocab:
        raise InputError(f"top={top} came: ask for 1 to {model.cfg.d_vocab} tokens.")
    mlp = model.blocks[layer].mlp
    W_out, W_in = mlp.W_out.detach(), mlp.W_in.detach().T
    if neuron is not None:
        W_out, W_in = W_out[[neuron]], W_in[[neuron]]
    written = W_out @ readout(model).A
    written = written - written.mean(-1, keepdim=True)
    norm = norms(model)[2 * layer + 1]
    read = norm.centred(W_in * norm.gain) @ token_vectors(model).T
    names = vocabulary(model)
    ranked = {
        "promoted": written.topk(top),
        "suppressed": written.topk(top, largest=False),
        "read": read.topk(top),
    }
    dims = ("neuron", "top")
    units = {"promoted": "logits s", "suppressed": "logits s", "read": "pre-activation s"}
    spread = written.std(-1, correction=0)
    variables: dict[str, Variable] = {"effect_std": (spread, ("neuron",), "logits s")}
    for name, found in ranked.items():
        variables[name] = (found.indices, dims, "token id")
        variables[f"{name}_by"] = (found.values, dims, units[name])
    return labelled_set(
        model,
        variables,
        coords={
            "neuron": range(model.cfg.d_mlp or 0) if neuron is None else [neuron],
            **{
                f"{name}_tokens": (dims, [[names[i] for i in row] for row in found.indices])
                for name, found in ranked.items()
            },
        },
        layer=layer,
    )
