"""A run's models one after the other, in the memory of one."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int

from .checkpoint import CONFIG, HISTORY, WEIGHTS, Run, read_header
from .corpus import TRAIN, Corpus, cache_folder
from .errors import ModelError
from .recipe import Recipe
from .sources import open_source

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

RESULTS = "dynamics"
"""The folder of a run that holds what was measured on its snapshots."""


@dataclasses.dataclass(frozen=True, eq=False)
class Excerpts:
    """What a run was trained on, in windows of its context length.

    Attributes:
        held_out: of the validation split, evenly spread.
        train: of the training split, at random places.
        whole: every id of the training split, memory-mapped; None when the data is made, not read.
    """

    held_out: Int[np.ndarray, "window pos"]
    train: Int[np.ndarray, "window pos"]
    whole: np.ndarray | None


class Snapshots:
    """A run as a series of models, for `interp.through_training`.

    One HookedTransformer serves all steps: `load` gives it the weights of another step, so what
    an earlier call returned is the same object and has changed too.

    Raises:
        ModelError: when `path` is no folder with a config.json.
    """

    def __init__(self, path: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
        self.run, self.dtype = Run(Path(path)), dtype
        if not (self.run.path / CONFIG).is_file():
            raise ModelError(
                f"{path} is not a run, it has no {CONFIG}: give a folder that `orrery train` wrote."
            )
        self._model: HookedTransformer | None = None

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def steps(self) -> tuple[int, ...]:
        """Every step that is there or, by the run's own recipe, should be."""
        return self._steps

    @cached_property
    def _steps(self) -> tuple[int, ...]:
        steps, info = set(self.run.snapshots), self.run.info
        recipe = info.get("recipe")
        if info.get("finished") and recipe:
            planned = Recipe.from_dict(recipe)
            steps |= planned.snapshot_steps | {planned.steps}
        elif (self.run.path / WEIGHTS).is_file():
            steps.add(read_header(self.run.path / WEIGHTS).step)
        return tuple(sorted(steps))

    @property
    def folders(self) -> tuple[Path, Path]:
        """Where results may be kept: beside the run, or else in the user's own cache."""
        place = hashlib.sha256(str(self.run.path.resolve()).encode()).hexdigest()[:16]
        return self.run.path / RESULTS, cache_folder() / RESULTS / f"{self.name}-{place}"

    def recorded(self, step: int) -> dict[str, float]:
        """What the run's own history says of a step: `tokens_seen`, `train_loss` (the mean since
        the row before) and `val_loss` (on a sample of the validation split), where it is known."""
        row = self._history.get(step, {})
        names = {"tokens_seen": "tokens", "train_loss": "train_loss", "val_loss": "val_estimate"}
        return {name: float(row[column]) for name, column in names.items() if row.get(column)}

    def excerpts(self, n_windows: int, text: str | Path | None = None) -> Excerpts | None:
        """Windows of the run's own data; None when the run does not say what that was.

        Args:
            text: read this file in place of it, its last tenth held out.

        Raises:
            ModelError: when the data, or the text, cannot be read, or no window is asked for.
        """
        if n_windows < 1:
            raise ModelError(f"{n_windows} windows are too few to measure on: ask for 1 or more.")
        source = self.run.info.get("source") if text is None else {"text": [str(text)]}
        if source is None:
            return None
        data, n_ctx = open_source(source, self.run.tokenizer()), self.run.config.n_ctx
        data.check_context(n_ctx)
        held_out = next(iter(data.validation_sample(n_windows=n_windows, n_ctx=n_ctx)))[0]
        train = data.batch(0, n_windows=n_windows, n_ctx=n_ctx, seed=0)[0]
        whole = None
        if isinstance(data, Corpus):
            whole = np.memmap(data.folder / TRAIN, dtype=data.dtype, mode="r")
        return Excerpts(held_out.numpy(), train.numpy(), whole)

    def checkpoint(self, step: int) -> str:
        """The hash of the weights at a step, as their file states it.

        Raises:
            ModelError: when the file is missing or damaged.
        """
        return read_header(self.run.weights_path(step)).sha256

    def load(self, step: int) -> HookedTransformer:
        """The model at a step.

        Raises:
            ModelError: when the file is missing or damaged, or is of another model.

        Cost: one read of the file; of memory one copy of the weights besides the model.
        """
        from .hooked import dated, hashed, put_weights, to_hooked

        weights = self.run.weights(step)
        gpt = weights.to_gpt(self.dtype)
        if self._model is None:
            self._model = to_hooked(gpt, self.run.tokenizer(), name=self.name)
        else:
            put_weights(self._model, gpt)
        hashed(self._model, weights.sha256)
        return dated(self._model, step)

    @cached_property
    def _history(self) -> Mapping[int, Mapping[str, str]]:
        path = self.run.path / HISTORY
        if not path.is_file():
            return {}
        with path.open(encoding="utf-8", newline="") as file:
            return {int(row["step"]): row for row in csv.DictReader(file)}
