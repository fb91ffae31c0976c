"""Which precision a GPT's matrix products are trained in."""

from __future__ import annotations

import torch

from .config import GPTConfig

PRECISIONS = ("auto", "no", "bf16")
"""As Accelerate names them; 'auto' is settled before the first step and kept in `run.json`."""

LEAST_WIDTH = 128
"""Where products are smaller, turning their factors into bfloat16 costs a CPU what it saves."""


def settled_precision(precision: str, config: GPTConfig, device: torch.device) -> str:
    """What 'auto' stands for: 'bf16' where the device multiplies bfloat16 in hardware and the
    model is wide enough to gain by it, otherwise 'no'. The others stand for themselves."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no"
    on_tiles = device.type == "cpu" and _has_tiles()
    return "bf16" if on_tiles and config.d_model >= LEAST_WIDTH else "no"


def _has_tiles() -> bool:
    """Whether the CPU has AMX: without it bfloat16 products are no faster than float32's."""
    # Not every torch can tell, and none by a public name.
    ask = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return ask is not None and ask()


def products_in(precision: str, device: torch.device) -> torch.autocast:
    """A context in which matrix products are computed in a settled precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def product_dtype(precision: str) -> torch.dtype:
    """What matrix products take their factors in."""
    return torch.bfloat16 if precision == "bf16" else torch.float32
