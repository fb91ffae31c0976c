"""A run directory while it is written: snapshots, history, and what a resumed run starts from."""

from __future__ import annotations

import csv
import io
import json
import platform
import shutil
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checkpoint import (
    HISTORY,
    RUN_INFO,
    WEIGHTS,
    Run,
    save_weights,
    snapshot_path,
    write_description,
)
from .errors import ModelError
from .evaluation import validation_estimate, validation_loss
from .files import write_json, write_text
from .gpt import GPT
from .optimizers import make_optimizers
from .precision import product_dtype
from .progress import PROGRESS, load_progress, save_progress
from .recipe import Recipe
from .sources import Data
from .throughput import matmul_rate, model_flops_utilisation

COLUMNS = (
    "step",
    "tokens",
    "seconds",
    "train_loss",
    "val_loss",
    "val_estimate",
    "learning_rate",
    "gradient_norm",
)
"""Of history.csv. Losses in nats a token: `train_loss` is the mean since the row before,
`val_loss` is on the whole validation split, `val_estimate` on a fixed sample of it."""

NO_LOSSES = torch.empty(0)


class Recorder:
    """Writes the run directory `out` while `gpt` is trained.

    It begins where the directory's `resume.safetensors` says, with the weights and the optimizers
    as they were there. Files are replaced whole, so a kill at any moment leaves a directory that
    loads and resumes.

    Raises:
        ModelError: from every method, when a file cannot be written; the older files stay.
    """

    def __init__(self, out: Path, gpt: GPT, recipe: Recipe, data: Data) -> None:
        self.out, self.gpt, self.recipe, self.data = out, gpt, recipe, data
        self.optimizers = make_optimizers(gpt, recipe)
        at, losses = load_progress(out, gpt, self.optimizers)
        self.first_step: int = at["step"]
        self.gradient_norm: Tensor | float | None = at["gradient_norm"]
        self.losses = list(losses)
        """of the updates since the history's last row"""
        # rows from the first step on belong to updates that are made again
        self.rows = [row for row in _read_history(out) if row["step"] < self.first_step]
        self.started = self.last_save = time.perf_counter()
        self.seconds_before: float = at["seconds"]

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    @property
    def seconds_since_save(self) -> float:
        return time.perf_counter() - self.last_save

    def add(self, loss: Tensor, gradient_norm: Tensor) -> None:
        """Take note of an update, without waiting for the device to finish it."""
        self.losses.append(loss)
        self.gradient_norm = gradient_norm

    def save(self, step: int) -> None:
        """What `orrery resume` needs to go on from `step`."""
        self.check_finite(step)
        # Before the progress: rows too many are made again, rows too few would be lost.
        self._write_history()
        save_progress(
            self.out,
            self.gpt,
            self.optimizers,
            step=step,
            seconds=self.seconds,
            losses=torch.stack(self.losses) if self.losses else NO_LOSSES,
            gradient_norm=None if self.gradient_norm is None else float(self.gradient_norm),
        )
        self.last_save = time.perf_counter()

    def measure(self, step: int) -> dict[str, Any]:
        """Add a row to the history, and a snapshot where the recipe asks for one.

        Returns:
            what was measured, without the columns that were not.
        """
        self.check_finite(step)
        recipe = self.recipe
        last, snapshot = step == recipe.steps, step in recipe.snapshot_steps
        whole = last or (recipe.evaluate_every and step % recipe.evaluate_every == 0)
        row = {
            "step": step,
            "tokens": step * recipe.batch_size * self.gpt.config.n_ctx,
            "seconds": round(self.seconds, 3),
            "train_loss": float(torch.stack(self.losses).mean()) if self.losses else None,
            "val_loss": validation_loss(self.gpt, self.data) if whole else None,
            "val_estimate": validation_estimate(self.gpt, self.data) if last or snapshot else None,
            "learning_rate": recipe.learning_rate * recipe.rate_factor(step),
            "gradient_norm": None if self.gradient_norm is None else float(self.gradient_norm),
        }
        self.rows.append(row)
        self.losses = []
        if snapshot:
            _save_snapshot(self.out, self.gpt, recipe, step)
            self._write_history()
        return {name: value for name, value in row.items() if value is not None}

    def finish(self, *, device: torch.device, processes: int) -> None:
        """The final weights and what is known at the end; nothing is left to resume."""
        last, seconds = self.rows[-1], self.seconds
        speed = last["tokens"] / seconds
        rate = processes * matmul_rate(device, product_dtype(self.recipe.precision))
        used = model_flops_utilisation(self.gpt.config, speed, rate)
        sha256 = save_weights(self.out / WEIGHTS, self.gpt, step=last["step"])
        self._write_history()
        results = {
            "finished": True,
            "steps": last["step"],
            "tokens": last["tokens"],
            "train_loss": last["train_loss"],
            "val_loss": last["val_loss"],
            "val_estimate": last["val_estimate"],
            "weights_sha256": sha256,
            "seconds": round(seconds, 1),
            "tokens_per_second": round(speed),
            "model_flops_utilisation": round(used, 3),
            "processes": processes,
            "device": device.type,
            "threads": torch.get_num_threads(),
        }
        write_json(self.out / RUN_INFO, Run(self.out).info | results)
        (self.out / PROGRESS).unlink(missing_ok=True)

    def check_finite(self, step: int) -> None:
        """Raises ModelError when a loss since the last row, or a weight, is not finite."""
        bad = next((i for i, loss in enumerate(self.losses) if not torch.isfinite(loss)), None)
        if bad is None and all(bool(p.isfinite().all()) for p in self.gpt.parameters()):
            return
        at = step - 1 if bad is None else step - len(self.losses) + bad
        what = "a weight" if bad is None else "the loss"
        rate = self.recipe.learning_rate * self.recipe.rate_factor(at)
        good = max(s for s in Run(self.out).snapshots if s <= at)
        raise ModelError(
            f"{what} is not finite at step {at}, where the learning rate is {rate:.2g}: train "
            "again with a lower --learning-rate; the last good snapshot is "
            f"{snapshot_path(self.out, good)}."
        )

    def _write_history(self) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row[name] for name in COLUMNS] for row in self.rows)
        write_text(self.out / HISTORY, text.getvalue())


