"""What the scripts of this folder share: text to read, options, tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformer_lens import HookedTransformer

from interp.inputs import to_ids
from model import load
from model.corpus import tiny_shakespeare

ROOT = Path(__file__).parents[2]


def options(description: str | None) -> argparse.ArgumentParser:
    """Options that every script has: which run, and which text it reads."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--run", type=Path, default=ROOT / "checkpoints/shakespeare")
    parser.add_argument("--text", type=Path, help="default: tiny Shakespeare, downloaded once")
    parser.add_argument("--windows", type=int, default=64, help="how many prompts are read")
    return parser


def windows(model: HookedTransformer, text: Path | None, n: int) -> Tensor:
    """[n, n_ctx] ids, spaced evenly over the last tenth of the text, which training left out."""
    whole = (text or tiny_shakespeare()).read_text(encoding="utf-8")
    held_out = whole[int(0.9 * len(whole)) :]
    n_ctx = model.cfg.n_ctx
    starts = torch.linspace(0, len(held_out) - n_ctx, n).long().tolist()
    return to_ids(model, [held_out[start : start + n_ctx] for start in starts])


def at_both_ends(run: Path) -> dict[str, HookedTransformer]:
    """The model before its first step and after its last."""
    return {"at initialisation": load(run, 0), "trained": load(run)}


def kept(path: Path) -> Any:
    """The numbers that a script which trains models has kept."""
    return json.loads(path.read_text(encoding="utf-8"))


def keep(path: Path, numbers: dict[str, Any]) -> None:
    """Keep them."""
    path.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; floats to four digits."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
