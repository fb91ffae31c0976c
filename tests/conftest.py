"""Options and fixtures that every test may use."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).parents[1]
CHECKPOINTS = ROOT / "checkpoints"

# Neither the network nor the user's own cache takes part in a test.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["ORRERY_CACHE"] = tempfile.mkdtemp(prefix="orrery-tests-")
atexit.register(shutil.rmtree, os.environ["ORRERY_CACHE"], ignore_errors=True)
# Test processes run side by side: each gets its share of the cores.
n_processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
torch.set_num_threads(max(1, min(2, (os.cpu_count() or 1) // n_processes)))

# The first call of a law compiles and type checks: time is no sign that it is wrong.
settings.register_profile("laws", deadline=None, max_examples=30)
settings.load_profile("laws")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run",
        metavar="DIR",
        type=Path,
        help="the run that tests/test_hook_equivalence.py proves (default: those shipped)",
    )


def shipped_runs() -> list[Path]:
    return sorted(path.parent for path in CHECKPOINTS.glob("*/config.json"))
