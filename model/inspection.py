"""What a model is made of: shapes, parameters, a sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from .checkpoint import Run
from .config import GPTConfig, preset
from .generation import generate, generate_text
from .gpt import GPT, parameter_groups
from .tokenizer import vocabulary

SAMPLE_LENGTH = 200
_LARGEST_UNTRAINED_SAMPLE = 50_000_000
"""parameters; a larger untrained model is not allocated only to print noise"""


@dataclasses.dataclass(frozen=True)
class Inspection:
    title: str
    settings: Mapping[str, Any]
    shapes: pd.DataFrame
    parameters: pd.DataFrame
    sample: str


def inspect_run(
    path: str | Path, step: int | None = None, *, batch_size: int = 1, seed: int = 0
) -> Inspection:
    """A trained run; its sample continues the vocabulary's first token.

    Raises:
        ModelError: when there is no run or step.
    """
    run = Run.open(path)
    weights = run.weights(step)
    gpt, tokenizer = weights.to_gpt(), run.tokenizer()
    if tokenizer is None:
        sample = _sample_ids(gpt, seed)
    else:
        start = vocabulary(tokenizer)[0]
        sample = generate_text(gpt, tokenizer, start, SAMPLE_LENGTH, temperature=0.8, seed=seed)[0]
    title = f"{run.name} at step {weights.step}"
    return _inspect(title, weights.config, batch_size, sample)


def inspect_preset(name: str, *, batch_size: int = 1, seed: int = 0) -> Inspection:
    """An untrained model of a preset; its sample is of ids, for it knows no vocabulary.

    Raises:
        ModelError: when there is no such preset.
    """
    config = preset(name)
    total = sum(parameter_groups(config).values())
    if total > _LARGEST_UNTRAINED_SAMPLE:
        sample = f"(left out: {total:,} untrained parameters would be allocated for it)"
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sample = _sample_ids(GPT(config), seed)
    return _inspect(f"preset {name}, untrained", config, batch_size, sample)


def shape_table(config: GPTConfig, *, batch_size: int, n_pos: int) -> pd.DataFrame:
    """The shape after every stage of a forward pass: columns `stage` and `shape`.

    It is read off a real forward pass on torch's meta device, which allocates nothing.
    """
    with torch.device("meta"):
        gpt = GPT(config).eval()
        ids = torch.zeros(batch_size, n_pos, dtype=torch.long)
    rows = [("ids", tuple(ids.shape))]

    def note(stage: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            shape = output[0].shape if isinstance(output, tuple) else output.shape
            rows.append((stage, tuple(shape)))

        return hook

    for name, module in gpt.named_modules():
        if name and not isinstance(module, nn.Dropout | nn.ModuleList):
            module.register_forward_hook(note(name))
    gpt(ids)
    return pd.DataFrame(rows, columns=["stage", "shape"])


def parameter_table(config: GPTConfig) -> pd.DataFrame:
    """Columns `part`, `parameters` and `share` (of 1), with the total in the last row."""
    groups = parameter_groups(config)
    total = sum(groups.values())
    rows = [*groups.items(), ("total", total)]
    return pd.DataFrame(
        [(part, count, count / total) for part, count in rows],
        columns=["part", "parameters", "share"],
    )


def _inspect(title: str, config: GPTConfig, batch_size: int, sample: str) -> Inspection:
    shapes = shape_table(config, batch_size=batch_size, n_pos=config.n_ctx)
    return Inspection(title, config.to_dict(), shapes, parameter_table(config), sample)


def _sample_ids(gpt: GPT, seed: int) -> str:
    ids = generate(gpt, torch.zeros(1, 1, dtype=torch.long), SAMPLE_LENGTH // 4, seed=seed)
    return " ".join(map(str, ids[0].tolist()))
