"""A training run of a second: odd sizes, dropout on, every file that a large one has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.config import GPTConfig
from model.corpus import Corpus, tokenise
from model.recipe import Recipe
from model.training import resume, train

STEPS = 23


def text(n_characters: int = 5000, seed: int = 0) -> str:
    """Eleven different characters in words that repeat, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    words = ["abc", "defg", "hi", "j\n", "abc hi"]
    drawn = " ".join(words[i] for i in rng.integers(len(words), size=n_characters // 2))
    return drawn[:n_characters]


def corpus(folder: Path) -> Corpus:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(text())
    return tokenise([folder / "text.txt"], folder=folder / "tokens")


def config(**changes: Any) -> GPTConfig:
    sizes = {"d_vocab": 12, "n_ctx": 7, "n_layers": 2, "n_heads": 3, "d_model": 15, "d_mlp": 23}
    return GPTConfig(**(sizes | {"dropout": 0.2, "qkv_bias": False} | changes))


def recipe(**changes: Any) -> Recipe:
    return Recipe(**({"steps": STEPS, "batch_size": 6, "warmup_steps": 3, "seed": 5} | changes))


def run(out: Path, folder: Path, **settings: Any) -> dict[str, Any]:
    torch.set_num_threads(1)  # what a second thread takes on is too little to be worth waking it
    return train(config(), corpus(folder), recipe(), out, **settings)


def run_saving_each_step(out: Path, folder: Path) -> None:
    run(out, folder, save_seconds=0.0)


def resume_saving_each_step(out: Path) -> None:
    torch.set_num_threads(1)  # sums of as many parts as in `run`
    resume(out, save_seconds=0.0)


def stop_at(step: int) -> Callable[..., None]:
    """An `on_step` that asks for a stop as a signal would."""
    import os
    import signal

    def on_step(done: int, loss: object) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return on_step
