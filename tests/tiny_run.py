"""Small random runs on disk, for whatever opens a run directory."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from random_gpt import random_gpt

from model.checkpoint import WEIGHTS, save_weights, snapshot_path, write_description
from model.tokenizer import character_tokenizer

CHARACTERS = "\n\t" + string.printable[:95] + "␣é"
"""printable ASCII, two kinds of whitespace besides the space, a glyph, a letter beyond ASCII"""
STEPS = (0, 8, 32)


def write_run(
    path: Path, *, characters: str = CHARACTERS, steps: Sequence[int] = STEPS, **settings: Any
) -> Path:
    """A run whose weights are random at every step; the last step is the final one."""
    config = {"n_ctx": 24, "d_vocab": len(set(characters)), **settings}
    for step in steps:
        gpt = random_gpt(seed=step, **config).float()
        write_description(path, gpt.config, character_tokenizer(characters))
        save_weights(
            path / WEIGHTS if step == steps[-1] else snapshot_path(path, step), gpt, step=step
        )
    return path
