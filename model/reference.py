"""The user's own model, run beside ours: the last word on what the weights mean."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .conversion import Conversion, gather
from .dialect import LAYOUTS, Stored
from .equivalence import LOGITS, TOLERANCE, compare, gpt_sites
from .errors import ModelError
from .recognition import axes_of, bare, bare_names, is_buffer, spell, spellings

Logits = Callable[[Tensor], Any]

# what of a module is the site of ours: what comes in, or what goes out
_SITES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "embed": (("out", "hook_embed"),),
    "pos_embed": (("out", "hook_pos_embed"),),
    "blocks.{layer}.ln1": (("in", "blocks.{layer}.hook_resid_pre"),),
    "blocks.{layer}.attn.qkv_proj": (
        (
            "out",
            "blocks.{layer}.attn.hook_q blocks.{layer}.attn.hook_k blocks.{layer}.attn.hook_v",
        ),
    ),
    "blocks.{layer}.attn.out_proj": (("in", "blocks.{layer}.attn.hook_z"),),
    "blocks.{layer}.ln2": (("in", "blocks.{layer}.hook_resid_mid"),),
    "blocks.{layer}.mlp.in_proj": (("out", "blocks.{layer}.mlp.hook_pre"),),
    "blocks.{layer}.mlp.out_proj": (
        ("in", "blocks.{layer}.mlp.hook_post"),
        ("out", "blocks.{layer}.hook_mlp_out"),
    ),
    "ln_final": (("in", "blocks.{last}.hook_resid_post"),),
    "unembed": (("in", "unembed.hook_in"),),
}


def load_reference(where: str, conversion: Conversion) -> nn.Module | Logits:
    """The model `NAME` of `FILE.py`, with the source's weights in it.

    The file is run, under a private name: people's files are often called model.py, like our
    package. NAME is a class or a factory, called with nothing, or, when it asks for one argument,
    with the source's configuration; of what it answers, a module gets the source's state dict.

    Raises:
        ModelError: when there is no such file or name, it cannot be called, or the weights do not
            fit what it makes.
    """
    file, _, name = where.rpartition(":")
    if not file or not Path(file).is_file():
        raise ModelError(f"{where} is not FILE.py:NAME of an existing file: give one.")
    module = _import_privately(Path(file))
    make = getattr(module, name, None)
    if not callable(make):
        raise ModelError(f"{file} has no class or function {name!r}: give one that it has.")
    try:
        made = make(*_arguments(make, module, conversion.source.config))
    except ModelError:
        raise
    except Exception as error:  # their code may raise anything
        raise ModelError(f"{where} cannot be called ({type(error).__name__}: {error}).") from error
    if isinstance(made, nn.Module):
        _fill(made, conversion, where)
    elif not callable(made):
        raise ModelError(
            f"{where} made a {type(made).__name__}, which answers no ids: make a model."
        )
    return made


def prove_reference(
    conversion: Conversion,
    reference: nn.Module | Logits,
    ids: Mapping[str, Int[Tensor, "batch pos"]],
) -> pd.DataFrame:
    """The `differences` of a Proof between the user's model and ours, in forward order.

    Of a module whose parts have the names of the dialect, what goes through the parts is compared
    too, so that the first site that is off says where to look; of another callable, the logits.
    A model that answers only the last position is called on every prefix. A module is run in
    float32 and float64, another callable in what precision it has.

    Raises:
        ModelError: when the reference answers differently on two calls, or not with logits.

    Cost: two forward passes of each for each entry of `ids`; n_pos more for the prefixes.
    """
    models: dict[torch.dtype, nn.Module | Logits] = {}

    def both(batch: Tensor, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        if dtype not in models:
            models.clear()
            models[dtype] = _in_precision(reference, dtype)
        theirs = _reference_sites(models[dtype], batch, conversion)
        _check_repeatable(models[dtype], batch, theirs[LOGITS], dtype)
        found = gpt_sites(conversion.gpt, batch, dtype)
        ordered = {site: theirs[site] for site in found if site in theirs}
        return ordered, {site: found[site].to(ordered[site].dtype) for site in ordered}

    return compare(both, ids)


@torch.no_grad()
def _reference_sites(
    model: nn.Module | Logits, ids: Tensor, conversion: Conversion
) -> dict[str, Tensor]:
    """What the user's model holds at the sites that its parts show, and its logits."""
    pieces: dict[tuple[str, int, str], dict[int, Tensor]] = {}
    handles = _watch(model, conversion, pieces) if isinstance(model, nn.Module) else []
    try:
        whole = _logits(model(ids))
    finally:
        for handle in handles:
            handle.remove()
    sites = {}
    for (ours, layer, which), found in pieces.items():
        value = _together(ours, which, found, conversion)
        if value is None or value.shape[1] != ids.shape[1]:
            continue  # some unembed the last position only
        value = value.expand(len(ids), -1, -1)
        names = dict(_SITES[ours])[which].format(
            layer=layer, last=conversion.gpt.config.n_layers - 1
        )
        parts = names.split()
        for name, part in zip(parts, value.chunk(len(parts), dim=-1), strict=True):
            by_head = name.endswith(("hook_q", "hook_k", "hook_v", "hook_z"))
            heads = (conversion.gpt.config.n_heads, -1)
            sites[name] = part.unflatten(-1, heads) if by_head else part
    return sites | {LOGITS: _all_logits(model, ids, whole, conversion.gpt.config.d_vocab)}


