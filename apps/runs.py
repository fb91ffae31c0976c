"""The runs that the explorer offers, and their models, each loaded once for everybody."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from model import Run, load
from model.checkpoint import CONFIG

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
FIRST = "shakespeare"


def offered(argv: Sequence[str] | None = None) -> dict[str, Path]:
    """The runs by the name they are chosen by: that of `--run` first, then what `--runs` (or
    `checkpoints/`) holds, the shipped one leading.

    A folder that only looks like a run is listed too; opening it says what is wrong.
    """
    arguments = _arguments(argv)
    folder = arguments.runs
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    paths = [path for path in inside if (path / CONFIG).is_file()]
    paths.sort(key=lambda path: path.name != FIRST)
    if arguments.run is not None:
        paths.insert(0, arguments.run)
    named: dict[str, Path] = {}
    for path in paths:
        if path.resolve() not in {known.resolve() for known in named.values()}:
            name = path.resolve().name
            named[name if name not in named else str(path)] = path
    return named


def folder_of_runs() -> Path:
    """What `--runs` says: the only folder that paths typed by a person may lead into."""
    return _arguments().runs


def _arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--runs", type=Path, default=CHECKPOINTS)
    # Whatever else stands on the command line belongs to who started the script.
    return parser.parse_known_args(sys.argv[1:] if argv is None else argv)[0]


def shown_path(path: Path) -> str:
    """The path as one would type it where the explorer was started."""
    relative = os.path.relpath(path)
    return str(path.resolve()) if relative.startswith("..") else relative


def open_model(run: Run, step: int, *, own: bool = False) -> HookedTransformer:
    """The model of a run at a step, shared by all sessions, or this session's own.

    Raises:
        ModelError: when the run or the step cannot be read.
    """
    changed = max(path.stat().st_mtime_ns for path in (run.path, run.path / CONFIG))
    return (_own_model if own else _model)(str(run.path.resolve()), step, changed)


# The time stamp makes a run that is trained again a new entry.
@st.cache_resource(max_entries=12, show_spinner="Loading the model …")
def _model(path: str, step: int, changed: int) -> HookedTransformer:
    return load(path, step)


# Goes with the session that brought the run.
@st.cache_resource(scope="session", max_entries=4, show_spinner="Loading the model …")
def _own_model(path: str, step: int, changed: int) -> HookedTransformer:
    return load(path, step)
