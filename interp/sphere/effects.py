"""What a component does to a logit directly, with the final LayerNorm's scale let go.

Removing a write c from the last state x changes the logits in two ways: its own part is gone, and
LayerNorm rescales all the rest by r = s / s', where s' is the scale without it:

    logits' = c0 + r (logits - c0 - part),   part = c A / s
    effect of c = logits - logits' = part + (1 - r) (logits - c0 - part)
                                     frozen           rescale

Exact, for any size of c. Direct logit attribution is the frozen term alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.components import Write, attention_bias, value_bias, write_kinds, write_sites, writes
from interp.engine import Trace
from interp.inputs import Input
from interp.logit_question import ask
from interp.readout import Readout
from interp.replay import replay
from interp.result_sets import labelled_set
from interp.sites import Site, sites_of
from interp.sphere.states import sphere_norms

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


class LastState:
    """Last states x, ready to have writes taken out of them."""

    def __init__(self, read: Readout, x: Float[Tensor, "*rows d_model"]) -> None:
        self.read = read
        self.centred = read.norm.centred(x)
        self.scale = read.norm.scale(x)

    def without(
        self, write: Float[Tensor, "*rows d_model"]
    ) -> tuple[Float[Tensor, "*rows token"], Float[Tensor, "*rows token"]]:
        """The frozen and the rescale term of a write that is part of x.

        Cost: two products with A and a few passes over x; no forward pass.
        """
        moved = self.read.norm.centred(write)
        left = self.centred - moved
        without = (left.square().mean(-1, keepdim=True) + self.read.norm.eps).sqrt()
        frozen = moved @ self.read.A / self.scale
        rest = left @ self.read.A / self.scale
        # 1 - s/s' from s'^2 - s^2, which keeps the digits of a small write.
        shrunk = -(moved * (left + self.centred)).mean(-1, keepdim=True)
        return frozen, shrunk / (without * (without + self.scale)) * rest


def direct_effect(
    model: HookedTransformer,
    input: Input | Trace,
    target: str | int | None,
    contrast: str | int | None = None,
    *,
    pos: int | None = None,
) -> xr.Dataset:
    """Each component's exact direct effect on a logit, on the difference of two, or on all.

    The effect is the logit as it is, minus what it would be without the component's write into
    the last state, everything upstream and downstream of the write held.

    Args:
        target, contrast: the token whose logit is meant (None: each token's), and the one
            subtracted, if any.
        pos: one position (negative counts from the end); None for all.

    Returns:
        Over [component, batch, pos], in logits (with a last axis `token` when target is None):
        `frozen`, the part that direct logit attribution gives; `rescale`, what the final
        LayerNorm's scale adds; `exact`, their sum. `kind` and `layer` are coordinates of
        component, as in `direct_logit_attribution`.

    Raises:
        InputError: unreadable input, an unknown token, a contrast without a target, a position
            outside the prompt, or a model without normalisation, whose attribution is exact
            already.

    Cost: one forward pass, and for each component one product with the asked columns of the
    unembedding and a few passes over [batch, pos, d_model].
    """
    sphere_norms(model)
    asked = ask(model, input, target, contrast, pos, write_sites(model.cfg))
    last = LastState(asked.read, asked.x)
    terms = [last.without(asked.at(write.value)) for write in writes(asked.run)]
    frozen, rescale = (asked.said(torch.stack(term)) for term in zip(*terms, strict=True))
    axes = ("component", *asked.axes)
    return asked.answer(
        {
            "frozen": (frozen, axes, "logits"),
            "rescale": (rescale, axes, "logits"),
            "exact": (frozen + rescale, axes, "logits"),
        },
        _component_coords(model),
    )


def ablation_effect(
    model: HookedTransformer,
    input: Input | Trace,
    target: str | int | None,
    contrast: str | int | None = None,
    *,
    pos: int = -1,
) -> xr.Dataset:
    """The total effect of removing each component, split in three.

    total = frozen + rescale + downstream. The component's write is removed at every position and
    the rest of the model runs on; the first two terms are `direct_effect`'s, and the third is
    what later components, reading a changed stream, do about it. Backup heads and self-repair
    (Rushing & Nanda 2024, 2402.15390) show as terms of opposite sign to `frozen`.

    Args:
        target, contrast: the token whose logit is meant (None: each token's), and the one
            subtracted, if any.
        pos: the position that is read.

    Returns:
        `frozen`, `rescale`, `downstream` and `total` over [component, batch], in logits (with a
        last axis `token` when target is None). Removing a head leaves the value bias that it
        passes on whatever it attends to (see `interp.components`).

    Raises:
        InputError: as `direct_effect`.

    Cost: one forward pass and, for each component, what its removal can reach of another.
    """
    sphere_norms(model)
    asked = ask(model, input, target, contrast, pos, sites_of(model.cfg))
    run, [at], last = asked.run, asked.chosen, LastState(asked.read, asked.x[:, 0])
    components = list(writes(run))
    direct = [last.without(write.value[:, at]) for write in components]
    frozen, rescale = (torch.stack(term) for term in zip(*direct, strict=True))
    changed = replay(run, [removal(run, write) for write in components], pos=at)
    total = asked.asked(run.logits[:, at] - changed)
    downstream = total - frozen - rescale
    terms = {"frozen": frozen, "rescale": rescale, "downstream": downstream, "total": total}
    axes = ("component", "batch", *asked.axes[2:])
    return labelled_set(
        model,
        {name: (asked.said(term), axes, "logits") for name, term in terms.items()},
        ids=run.ids,
        coords=_component_coords(model),
        target=target,
        contrast=contrast,
        pos=at,
    )


def removal(run: Trace, write: Write) -> Mapping[Site, Tensor | float]:
    """The edit that takes a component's write out of the model, at every position."""
    if write.kind == "head" and write.layer is not None:
        head = int(write.label.split("H")[1])
        return {Site("z", write.layer, head): value_bias(run.model, write.layer)[head]}
    if write.kind == "attn_bias" and write.layer is not None:
        site = Site("attn_out", write.layer)
        return {site: run[site] - attention_bias(run.model, write.layer)}
    kind = write.label if write.layer is None else "mlp_out"
    return {Site(kind, write.layer): 0.0}


def _component_coords(model: HookedTransformer) -> dict[str, object]:
    labels, kinds, layers = zip(*write_kinds(model), strict=True)
    return {
        "component": list(labels),
        "kind": ("component", list(kinds)),
        "layer": ("component", list(layers)),
    }