def create_run(out: Path, gpt: GPT, recipe: Recipe, data: Data, command: str | None) -> None:
    """The run directory at step 0, put in place whole: from its first moment it loads and resumes.

    Raises:
        ModelError: when `out` exists and is not an empty folder, or cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(
            f"{out} exists: choose another folder for --out, or go on with `orrery resume {out}`."
        )
    info = {
        "command": command,
        "finished": False,
        "recipe": recipe.to_dict(),
        "source": dict(data.source),
        "data": data.describe(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("orrery", "torch", "numpy", "accelerate")},
        },
    }
    beside: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=".tmp"))
        write_description(beside, gpt.config, data.tokenizer)
        write_json(beside / RUN_INFO, info)
        _save_snapshot(beside, gpt, recipe, 0)
        save_progress(
            beside,
            gpt,
            make_optimizers(gpt, recipe),
            step=0,
            seconds=0.0,
            losses=NO_LOSSES,
            gradient_norm=None,
        )
        beside.chmod(0o755)
        beside.replace(out)
    except OSError as error:
        raise ModelError(
            f"{out} cannot be written ({error.strerror}): choose a folder that can."
        ) from None
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)


def clear_half_written(run: Path) -> None:
    """Remove what a kill left of files that were being written."""
    for half in (*run.glob(".*.tmp"), *run.glob("snapshots/.*.tmp")):
        half.unlink()


def _save_snapshot(out: Path, gpt: GPT, recipe: Recipe, step: int) -> None:
    dtype = torch.float16 if recipe.half_snapshots else None
    save_weights(snapshot_path(out, step), gpt, step=step, dtype=dtype)


def _read_history(out: Path) -> list[dict[str, Any]]:
    path = out / HISTORY
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {name: json.loads(value) if value else None for name, value in row.items()}
            for row in csv.DictReader(file)
        ]
