"""An unfinished training run, in one file: written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .checkpoint import tensors_sha256
from .errors import ModelError
from .files import write_atomically
from .gpt import GPT

PROGRESS = "resume.safetensors"


def save_progress(
    run: Path,
    gpt: GPT,
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    step: int,
    seconds: float,
    losses: Tensor,
    gradient_norm: float | None,
) -> None:
    """Everything that training at `step` depends on, beside the recipe and the corpus.

    The order of the data and dropout follow from the seed and the step, so no random state is
    kept. `losses` are those since the history's last row.
    """
    tensors = {"losses": losses} | {f"gpt/{name}": p for name, p in gpt.named_parameters()}
    for name, parameter in gpt.named_parameters():
        for optimizer in optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{key}/{name}"] = value
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    metadata = {
        "format": "orrery progress",
        "sha256": tensors_sha256(tensors),
        "at": json.dumps({"step": step, "seconds": seconds, "gradient_norm": gradient_norm}),
    }
    with write_atomically(run / PROGRESS) as beside:
        save_file(tensors, beside, metadata)


def load_progress(
    run: Path, gpt: GPT, optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[dict[str, Any], Tensor]:
    """The inverse of `save_progress`, into `gpt` and its optimizers.

    Returns:
        step, seconds and gradient_norm by name, and the losses since the history's last row.

    Raises:
        ModelError: when there is nothing to resume, or the file is damaged.
    """
    path = run / PROGRESS
    if not path.exists():
        raise ModelError(f"{run} has no {PROGRESS}: the run is finished, or was not started.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        at = json.loads(metadata["at"])
        if tensors_sha256(tensors) != metadata["sha256"]:
            raise ValueError("its hash differs")
        with torch.no_grad():
            for name, parameter in gpt.named_parameters():
                parameter.copy_(tensors[f"gpt/{name}"])
                for optimizer in optimizers:
                    if any(parameter is p for g in optimizer.param_groups for p in g["params"]):
                        optimizer.state[parameter] = {
                            key.removesuffix(f"/{name}"): value.to(parameter.device)
                            for key, value in tensors.items()
                            if key.endswith(f"/{name}") and not key.startswith("gpt/")
                        }
        return at, tensors["losses"]
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{path} cannot be resumed from ({error}): it is damaged or of another model; "
            "train again."
        ) from None
