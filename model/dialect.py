"""What a dialect is: the shape of the tables in `dialects.py`.

Axes of a layout: d_vocab, n_ctx, d_model, d_mlp, head, d_head, and `part` (query, key, value, in
this order). `(part head d_head)` is one dimension that holds the three, the last one fastest, as
in einops. An axis in braces in a *name* is spread over several tensors, `(a|b)` there means that
writers differ, and the first is what we write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

LAYOUTS: Mapping[str, str] = {
    "embed.weight": "d_vocab d_model",
    "pos_embed.weight": "n_ctx d_model",
    "blocks.{layer}.ln1.weight": "d_model",
    "blocks.{layer}.ln1.bias": "d_model",
    "blocks.{layer}.attn.qkv_proj.weight": "(part head d_head) d_model",
    "blocks.{layer}.attn.qkv_proj.bias": "(part head d_head)",
    "blocks.{layer}.attn.out_proj.weight": "d_model (head d_head)",
    "blocks.{layer}.attn.out_proj.bias": "d_model",
    "blocks.{layer}.ln2.weight": "d_model",
    "blocks.{layer}.ln2.bias": "d_model",
    "blocks.{layer}.mlp.in_proj.weight": "d_mlp d_model",
    "blocks.{layer}.mlp.in_proj.bias": "d_mlp",
    "blocks.{layer}.mlp.out_proj.weight": "d_model d_mlp",
    "blocks.{layer}.mlp.out_proj.bias": "d_model",
    "ln_final.weight": "d_model",
    "ln_final.bias": "d_model",
    "unembed.weight": "d_vocab d_model",
    "unembed.bias": "d_vocab",
}
"""Every parameter of our own GPT with its layout."""

QKV_BIAS = frozenset({"blocks.{layer}.attn.qkv_proj.bias"})
UNEMBED_BIAS = frozenset({"unembed.bias"})
BIASES = frozenset(p for p in LAYOUTS if p.endswith(".bias")) - QKV_BIAS - UNEMBED_BIAS
LAYER_NORMS = frozenset(p for p in LAYOUTS if ".ln" in p or p.startswith("ln_"))
MLP = frozenset(p for p in LAYOUTS if ".mlp." in p or ".ln2." in p)
UNEMBED, EMBED = frozenset({"unembed.weight"}), frozenset({"embed.weight"})


@dataclasses.dataclass(frozen=True)
class Stored:
    """The name of one of our parameters in a dialect, and its layout there."""

    name: str
    layout: str


@dataclasses.dataclass(frozen=True)
class Key:
    """What a key of a dialect's own configuration says of a GPTConfig.

    Attributes:
        field: the field of GPTConfig, or what follows from its fields.
        values: our value for each of theirs; those not listed are taken as they are when `open`,
            and outside the family when not.
    """

    field: str
    values: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
    open: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one code base writes a GPT.

    Attributes:
        about: whose code it is, for people.
        tensors: where each of our parameters is kept; those left out it never has.
        parts: how a name spells query, key and value.
        ignored: buffers that hold no weights.
        optional: parameters that are absent together or not at all.
        tied: the unembedding is the embedding always (True), never (False), or either (None).
        settings: the keys of its configuration.
        requires: keys whose value decides whether it is a GPT of the family at all, and what
            they may be; the first is what we write.
        marks: keys that its configuration always has.
        assumed: what its code fixes and neither tensors nor configuration say; `attn_scale` None
            is sqrt(d_head), `d_mlp` None is 4 d_model, and `d_head` gives the number of heads.
    """

    name: str
    about: str
    tensors: Mapping[str, Stored]
    parts: tuple[str, str, str] = ("query", "key", "value")
    ignored: tuple[str, ...] = ()
    optional: tuple[frozenset[str], ...] = ()
    tied: bool | None = None
    settings: Mapping[str, Key] = dataclasses.field(default_factory=dict)
    requires: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    marks: frozenset[str] = frozenset()
    assumed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
