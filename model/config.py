"""The shape of a GPT, in TransformerLens' vocabulary, and the presets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from .errors import ModelError

_YES_OR_NO = (
    "scale_attn_by_inverse_layer_idx",
    "qkv_bias",
    "bias",
    "unembed_bias",
    "tied_embeddings",
)

ActFn = Literal["gelu", "gelu_new", "relu"]
InitMode = Literal["pytorch", "gpt2"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """What a pre-norm GPT with learned positions is, apart from its weights.

    Raises:
        ModelError: when a size is not a positive integer, `n_heads` does not divide `d_model`,
            or a setting is outside what is allowed.
    """

    d_vocab: int
    """number of token ids"""
    n_ctx: int
    """longest sequence, in tokens"""
    n_layers: int
    n_heads: int
    d_model: int
    """width of the residual stream"""
    d_mlp: int | None = None
    """hidden width of the MLP; 4 d_model when not given; 0 makes the model attention-only"""
    act_fn: ActFn = "gelu"
    """'gelu' is the exact GELU, 'gelu_new' its tanh form"""
    eps: float = 1e-5
    """added to the variance in every LayerNorm"""
    attn_scale: float | None = None
    """what attention scores are divided by; sqrt(d_head) when not given"""
    scale_attn_by_inverse_layer_idx: bool = False
    """scores of layer l are divided by l + 1 as well, counting from 0"""
    qkv_bias: bool = True
    """biases on query, key and value"""
    bias: bool = True
    """biases on the attention output, the MLP and the LayerNorms"""
    unembed_bias: bool = False
    tied_embeddings: bool = False
    """the unembedding is the transposed token embedding, one tensor"""
    dropout: float = 0.0
    """on the embedding, the pattern and each sublayer's output, while training"""
    init_mode: InitMode = "pytorch"
    """'pytorch': each layer's own default (embeddings N(0, 1)); 'gpt2': N(0, 0.02), residual
    projections N(0, 0.02 / sqrt(2 n_layers)), biases 0"""

    def __post_init__(self) -> None:
        for name, value in _checked(dataclasses.asdict(self)).items():
            object.__setattr__(self, name, value)

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    @property
    def attn_only(self) -> bool:
        return self.d_mlp == 0

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GPTConfig:
        """The inverse of `to_dict`.

        Raises:
            ModelError: when a field is missing or unknown, or a value is not allowed.
        """
        fields = {field.name: field.default for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(fields))
        missing = [
            name
            for name, default in fields.items()
            if default is dataclasses.MISSING and name not in values
        ]
        if unknown or missing:
            raise ModelError(
                "the configuration is not a GPT's: "
                + "; ".join(
                    f"{word} {', '.join(names)}"
                    for word, names in (("unknown", unknown), ("missing", missing))
                    if names
                )
                + f"; the fields are {', '.join(fields)}."
            )
        return cls(**_checked(fields | dict(values)))


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """The fields with what was left out filled in; raises where one is not allowed."""
    for name in ("d_vocab", "n_ctx", "n_layers", "n_heads", "d_model"):
        _check_whole(name, values[name], least=1)
    d_model, n_heads = values["d_model"], values["n_heads"]
    if d_model % n_heads:
        divisors = [n for n in range(1, d_model + 1) if d_model % n == 0]
        nearest = min(divisors, key=lambda n: abs(n - n_heads))
        raise ModelError(
            f"n_heads={n_heads} does not divide d_model={d_model}: "
            f"choose a number of heads that does, such as {nearest}."
        )
    if values["d_mlp"] is None:
        values["d_mlp"] = 4 * d_model
    _check_whole("d_mlp", values["d_mlp"], least=0)
    if values["attn_scale"] is None:
        values["attn_scale"] = math.sqrt(d_model // n_heads)
    for name, inside, allowed in (
        ("eps", lambda x: 0 <= x < math.inf, "a number from 0 up"),
        ("attn_scale", lambda x: 0 < x < math.inf, "a number above 0"),
        ("dropout", lambda x: 0 <= x < 1, "a number from 0 up to, but not including, 1"),
    ):
        value = values[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and inside(value)):
            raise ModelError(f"{name}={value!r} is not {allowed}.")
        values[name] = float(value)
    for name, choices in (("act_fn", get_args(ActFn)), ("init_mode", get_args(InitMode))):
        if values[name] not in choices:
            raise ModelError(
                f"{name}={values[name]!r} is not known: use one of {', '.join(choices)}."
            )
    for name in _YES_OR_NO:
        if not isinstance(values[name], bool):
            raise ModelError(f"{name}={values[name]!r} is neither true nor false.")
    return values


def _check_whole(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelError(f"{name}={value!r} is not a whole number from {least} up.")


def _gpt2(n_layers: int, n_heads: int, d_model: int) -> GPTConfig:
    return GPTConfig(
        d_vocab=50257,
        n_ctx=1024,
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=d_model,
        tied_embeddings=True,
        init_mode="gpt2",
    )


PRESETS: Mapping[str, GPTConfig] = {
    "course": GPTConfig(d_vocab=65, n_ctx=64, n_layers=4, n_heads=4, d_model=128, qkv_bias=False),
    "shakespeare-char": GPTConfig(
        d_vocab=65,
        n_ctx=256,
        n_layers=6,
        n_heads=6,
        d_model=384,
        qkv_bias=False,
        bias=False,
        tied_embeddings=True,
        dropout=0.2,
        init_mode="gpt2",
    ),
    "gpt2": _gpt2(12, 12, 768),
    "gpt2-medium": _gpt2(24, 16, 1024),
    "gpt2-large": _gpt2(36, 20, 1280),
    "gpt2-xl": _gpt2(48, 25, 1600),
}


def preset(name: str, **changes: Any) -> GPTConfig:
    """The preset `name`, with `changes` to its fields.

    A change of `d_model` or `n_heads` carries `d_mlp` and `attn_scale` along, unless they are
    given too.

    Raises:
        ModelError: when the name or a field is unknown, or the sizes do not fit together.
    """
    if name not in PRESETS:
        raise ModelError(f"there is no preset {name!r}: use one of {', '.join(PRESETS)}.")
    values = PRESETS[name].to_dict()
    if {"d_model", "n_heads"} & changes.keys():
        values |= {"d_mlp": None, "attn_scale": None}
    return GPTConfig.from_dict(values | changes)
