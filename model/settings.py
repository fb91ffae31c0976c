"""What a conversion takes each setting to be, and on whose word.

Four can speak: the tensors, the one who calls, the source's own configuration, and, when none of
them does, what the dialect's code is known to do. Two that contradict are an error, and what only
the last one says is an assumption, which is always shown.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from .dialect import BIASES, QKV_BIAS, UNEMBED_BIAS
from .errors import ModelError
from .reading import Source
from .recognition import Fit, sizes

_FROM_TENSORS = "the tensors"
_BY_LAYER = "scale_attn_by_inverse_layer_idx"
_FLAGS = {
    "n_heads": "--n-heads",
    "act_fn": "--act-fn",
    "eps": "--eps",
    "attn_scale": "--attn-scale",
}

_SHOWN_BY = {
    "d_vocab": "embed.weight",
    "d_model": "embed.weight",
    "n_ctx": "pos_embed.weight",
    "d_mlp": "blocks.{layer}.mlp.in_proj.weight",
    "n_layers": "blocks.{layer}.ln1.weight",
    "n_heads": "blocks.{layer}.attn.qkv_proj.weight",
    "tied_embeddings": "unembed.weight",
    "unembed_bias": "unembed.bias",
    "qkv_bias": "blocks.{layer}.attn.qkv_proj.bias",
    "bias": "ln_final.bias",
}
"""The tensor to name when a field contradicts the tensors."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A field of the configuration, its value, who says so, and whether that is an assumption."""

    field: str
    value: Any
    origin: str
    assumed: bool = False


def settle(
    fit: Fit, read: Source, given: Mapping[str, Any], tied: bool
) -> tuple[dict[str, Any], list[Setting]]:
    """The fields of the GPTConfig, and each with its origin.

    Args:
        given: what the caller says.
        tied: the embedding and the unembedding are one.

    Raises:
        ModelError: when two contradict, or nobody says the number of heads.
    """
    said = dict(_configured(fit, read))
    shown = _shown(fit, read)
    if not tied or not (fit.named("embed.weight") and fit.named("unembed.weight")):
        shown["tied_embeddings"] = tied
    settled: dict[str, Setting] = {}
    for field in [*_SHOWN_BY, "act_fn", "eps", "attn_scale", "dropout", _BY_LAYER]:
        voices = [Setting(field, shown[field], _FROM_TENSORS)] if field in shown else []
        voices += [Setting(field, given[field], _FLAGS[field])] if field in given else []
        voices += [said[field]] if field in said else []
        voices = voices or _assumed(fit, field, shown)
        if field == "attn_scale":
            n_heads = settled["n_heads"].value
            if not isinstance(n_heads, int) or n_heads < 1:
                raise ModelError(f"n_heads={n_heads!r} is not a whole number from 1 up.")
            widths = {"d_model": shown["d_model"], "d_head": shown["d_model"] // n_heads}
            voices = [dataclasses.replace(v, value=_scale(v.value, widths)) for v in voices]
        settled[field] = _one_of(voices, fit)
    return {field: setting.value for field, setting in settled.items()}, list(settled.values())


def _shown(fit: Fit, read: Source) -> dict[str, Any]:
    shapes = {name: tensor.shape for name, tensor in read.tensors.items()}
    found, _ = sizes(fit, shapes)
    shown: dict[str, Any] = {name: found[name] for name in ("d_vocab", "d_model", "n_ctx")}
    shown |= {"d_mlp": found.get("d_mlp", 0), "n_layers": fit.count("layer")}
    if "head" in found:
        shown["n_heads"] = found["head"]
    if "d_head" in found and found["head"] * found["d_head"] != found["d_model"]:
        raise ModelError(
            f"{fit.named('blocks.{layer}.attn.qkv_proj.weight')[0]} has {found['head']} heads of "
            f"{found['d_head']}, and the model's width is {found['d_model']}: only heads that "
            "share the width out among them can be converted."
        )
    for field, group in (("bias", BIASES), ("qkv_bias", QKV_BIAS), ("unembed_bias", UNEMBED_BIAS)):
        shown[field] = any(fit.names.get(parameter) for parameter in group)
    return shown


def _configured(fit: Fit, read: Source) -> Iterator[tuple[str, Setting]]:
    for key, allowed in fit.dialect.requires.items():
        if key in read.config and read.config[key] not in allowed:
            raise ModelError(
                f"{read.config_origin} says {key}={read.config[key]!r}: only "
                f"{' or '.join(map(repr, allowed))} is a GPT that can be converted."
            )
    for key, says in fit.dialect.settings.items():
        value = read.config.get(key)
        if value is None:
            continue
        if isinstance(value, str | int | float) and value in says.values:
            value = says.values[value]
        elif not says.open:
            raise ModelError(
                f"{read.config_origin} says {key}={value!r}: only "
                f"{', '.join(map(str, says.values))} can be converted."
            )
        yield says.field, Setting(says.field, value, f"{key} of {read.config_origin}")


def _assumed(fit: Fit, field: str, shown: Mapping[str, Any]) -> list[Setting]:
    origin = f"what {fit.dialect.name} does by default"
    if field == "n_heads" and "d_head" in fit.dialect.assumed:
        d_head = fit.dialect.assumed["d_head"]
        if shown["d_model"] % d_head == 0:
            value = shown["d_model"] // d_head
            return [Setting(field, value, f"heads of {d_head}, {origin}", assumed=True)]
    if field in fit.dialect.assumed and field not in shown:
        return [Setting(field, fit.dialect.assumed[field], origin, assumed=True)]
    if field == "tied_embeddings" and field not in shown:
        # two that are equal may be one, or may just be equal: the source's configuration knows
        return [Setting(field, True, f"{_FROM_TENSORS}, which are equal")]
    if field == _BY_LAYER:
        return [Setting(field, False, origin, assumed=True)]
    return []


def _one_of(voices: list[Setting], fit: Fit) -> Setting:
    if not voices:
        raise ModelError(
            "the number of heads is not in the tensors and the source has no configuration: "
            "say it with --n-heads."
        )
    first = voices[0]
    for one in voices[1:]:
        if one.value != first.value:
            shown = fit.named(_SHOWN_BY[one.field]) if _SHOWN_BY.get(one.field) in fit.names else []
            where = f" ({shown[-1]})" if shown and first.origin == _FROM_TENSORS else ""
            raise ModelError(
                f"{first.origin}{where} say {one.field}={first.value}, and {one.origin} says "
                f"{one.value}: correct the one that is wrong."
            )
    return first


def _scale(value: float | str | None, widths: Mapping[str, int]) -> float:
    """A number as it is; the square root of a width by its name, of d_head when there is none."""
    if value is not None and not isinstance(value, str):
        return value
    width = widths.get(value or "d_head")
    if width is None:
        raise ModelError(f"attn_scale={value!r} is neither a number, d_head nor d_model.")
    return math.sqrt(width)
