"""Where in the model: typed addresses of activations.

Glossary of axes, used by every signature and every result of this package:

    batch       one prompt of a batch of equal-length prompts
    pos         position of a token in its prompt, 0 first
    layer       block of the model, 0 first
    head        attention head within its layer
    query_pos   the position that attends      (first position axis of scores and patterns)
    key_pos     the position attended to       (second position axis of scores and patterns)
    neuron      hidden unit of an MLP
    d_model     coordinate of the residual stream
    d_head      coordinate of one head's query, key, value or output

Site kinds carry TransformerLens' short names. This is the only file of `interp` that spells
TransformerLens' hook names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from interp.errors import InputError

if TYPE_CHECKING:
    from transformer_lens import HookedTransformerConfig


@dataclass(frozen=True)
class SiteKind:
    """What all sites of one kind share.

    Attributes:
        hook: TransformerLens' hook name, with `{layer}` where the layer goes.
        axes: the axes that an address may pick from, in the order of the tensor after its batch
            axis. `query_pos` is addressed by `Site.pos`.
        vector: True when one more axis follows that no address picks from (d_model, d_head ...).
    """

    hook: str
    axes: tuple[str, ...]
    vector: bool = False

    @property
    def has_layer(self) -> bool:
        """Whether each block has its own site of this kind."""
        return "{layer}" in self.hook

    @property
    def fields(self) -> tuple[str, ...]:
        """The index fields of `Site` that this kind may set."""
        named = tuple("pos" if axis == "query_pos" else axis for axis in self.axes)
        return ("layer", *named) if self.has_layer else named


def _block(name: str, *axes: str, vector: bool = False) -> SiteKind:
    return SiteKind(f"blocks.{{layer}}.{name}", axes, vector)


# In forward order; the order is part of the meaning (see `sites_of` and `forward_order`).
SITE_KINDS: Mapping[str, SiteKind] = MappingProxyType(
    {
        "embed": SiteKind("hook_embed", ("pos",), vector=True),
        "pos_embed": SiteKind("hook_pos_embed", ("pos",), vector=True),
        "resid_pre": _block("hook_resid_pre", "pos", vector=True),
        "ln1_scale": _block("ln1.hook_scale", "pos", vector=True),
        "ln1_normalized": _block("ln1.hook_normalized", "pos", vector=True),
        "q": _block("attn.hook_q", "pos", "head", vector=True),
        "k": _block("attn.hook_k", "pos", "head", vector=True),
        "v": _block("attn.hook_v", "pos", "head", vector=True),
        "attn_scores": _block("attn.hook_attn_scores", "head", "query_pos", "key_pos"),
        "pattern": _block("attn.hook_pattern", "head", "query_pos", "key_pos"),
        "z": _block("attn.hook_z", "pos", "head", vector=True),
        "attn_out": _block("hook_attn_out", "pos", vector=True),
        "resid_mid": _block("hook_resid_mid", "pos", vector=True),
        "ln2_scale": _block("ln2.hook_scale", "pos", vector=True),
        "ln2_normalized": _block("ln2.hook_normalized", "pos", vector=True),
        "mlp_pre": _block("mlp.hook_pre", "pos", "neuron"),
        "mlp_post": _block("mlp.hook_post", "pos", "neuron"),
        "mlp_out": _block("hook_mlp_out", "pos", vector=True),
        "resid_post": _block("hook_resid_post", "pos", vector=True),
        "ln_final_scale": SiteKind("ln_final.hook_scale", ("pos",), vector=True),
        "ln_final_normalized": SiteKind("ln_final.hook_normalized", ("pos",), vector=True),
    }
)

_FIELDS = ("layer", "head", "pos", "neuron", "key_pos")


@dataclass(frozen=True)
class Site:
    """An address in the model: a site kind, and indices where only a part of it is meant.

    An index left out means all of that axis, so `Site("z", layer=1)` is every head at every
    position, and `Site("z", layer=1, head=2, pos=5)` one vector of d_head numbers. For
    `attn_scores` and `pattern`, `pos` is the position that attends.

    Raises:
        InputError: unknown kind, a missing layer, an index that the kind does not have, or an
            index that is not a whole number from 0 on.
    """

    kind: str
    layer: int | None = None
    head: int | None = None
    pos: int | None = None
    neuron: int | None = None
    key_pos: int | None = None
    # Sites are looked up hundreds of times a run.
    _hash: int = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        own = tuple(getattr(self, name) for name in ("kind", *_FIELDS))
        object.__setattr__(self, "_hash", hash(own))
        fields = kind_named(self.kind).fields
        if "layer" in fields and self.layer is None:
            raise InputError(
                f"Site {self.kind!r} came without a layer, but every block has its own: "
                f"write Site({self.kind!r}, layer=...)."
            )
        for field in _FIELDS:
            value = getattr(self, field)
            if value is None:
                continue
            if field not in fields:
                raise InputError(
                    f"Site {self.kind!r} came with {field}={value}, but it can only be indexed by "
                    f"{', '.join(fields)}: leave {field} out or choose another kind."
                )
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InputError(
                    f"Site {self.kind!r} came with {field}={value!r}, but indices are whole "
                    "numbers from 0 on: count from the front."
                )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        set_fields = {name: getattr(self, name) for name in _FIELDS}
        shown = [f"{name}={value}" for name, value in set_fields.items() if value is not None]
        return f"Site({', '.join([repr(self.kind), *shown])})"

    @property
    def hook_name(self) -> str:
        """TransformerLens' name of the hook point, for example `blocks.1.attn.hook_z`."""
        return SITE_KINDS[self.kind].hook.format(layer=self.layer)

    @property
    def whole(self) -> Site:
        """The same site without head, position and neuron: the whole tensor."""
        return whole_site(self.kind, self.layer)

    def check(self, cfg: HookedTransformerConfig, n_pos: int) -> None:
        """Raises InputError unless a model of this shape has the site on a prompt of `n_pos`."""
        if self.layer is not None and self.layer >= cfg.n_layers:
            raise InputError(
                f"Site {self.kind!r} came with layer={self.layer}, but the model has "
                f"{cfg.n_layers} layers: choose a layer from 0 to {cfg.n_layers - 1}."
            )
        if self.kind not in kinds_of(cfg):
            raise InputError(
                f"Site {self.kind!r} does not exist in this model "
                f"(attn_only={cfg.attn_only}, normalization_type={cfg.normalization_type}): "
                f"choose one of {', '.join(kinds_of(cfg))}."
            )
        limits = {
            "head": heads_at(cfg, self.kind),
            "pos": n_pos,
            "key_pos": n_pos,
            "neuron": cfg.d_mlp or 0,
        }
        for field, limit in limits.items():
            value = getattr(self, field)
            if value is not None and value >= limit:
                raise InputError(
                    f"Site {self.kind!r} came with {field}={value}, but only 0 to {limit - 1} "
                    "exist here: choose an index in that range."
                )


