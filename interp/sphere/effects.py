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
from interp.inputs import Input, to_id
from interp.readout import Readout, readout
from interp.replay import replay
from interp.residual import positions
from interp.result_sets import labelled_set
from interp.sites import Site, sites_of
from interp.sphere.states import sphere_norms, traced

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def effect_of(
    read: Readout, x: Float[Tensor, "*rows d_model"], write: Float[Tensor, "*rows d_model"]
) -> tuple[Float[Tensor, "*rows token"], Float[Tensor, "*rows token"]]:
    """The frozen and the rescale term of a write c that is part of the last states x.

    Cost: two products with A and a few passes over x; no forward pass.
    """
    centred, moved = read.norm.centred(x), read.norm.centred(write)
    scale, without = read.norm.scale(x), read.norm.scale(x - write)
    frozen = moved @ read.A / scale
    rest = (centred - moved) @ read.A / scale
    # 1 - s/s' from s'^2 - s^2, which keeps the digits of a small write.
    shrunk = (moved * (moved - 2 * centred)).mean(-1, keepdim=True)
    return frozen, shrunk / (without * (without + scale)) * rest


def direct_effect(
    model: HookedTransformer,
    input: Input | Trace,
    target: str | int,
    contrast: str | int | None = None,
    *,
    pos: int | None = None,
) -> xr.Dataset:
    """Each component's exact direct effect on a logit, or on the difference of two.

    The effect is the logit as it is, minus what it would be without the component's write into
    the last state, everything upstream and downstream of the write held.

    Args:
        target, contrast: the token whose logit is meant, and the one subtracted, if any.
        pos: one position (negative counts from the end); None for all.

    Returns:
        Over [component, batch, pos], in logits: `frozen`, the part that direct logit attribution
        gives; `rescale`, what the final LayerNorm's scale adds; `exact`, their sum. `kind` and
        `layer` are coordinates of component, as in `direct_logit_attribution`.

    Raises:
        InputError: unreadable input, an unknown token, a position outside the prompt, or a model
            without normalisation, whose attribution is exact already.

    Cost: one forward pass, and for each component two products with one column of the unembedding
    and a few passes over [batch, pos, d_model].
    """
    sphere_norms(model)
    run = traced(model, input, write_sites(model.cfg))
    chosen = positions(pos, run.ids.shape[1])
    read = readout(
        model, to_id(model, target), None if contrast is None else to_id(model, contrast)
    )
    x = run.stream[-1, :, chosen]
    terms = [effect_of(read, x, write.value[:, chosen]) for write in writes(run)]
    frozen, rescale = (torch.stack(term)[..., 0] for term in zip(*terms, strict=True))
    dims = ("component", "batch", "pos")
    return labelled_set(
        model,
        {
            "frozen": (frozen, dims, "logits"),
            "rescale": (rescale, dims, "logits"),
            "exact": (frozen + rescale, dims, "logits"),
        },
        ids=run.ids,
        coords=_component_coords(model) | {"pos": chosen},
        target=target,
        contrast=contrast,
    )


def ablation_effect(
    model: HookedTransformer,
    input: Input | Trace,
    target: str | int,
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
        target, contrast: the token whose logit is meant, and the one subtracted, if any.
        pos: the position that is read.

    Returns:
        `frozen`, `rescale`, `downstream` and `total` over [component, batch], in logits. Removing
        a head leaves the value bias that it passes on whatever it attends to (see
        `interp.components`).

    Raises:
        InputError: as `direct_effect`.

    Cost: one forward pass and, for each component, what its removal can reach of another.
    """
    sphere_norms(model)
    run = traced(model, input, sites_of(model.cfg))
    [at] = positions(pos, run.ids.shape[1])
    target_id = to_id(model, target)
    contrast_id = None if contrast is None else to_id(model, contrast)
    read, x = readout(model, target_id, contrast_id), run.stream[-1, :, at]
    components = list(writes(run))
    terms = [effect_of(read, x, write.value[:, at]) for write in components]
    frozen, rescale = (torch.stack(term)[..., 0] for term in zip(*terms, strict=True))

    changed = replay(run, [removal(run, write) for write in components], pos=at)
    lost = run.logits[:, at] - changed
    total = lost[..., target_id]
    if contrast_id is not None:
        total = total - lost[..., contrast_id]
    dims = ("component", "batch")
    return labelled_set(
        model,
        {
            "frozen": (frozen, dims, "logits"),
            "rescale": (rescale, dims, "logits"),
            "downstream": (total - frozen - rescale, dims, "logits"),
            "total": (total, dims, "logits"),
        },
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
