"""A HookedTransformer's weights, laid out for plain matrix products.

Only W_Q, W_K and W_V need re-laying (TransformerLens keeps them by head); the rest are views of
the model's own parameters. They are laid anew for each call, which costs less than one layer of
one forward pass, so a changed weight can never give a stale number and nothing is shared between
threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.forward import Tap, forward, linear

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from transformer_lens import HookedTransformer, HookedTransformerConfig

    from interp.sites import Site

ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}

# What a config must say for `forward` to be the whole truth about the model.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "positional_embedding_type": ("standard",),
    "normalization_type": ("LN", "LNPre", None),
    "attention_dir": ("causal",),
    "dtype": (torch.float32, torch.float64),
    "attn_scores_soft_cap": (-1.0, 0.0, None),
    "output_logits_soft_cap": (-1.0, 0.0, None),
    "n_devices": (1,),
    "clip_qkv": (None,),
    "n_key_value_heads": (None,),
    "num_experts": (None,),
    "original_architecture": (None, "GPT2LMHeadModel", "nanogpt", "mingpt"),
    **dict.fromkeys(
        (
            "final_rms",
            "gated_mlp",
            "load_in_4bit",
            "parallel_attn_mlp",
            "post_embedding_ln",
            "use_attention_sinks",
            "use_hook_tokens",
            "use_local_attn",
            "use_logn_attn",
            "use_normalization_before_and_after",
            "use_qk_norm",
        ),
        (False,),
    ),
}


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Gain and shift of one LayerNorm, None where they are folded into what reads it."""

    gain: Float[Tensor, " d_model"] | None
    shift: Float[Tensor, " d_model"] | None


@dataclass(frozen=True, eq=False)
class MLP:
    """One MLP with its activation function."""

    W_in: Float[Tensor, "d_model d_mlp"]
    b_in: Float[Tensor, " d_mlp"]
    act_fn: Callable[[Tensor], Tensor]
    W_out: Float[Tensor, "d_mlp d_model"]
    b_out: Float[Tensor, " d_model"]

    def __call__(self, read: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """What it writes, where nobody looks at its neurons."""
        return linear(self.act_fn(linear(read, self.W_in, self.b_in)), self.W_out, self.b_out)


@dataclass(frozen=True, eq=False)
class Block:
    """One block. `heads` is n_heads times d_head, head by head."""

    ln1: LayerNorm | None
    W_QKV: Float[Tensor, "d_model three_heads"]
    b_QKV: Float[Tensor, " three_heads"]
    attn_scale: float
    W_O: Float[Tensor, "heads d_model"]
    b_O: Float[Tensor, " d_model"]
    ln2: LayerNorm | None
    mlp: MLP | None


@dataclass(frozen=True, eq=False)
class Weights:
    """Everything `forward` needs to know of a model."""

    cfg: HookedTransformerConfig
    W_E: Float[Tensor, "d_vocab d_model"]
    W_pos: Float[Tensor, "n_ctx d_model"]
    blocks: tuple[Block, ...]
    ln_final: LayerNorm | None
    W_U: Float[Tensor, "d_model d_vocab_out"]
    b_U: Float[Tensor, " d_vocab_out"]

    def run(
        self, ids: Int[Tensor, "batch pos"], tap: Tap, sites: Collection[Site] | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """`interp.forward.forward` with these weights."""
        return forward(self, ids, tap, sites)

    def unembed(self, final: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_vocab_out"]:
        """Logits of what `run` returned."""
        return linear(final, self.W_U, self.b_U)


def obstacles(cfg: HookedTransformerConfig) -> list[str]:
    """What in this config `forward` cannot express, as "field=value"; empty when nothing is."""
    found = [
        f"{field}={getattr(cfg, field)!r}"
        for field, allowed in _PLAIN.items()
        if getattr(cfg, field, allowed[0]) not in allowed
    ]
    if not cfg.attn_only and cfg.act_fn not in ACTIVATIONS:
        found.append(f"act_fn={cfg.act_fn!r}")
    return found


def lay_out(model: HookedTransformer) -> Weights:
    """The weights of a model without `obstacles`, detached from autograd.

    Raises:
        InputError: a model with obstacles: `forward` would give wrong numbers for it.

    Cost: copies W_Q, W_K and W_V, 3 d_model n_heads d_head numbers a layer (85 MB in float32 for
    GPT-2 small).
    """
    cfg = model.cfg
    if found := obstacles(cfg):
        raise InputError(
            f"Model {cfg.model_name!r} has {', '.join(found)}, which this forward pass cannot "
            "express: use a model with learned positions, LayerNorm or none, and a plain MLP."
        )

    def norm(module: Any) -> LayerNorm | None:
        if cfg.normalization_type is None:
            return None
        if cfg.normalization_type == "LNPre":
            return LayerNorm(None, None)
        return LayerNorm(module.w.detach(), module.b.detach())

    def mlp(module: Any) -> MLP:
        W_in, b_in, W_out, b_out = (
            p.detach() for p in (module.W_in, module.b_in, module.W_out, module.b_out)
        )
        return MLP(W_in, b_in, ACTIVATIONS[cfg.act_fn], W_out, b_out)

    def block(module: Any) -> Block:
        attn = module.attn
        by_input = [W.detach().transpose(0, 1) for W in (attn.W_Q, attn.W_K, attn.W_V)]
        return Block(
            ln1=norm(module.ln1),
            W_QKV=torch.cat(by_input, dim=1).flatten(1),
            b_QKV=torch.stack([b.detach() for b in (attn.b_Q, attn.b_K, attn.b_V)]).flatten(),
            attn_scale=float(attn.attn_scale),
            W_O=attn.W_O.detach().flatten(0, 1),
            b_O=attn.b_O.detach(),
            ln2=None if cfg.attn_only else norm(module.ln2),
            mlp=None if cfg.attn_only else mlp(module.mlp),
        )

    return Weights(
        cfg=cfg,
        W_E=model.embed.W_E.detach(),
        W_pos=model.pos_embed.W_pos.detach(),
        blocks=tuple(block(module) for module in model.blocks),
        ln_final=norm(getattr(model, "ln_final", None)),
        W_U=model.unembed.W_U.detach(),
        b_U=model.unembed.b_U.detach(),
    )
