"""Weights that other code wrote -> a GPT. One engine applies any table of `dialects.py`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from torch import Tensor

from .config import GPTConfig
from .dialect import LAYOUTS, Dialect, Stored
from .errors import ModelError
from .gpt import GPT
from .reading import Source, read_source, source_of
from .recognition import Fit, axes_of, dimensions, recognise, sizes, spell, spellings
from .settings import Setting, settle
from .vocabularies import find_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A GPT made of weights that other code wrote, and how.

    Attributes:
        gpt: in evaluation mode, in the precision of the source. Of a file, its weights look into
            the file, which must stay as it is meanwhile; of a state dict, they are copies.
        settings: every setting that the function depends on, and where it comes from.
        notes: what else was taken to be so.
    """

    source: Source
    dialect: Dialect
    gpt: GPT
    tokenizer: PreTrainedTokenizerFast | None
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]

    @property
    def assumptions(self) -> tuple[Setting, ...]:
        """The settings that nothing in the source says."""
        return tuple(setting for setting in self.settings if setting.assumed)


def convert(
    source: str | Path | Mapping[str, Any] | Source,
    *,
    config: Mapping[str, Any] | None = None,
    tokenizer: str | Path | None = None,
    dialect: str | None = None,
    n_heads: int | None = None,
    act_fn: str | None = None,
    eps: float | None = None,
    attn_scale: float | str | None = None,
) -> Conversion:
    """A GPT of a checkpoint that other code wrote: file, folder, state dict, or one already read.

    Args:
        config: the writer's own configuration, under its own names; the source's when not given.
        tokenizer: a meta.pkl, tokenizer.json, vocabulary list or folder, or "gpt2"; what stands
            beside the weights when not given.
        dialect: whose weights they are, when their names and shapes leave it open.
        n_heads, act_fn, eps, attn_scale: what the source does not say. `attn_scale` is what
            scores are divided by: a number, or the square root of "d_head" or "d_model".

    Raises:
        ModelError: when the source cannot be read, its architecture is outside the family, a
            tensor is missing, surplus, misshapen or not finite, or two statements contradict.

    Cost: no copy of a file's weights where the layout allows a view.
    """
    in_memory = isinstance(source, Mapping)
    read = read_source(source) if isinstance(source, str | Path) else source
    read = source_of(read) if isinstance(read, Mapping) else read
    if config is not None:
        read = dataclasses.replace(read, config=config, config_origin="the configuration given")
    flags = {"n_heads": n_heads, "act_fn": act_fn, "eps": eps, "attn_scale": attn_scale}
    given = {field: value for field, value in flags.items() if value is not None}

    fit, others = _choose(read, recognise(read.tensors, dialect))
    _check_values(read.tensors, fit)
    values, settings = settle(fit, read, given, is_tied(read.tensors, fit))
    gpt = _assemble(read, fit, GPTConfig.from_dict(values), copy=in_memory)

    found, origin = find_tokenizer(read, tokenizer, gpt.config.d_vocab)
    notes = [f"it could as well be {', '.join(others)}"] if others else []
    notes += _filled(fit)
    notes += [origin] if origin else ["no tokenizer: ids in, ids out"]
    return Conversion(read, fit.dialect, gpt, found, tuple(settings), tuple(notes))


def _choose(read: Source, fits: list[Fit]) -> tuple[Fit, list[str]]:
    """The first dialect whose shapes hold too, and the names of the others."""
    shapes = {name: tensor.shape for name, tensor in read.tensors.items()}
    misfits = {fit.dialect.name: sizes(fit, shapes)[1] for fit in fits}
    fewest = min(map(len, misfits.values()))
    fits = [fit for fit in fits if len(misfits[fit.dialect.name]) == fewest]
    if fewest:
        raise ModelError(f"{misfits[fits[0].dialect.name][0]}: save the model again.")
    tied = is_tied(read.tensors, fits[0])
    agreeing = [fit for fit in fits if fit.dialect.tied in (None, tied)]
    if not agreeing:
        (name,) = fits[0].named("unembed.weight")
        raise ModelError(
            f"{name} {'is' if tied else 'is not'} the token embedding, and in "
            f"{fits[0].dialect.name} it always {'differs' if tied else 'is'}: save the model again."
        )
    if read.config:
        # who leaves marks is told by them, and by their absence
        marks = {fit.dialect.name: fit.dialect.marks for fit in agreeing}
        found = [f for f in agreeing if (m := marks[f.dialect.name]) and m <= read.config.keys()]
        agreeing = found or [fit for fit in agreeing if not marks[fit.dialect.name]] or agreeing
    return agreeing[0], [fit.dialect.name for fit in agreeing[1:]]


def is_tied(tensors: Mapping[str, Tensor], fit: Fit) -> bool:
    embed, unembed = fit.named("embed.weight"), fit.named("unembed.weight")
    if not (embed and unembed):
        return True
    a, b = tensors[embed[0]], tensors[unembed[0]]
    return a.shape == b.shape and (a.data_ptr() == b.data_ptr() or torch.equal(a, b))


def _check_values(tensors: Mapping[str, Tensor], fit: Fit) -> None:
    for name in itertools.chain(*(found.values() for found in fit.names.values())):
        tensor = tensors[name]
        if not tensor.is_floating_point():
            raise ModelError(f"{name} holds {tensor.dtype}, not floating-point weights.")
        # the extremes need no memory, and a NaN comes out as both
        if not all(extreme.isfinite() for extreme in tensor.aminmax()):
            raise ModelError(f"{name} holds NaN or infinity: use an earlier checkpoint.")


