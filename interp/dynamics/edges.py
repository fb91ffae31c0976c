"""Which edges carry the prediction, and how many of them are those of the final model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from interp.edges import edge_attribution
from interp.inputs import Contrast
from interp.metrics import log_prob

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

N_PROMPTS = 32
AT_ONCE = 8
"""prompts in one pass, every site of which is kept"""
TOP_SHARE = 0.1
"""of all edges, those called a circuit here"""


def edge_strengths(model: HookedTransformer, ids: Int[Tensor, "window pos"]) -> xr.DataArray:
    """How much each edge matters for predicting the last token of a window from those before it.

    Edge attribution patching (Syed, Rager & Conmy 2023, arXiv:2310.10348): the effect on the
    log-probability of that token when the edge carries what it carried on this window in place of
    what it carries on the next one. The ablation is thus another window of the same kind. The
    mean over at most `N_PROMPTS` windows comes first, then its absolute value.

    Returns:
        `edge` [sender, receiver], nats, NaN where there is no edge.

    Cost: two forward passes and a forward and a backward pass over the windows.
    """
    some = ids[:: max(1, len(ids) // N_PROMPTS)][:N_PROMPTS]
    other = some.roll(-1, dims=0)
    # Windows that read the same leave nothing to compare.
    differs = (some[:, :-1] != other[:, :-1]).any(1)
    some, other = some[differs], other[differs]
    effects = []
    for source, base in zip(some.split(AT_ONCE), other.split(AT_ONCE), strict=True):
        pair = Contrast(source=source[:, :-1], base=base[:, :-1])
        target = log_prob(model, source[:, -1].tolist())
        effects.append(edge_attribution(model, pair, target).drop_vars("batch"))
    strength = abs(xr.concat(effects, "batch").mean("batch", skipna=False)).rename("edge")
    return strength.assign_attrs(units="nats")


def edge_overlap(a: xr.DataArray, b: xr.DataArray) -> float:
    """The share of the strongest tenth of a's edges that are among b's; by chance a tenth."""
    first, second = (_strongest(each.to_numpy()) for each in (a, b))
    return len(first & second) / len(first)


def _strongest(strength: np.ndarray) -> set[int]:
    flat = strength.ravel()
    edges = np.flatnonzero(np.isfinite(flat))
    n_top = max(1, round(TOP_SHARE * len(edges)))
    return set(edges[np.argsort(-flat[edges], kind="stable")[:n_top]].tolist())
