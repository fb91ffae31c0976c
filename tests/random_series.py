"""A series of random models, as a run would give them, without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from random_models import random_hooked
from transformer_lens import HookedTransformer


class RandomSeries:
    """Another random model at every step, all of them in one HookedTransformer.

    Attributes:
        damaged: steps that cannot be loaded; of those in `missing` not even the hash is known.
        loaded: the steps that were loaded, in order.
    """

    name = "random"

    def __init__(
        self, steps: Sequence[int], folders: Sequence[Path] = (), *, seed: int = 0, **model: Any
    ) -> None:
        self.steps, self.folders, self.seed, self.settings = steps, folders, seed, model
        self.damaged: set[int] = set()
        self.missing: set[int] = set()
        self.loaded: list[int] = []
        self._model = random_hooked(**model)

    def checkpoint(self, step: int) -> str:
        if step in self.missing:
            raise ValueError(f"step {step} is missing.")
        return f"hash of {self.seed} {step}"

    def recorded(self, step: int) -> Mapping[str, float]:
        losses = {"val_loss": 5.0 - 0.125 * step} if step % 2 == 0 else {}
        return {"tokens_seen": 7.0 * step, **losses}

    def load(self, step: int) -> HookedTransformer:
        if step in self.missing | self.damaged:
            raise ValueError(f"step {step} is damaged.")
        self.loaded.append(step)
        self._model.load_state_dict(self.alone(step).state_dict())
        self._model.checkpoint_hash = self.checkpoint(step)  # type: ignore[assignment]
        return self._model

    def alone(self, step: int) -> HookedTransformer:
        """The model at a step, in memory of its own."""
        model = random_hooked(1000 * self.seed + step, **self.settings)
        model.checkpoint_hash = f"hash of {self.seed} {step}"  # type: ignore[assignment]
        return model