def _watch(
    model: nn.Module,
    conversion: Conversion,
    pieces: dict[tuple[str, int, str], dict[int, Tensor]],
) -> list[RemovableHandle]:
    """Note what goes into and comes out of the parts that have the dialect's names."""
    modules = {bare(name): module for name, module in model.named_modules() if bare(name)}
    found: dict[str, list[tuple[str, int, int]]] = {}
    for ours in _SITES:
        stored = conversion.dialect.tensors[f"{ours}.weight"]
        for spelling in spellings(stored.name):
            axes = axes_of(spelling)
            for layer in range(conversion.gpt.config.n_layers) if "layer" in axes else [0]:
                for i, place in enumerate(_places(conversion, axes)):
                    at = (layer, *place) if "layer" in axes else place
                    name = bare(spell(spelling, at, conversion.dialect)).rpartition(".")[0]
                    found.setdefault(name, []).append((ours, layer, i))

    def note(ours: str, layer: int, i: int) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            for which, value in (("in", args[0] if args else None), ("out", output)):
                if which in dict(_SITES[ours]) and isinstance(value, Tensor):
                    pieces.setdefault((ours, layer, which), {})[i] = value

        return hook

    # a module that holds two of our parameters is not the part that either of them is
    return [
        modules[name].register_forward_hook(note(*what[0]))
        for name, what in found.items()
        if len(what) == 1 and name in modules
    ]


def _places(conversion: Conversion, axes: list[str]) -> list[tuple[int, ...]]:
    counts = {"head": conversion.gpt.config.n_heads, "part": 3}
    return list(itertools.product(*(range(counts[axis]) for axis in axes if axis != "layer")))


def _together(
    ours: str, which: str, found: Mapping[int, Tensor], conversion: Conversion
) -> Tensor | None:
    """One tensor [batch, pos, width] of what the pieces of a part hold, in our order."""
    stored = conversion.dialect.tensors[f"{ours}.weight"]
    n_pieces = len(_places(conversion, axes_of(stored.name)))
    values = [found[i] if found[i].ndim == 3 else found[i][None] for i in sorted(found)]
    if which == "in" or n_pieces == 1:
        return values[0]
    if len(values) != n_pieces:
        return None
    config = conversion.gpt.config
    extents = {"part": 3, "head": config.n_heads, "d_head": config.d_head}
    here = stored.layout.replace("d_model", "").strip()
    stacked = Stored(stored.name, f"batch pos {here}")
    return gather(values, stacked, f"batch pos {LAYOUTS[f'{ours}.bias']}", extents)