@cache
def whole_site(kind: str, layer: int | None = None) -> Site:
    """`Site(kind, layer)`, the same object every time."""
    return Site(kind, layer)


def kind_named(name: str) -> SiteKind:
    """The site kind of that name, or an InputError that lists what there is."""
    if name not in SITE_KINDS:
        raise InputError(
            f"Site kind {name!r} does not exist: choose one of {', '.join(SITE_KINDS)}."
        )
    return SITE_KINDS[name]


def heads_at(cfg: HookedTransformerConfig, kind: str) -> int:
    """Heads that a kind of site has: groups of heads may share keys and values."""
    shared = cfg.n_key_value_heads if kind in ("k", "v") else None
    return shared or cfg.n_heads


def kinds_of(cfg: HookedTransformerConfig) -> tuple[str, ...]:
    """The site kinds that a model of this config has, in forward order."""
    absent: set[str] = set()
    if cfg.normalization_type is None:
        absent |= {kind for kind in SITE_KINDS if kind.startswith("ln")}
    if cfg.attn_only:
        absent |= {kind for kind in SITE_KINDS if kind.startswith(("ln2", "mlp"))}
        absent |= {"resid_mid"}
    if cfg.positional_embedding_type not in ("standard", "shortformer"):
        absent |= {"pos_embed"}
    if cfg.parallel_attn_mlp:
        absent |= {"resid_mid"}
    if cfg.num_experts is not None:
        absent |= {"mlp_pre", "mlp_post"}
    return tuple(kind for kind in SITE_KINDS if kind not in absent)


def sites_of(cfg: HookedTransformerConfig) -> list[Site]:
    """Every site of a model as whole tensors, in forward order."""
    kinds = kinds_of(cfg)
    blocks = [kind for kind in kinds if SITE_KINDS[kind].has_layer]
    before = [kind for kind in kinds if kind in ("embed", "pos_embed")]
    after = [kind for kind in kinds if kind.startswith("ln_final")]
    return [
        *(whole_site(kind) for kind in before),
        *(whole_site(kind, layer) for layer in range(cfg.n_layers) for kind in blocks),
        *(whole_site(kind) for kind in after),
    ]
