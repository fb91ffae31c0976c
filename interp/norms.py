"""The normalisations of a model as plain numbers.

A pre-norm transformer reads its residual stream only through a normalisation: one before each
sublayer and one before the unembedding. Here each is a `Norm`, so that LayerNorm, LayerNorm with
folded weights, RMSNorm and no normalisation at all are one formula:

    x~ = x - mean(x)          (LayerNorm; RMSNorm and none leave x as it is)
    s  = sqrt(|x~|^2/d + eps) (none: 1)
    y  = x~ / s               TransformerLens' hook_normalized
    out = gain * y + bias     (folded: gain 1, bias 0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

NormKind = Literal["LN", "RMS", "none"]


def mean_removed(x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
    """x~ = x - mean(x) along the last axis.

    The mean is removed twice: what rounding leaves of a large constant row after one pass would
    pass for a direction once LayerNorm divides by its tiny norm.
    """
    once = x - x.mean(-1, keepdim=True)
    return once.sub_(once.mean(-1, keepdim=True))


@dataclass(frozen=True, eq=False)
class Norm:
    """One normalisation: what it subtracts, what it divides by, its gain and its bias."""

    kind: NormKind
    eps: float
    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"]

    def centred(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """x~, the part of x that the normalisation can see."""
        return mean_removed(x) if self.kind == "LN" else x

    def scale(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows 1"]:
        """s, what x~ is divided by (TransformerLens' hook_scale)."""
        if self.kind == "none":
            return torch.ones_like(x[..., :1])
        return (self.centred(x).square().mean(-1, keepdim=True) + self.eps).sqrt()

    def normalised(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """y = x~/s, before gain and bias."""
        if self.kind == "none":
            return x
        centred = self.centred(x)
        return centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()

    def basis(self) -> Float[Tensor, "d_model dimension"]:
        """Orthonormal columns that span what y can be: the mean-free vectors (Helmert's basis),
        or all of them where no mean is removed."""
        d_model = len(self.gain)
        if self.kind != "LN":
            return torch.eye(d_model, dtype=self.gain.dtype, device=self.gain.device)
        k = torch.arange(1, d_model, dtype=self.gain.dtype, device=self.gain.device)
        row = torch.arange(d_model, device=self.gain.device)[:, None]
        return ((row < k).to(k) - k * (row == k).to(k)) / (k * (k + 1)).sqrt()

    def __call__(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """The whole normalisation: gain * y + bias."""
        return self.normalised(x) * self.gain + self.bias


def _norm(model: HookedTransformer, module: torch.nn.Module | None) -> Norm:
    cfg = model.cfg
    kinds: dict[str | None, NormKind] = {
        "LN": "LN",
        "LNPre": "LN",
        "RMS": "RMS",
        "RMSPre": "RMS",
        None: "none",
    }
    if cfg.normalization_type not in kinds:
        raise InputError(
            f"The normalisation {cfg.normalization_type!r} is not known here; "
            "LN, LNPre, RMS, RMSPre and None are: analyse a model that uses one of them."
        )
    like = model.unembed.W_U
    gain = getattr(module, "w", None)
    bias = getattr(module, "b", None)
    return Norm(
        kinds[cfg.normalization_type],
        cfg.eps,
        like.new_ones(cfg.d_model) if gain is None else gain.detach(),
        like.new_zeros(cfg.d_model) if bias is None else bias.detach(),
    )


def final_norm(model: HookedTransformer) -> Norm:
    """The normalisation before the unembedding."""
    # TransformerLens makes no ln_final at all for a model without normalisation.
    return _norm(model, getattr(model, "ln_final", None))


def attention_norm(model: HookedTransformer, layer: int) -> Norm:
    """The normalisation that a layer's attention reads through."""
    return _norm(model, model.blocks[layer].ln1)


def norms(model: HookedTransformer) -> list[Norm]:
    """Every normalisation, in forward order: entry i reads stream state i.

    A block with an MLP has two (2L+1 in all), an attention-only block one (L+1 in all).
    """
    readers = []
    for block in model.blocks:
        readers.append(_norm(model, block.ln1))
        if not model.cfg.attn_only:
            readers.append(_norm(model, block.ln2))
    return [*readers, final_norm(model)]


def state_names(cfg: HookedTransformerConfig) -> list[str]:
    """The stream states in order, by TransformerLens' labels: 0_pre, 0_mid, 1_pre ... final_post.

    Attention-only models have no _mid states.
    """
    steps = ("pre",) if cfg.attn_only else ("pre", "mid")
    names = [f"{layer}_{step}" for layer in range(cfg.n_layers) for step in steps]
    return [*names, "final_post"]


def hop_names(cfg: HookedTransformerConfig) -> list[str]:
    """The sublayers in order, by what they write: hop i leads from state i to state i + 1."""
    outs = ("attn_out",) if cfg.attn_only else ("attn_out", "mlp_out")
    return [f"{layer}_{out}" for layer in range(cfg.n_layers) for out in outs]


def stream_sites(cfg: HookedTransformerConfig) -> list[Site]:
    """What a trace must keep for its `stream`."""
    kinds = (
        ("resid_pre", "resid_post") if cfg.attn_only else ("resid_pre", "resid_mid", "resid_post")
    )
    return [Site(kind, layer) for layer in range(cfg.n_layers) for kind in kinds]