def _all_logits(model: nn.Module | Logits, ids: Tensor, whole: Tensor, d_vocab: int) -> Tensor:
    """Logits at every position, [batch, pos, d_vocab], whatever form `whole` is answered in."""
    if whole.numel() == ids.numel() * d_vocab:
        return whole.reshape(*ids.shape, d_vocab)
    if whole.numel() != len(ids) * d_vocab:
        raise ModelError(
            f"the reference answers {list(whole.shape)} to ids {list(ids.shape)}, and its logits "
            f"over {d_vocab} tokens were expected: give a model with the same vocabulary."
        )
    prefixes = [_logits(model(ids[:, :n])) for n in range(1, ids.shape[1])]
    return torch.stack([x.reshape(len(ids), d_vocab) for x in [*prefixes, whole]], dim=1)


def _logits(answer: Any) -> Tensor:
    answer = getattr(answer, "logits", answer)
    if isinstance(answer, tuple | list) and answer:
        answer = answer[0]
    if not isinstance(answer, Tensor):
        raise ModelError(f"the reference answers a {type(answer).__name__}, not logits.")
    return answer.detach()


def _check_repeatable(
    model: nn.Module | Logits, ids: Tensor, logits: Tensor, dtype: torch.dtype
) -> None:
    with torch.no_grad():
        again = _all_logits(model, ids, _logits(model(ids)), logits.shape[-1])
    off = (again - logits).abs().max().item()
    if not off <= TOLERANCE[dtype] * max(1.0, logits.abs().max().item()):
        raise ModelError(
            f"the reference disagrees with itself by {off:.1e} on two calls with the same ids: "
            "switch off its dropout and other randomness (`model.eval()`)."
        )


def _in_precision(reference: nn.Module | Logits, dtype: torch.dtype) -> nn.Module | Logits:
    return copy.deepcopy(reference).to(dtype) if isinstance(reference, nn.Module) else reference


def _import_privately(file: Path) -> ModuleType:
    """The file as a module of its own; its folder can be imported from while it is run."""
    name = f"_orrery_reference_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ModelError(f"{file} is no Python file: give FILE.py:NAME.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    sys.path.append(str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # their code may raise anything
        del sys.modules[name]
        raise ModelError(f"{file} cannot be run ({type(error).__name__}: {error}).") from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module


def _arguments(make: Any, module: ModuleType, config: Mapping[str, Any]) -> list[Any]:
    """Nothing, or the source's configuration for a callable that asks for one argument."""
    required = [
        parameter
        for parameter in inspect.signature(make).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if not required:
        return []
    if len(required) > 1 or not config:
        raise ModelError(
            f"{make.__name__} asks for {', '.join(p.name for p in required)}: "
            "give a function without arguments that makes the model."
        )
    own = getattr(module, "GPTConfig", None)
    if dataclasses.is_dataclass(own) and isinstance(own, type):
        fields = {field.name for field in dataclasses.fields(own)}
        return [own(**{k: v for k, v in config.items() if k in fields})]
    return [_Configuration(config)]


class _Configuration(dict[str, Any]):
    """A configuration that answers to cfg.name as well as to cfg["name"]."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _fill(model: nn.Module, conversion: Conversion, where: str) -> None:
    theirs = bare_names(model.state_dict())
    state = {theirs.get(bare(n), n): t for n, t in conversion.source.tensors.items()}
    try:
        missing, surplus = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ModelError(
            f"{where} has other shapes than {conversion.source.name}: {error}"
        ) from None
    parameters = dict(model.named_parameters())
    lost = [name for name in missing if name in parameters]
    weights = {n for n, t in conversion.source.tensors.items() if t.is_floating_point()}
    extra = [
        name for name in surplus if name in weights and not is_buffer(name, conversion.dialect)
    ]
    if lost or extra:
        raise ModelError(
            f"{where} {'asks for' if lost else 'has no place for'} {(lost or extra)[0]}, which "
            f"{'is not in' if lost else 'is in'} {conversion.source.name}: give the model that "
            "these weights are of."
        )
    model.eval()