def _assemble(read: Source, fit: Fit, config: GPTConfig, *, copy: bool) -> GPT:
    with torch.device("meta"):
        gpt = GPT(config)
    extents = {"part": 3, "head": config.n_heads, "d_head": config.d_head}
    state = {}
    for name, placeholder in gpt.state_dict().items():
        parameter, layer = _template(name)
        source = parameter
        if not fit.names.get(parameter) and parameter in ("embed.weight", "unembed.weight"):
            # tied, and saved once
            source = "unembed.weight" if parameter == "embed.weight" else "embed.weight"
        names = fit.named(source, layer) if source in fit.names else []
        if names:
            tensors = [read.tensors[n] for n in names]
            state[name] = gather(tensors, fit.stored[source], LAYOUTS[parameter], extents)
        else:
            fill = torch.ones if name.endswith("weight") else torch.zeros
            dtype = next(iter(read.tensors.values())).dtype
            state[name] = fill(placeholder.shape, dtype=dtype)
        if copy:
            state[name] = state[name].clone(memory_format=torch.contiguous_format)
    if config.tied_embeddings:
        state["unembed.weight"] = state["embed.weight"]
    gpt.load_state_dict(state, assign=True)
    if config.tied_embeddings:
        gpt.unembed.weight = gpt.embed.weight
    return gpt.eval().requires_grad_(True)


def gather(
    tensors: list[Tensor], stored: Stored, layout: str, extents: Mapping[str, int]
) -> Tensor:
    """One of our parameters of the tensors that a dialect keeps it in; a view where it can be.

    Args:
        tensors: those of one layer, in the order of the axes in their names.
    """
    spread = _spread(stored)
    if not spread:
        return _rearrange(tensors[0], stored.layout, layout, extents)
    return _rearrange(tensors, f"({' '.join(spread)}) {stored.layout}", layout, extents)


def scatter(
    tensor: Tensor, stored: Stored, layout: str, extents: Mapping[str, int]
) -> list[Tensor]:
    """The inverse of `gather`."""
    spread = _spread(stored)
    if not spread:
        return [_rearrange(tensor, layout, stored.layout, extents)]
    together = f"({' '.join(spread)}) {stored.layout}"
    return list(_rearrange(tensor, layout, together, extents))


def to_state_dict(gpt: GPT, dialect: Dialect) -> dict[str, Tensor]:
    """A GPT's weights as a dialect keeps them, as views where they can be.

    A bias that the dialect always has and the GPT has not is zeros; a tied unembedding is there
    twice, as one tensor.

    Raises:
        ModelError: when one of the two has a parameter that the other has no place for.
    """
    config = gpt.config
    counts = {"layer": config.n_layers, "head": config.n_heads, "part": 3}
    extents = {"part": 3, "head": config.n_heads, "d_head": config.d_head}
    ours = {name: tensor.detach() for name, tensor in gpt.state_dict().items()}
    absent = {p for p in LAYOUTS if p.format(layer=0) not in ours}
    for parameter in LAYOUTS.keys() - dialect.tensors.keys() - absent:
        raise ModelError(
            f"{dialect.name} has no place for {parameter.format(layer=0)}: choose another."
        )
    for group in dialect.optional:
        if group <= absent:
            absent -= group
            dialect = dataclasses.replace(
                dialect, tensors={p: s for p, s in dialect.tensors.items() if p not in group}
            )
    state = {}
    for parameter, entry in dialect.tensors.items():
        stored = Stored(next(spellings(entry.name)), entry.layout)
        axes = axes_of(stored.name)
        for layer in range(config.n_layers) if "layer" in axes else [0]:
            name = parameter.format(layer=layer)
            tensor = ours[name] if parameter not in absent else _zeros(name, ours, dialect)
            spread = itertools.product(*(range(counts[axis]) for axis in axes if axis != "layer"))
            pieces = scatter(tensor, stored, LAYOUTS[parameter], extents)
            for place, piece in zip(spread, pieces, strict=True):
                at = (layer, *place) if "layer" in axes else place
                state[spell(stored.name, at, dialect)] = piece
    return state


def _zeros(name: str, ours: Mapping[str, Tensor], dialect: Dialect) -> Tensor:
    weight = name.removesuffix("bias") + "weight"
    if not name.endswith("bias") or weight not in ours:
        raise ModelError(f"{dialect.name} needs {name}, which this GPT has not: choose another.")
    return ours[weight].new_zeros(len(ours[weight]))


def _rearrange(
    tensor: Tensor | list[Tensor], here: str, there: str, extents: Mapping[str, int]
) -> Tensor:
    if here == there and isinstance(tensor, Tensor):
        return tensor
    axes = set(itertools.chain(*dimensions(here)))
    together = tensor if isinstance(tensor, Tensor) else torch.stack(tensor)
    lengths = {axis: n for axis, n in extents.items() if axis in axes}
    return rearrange(together, f"{here} -> {there}", **lengths)


def _spread(stored: Stored) -> list[str]:
    return [axis for axis in axes_of(stored.name) if axis != "layer"]


def _template(name: str) -> tuple[str, int | None]:
    """Our parameter and its layer."""
    head, _, rest = name.partition(".")
    if head != "blocks":
        return name, None
    layer, _, rest = rest.partition(".")
    return f"blocks.{{layer}}.{rest}", int(layer)


def _filled(fit: Fit) -> list[str]:
    """What the file leaves out because it changes nothing."""
    absent = {parameter for parameter in fit.dialect.tensors if not fit.names[parameter]}
    notes = []
    if absent & {"ln_final.weight"}:
        notes.append("LayerNorms are folded: weights of one and biases of zero in their place")
    return notes
