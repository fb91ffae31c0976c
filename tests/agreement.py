"""What tests of identities share: how close is equal, results as tensors, kinds of models."""

from __future__ import annotations

from typing import Any

import torch
import xarray as xr
from folding import folded
from random_models import random_hooked
from transformer_lens import HookedTransformer

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
"""rounding, in float64"""

VARIANTS: dict[str, dict[str, Any]] = {
    "LN": {},
    "folded": {},
    "no norm": {"normalization_type": None},
    "attention only": {"attn_only": True},
}
"""the kinds of models on which an identity must hold"""

QUESTIONS = [(4, None, None), (4, 7, 2), (4, 7, -1), (None, None, None), (None, None, -1)]
"""target, contrast and pos of an attribution: a token, a difference, all; everywhere or once"""


def variant(name: str, seed: int, **cfg: Any) -> HookedTransformer:
    """A random model of one of the kinds."""
    model = random_hooked(seed, **VARIANTS[name], **cfg)
    return folded(model) if name == "folded" else model


def values(array: xr.DataArray) -> torch.Tensor:
    """The numbers of a result."""
    return torch.as_tensor(array.to_numpy())
