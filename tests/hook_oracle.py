"""The same edits made the slow way: TransformerLens' own hooks, one full forward for each run."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformer_lens import HookedTransformer

from interp.sites import SITE_KINDS, Site


def address(site: Site) -> tuple[int | slice, ...]:
    """The index of a Site in the tensor that its hook sees."""
    index: list[int | slice] = [slice(None)]
    for axis in SITE_KINDS[site.kind].axes:
        at = site.pos if axis == "query_pos" else getattr(site, axis)
        index.append(slice(None) if at is None else at)
    return tuple(index)


def logits_with_hooks(
    model: HookedTransformer, ids: Tensor, edits: Mapping[Site, Tensor | float]
) -> Tensor:
    """Logits at every position, [batch, pos, vocab], with each Site overwritten by a hook."""

    def overwrite(site: Site, value: Tensor | float):
        def hook(activation, hook):
            activation = activation.clone()
            activation[address(site)] = value
            return activation

        return (site.hook_name, hook)

    with torch.no_grad():
        return model.run_with_hooks(
            ids, fwd_hooks=[overwrite(site, value) for site, value in edits.items()]
        )
