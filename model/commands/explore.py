"""Open the explorer in a browser."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXPLORER = ROOT / "apps" / "explorer.py"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", nargs="?", help="a run to open first")
    parser.add_argument("--runs", metavar="DIR", help="a folder of runs (default: those shipped)")
    parser.add_argument("--port", type=int, default=8501, help="default: 8501")


def run(args: argparse.Namespace) -> int:
    from ..checkpoint import Run
    from ..errors import ModelError

    if not EXPLORER.is_file():
        raise ModelError(
            "the explorer is not part of this installation: clone the project and "
            "install it with `pip install -e .`."
        )
    if args.runs and not Path(args.runs).is_dir():
        raise ModelError(f"there is no folder {args.runs}: give one that holds runs.")
    command = [sys.executable, "-m", "streamlit", "run", str(EXPLORER)]
    command += [f"--server.port={args.port}", "--"]
    if args.model:
        command += ["--run", str(Run.open(args.model).path.resolve())]
    if args.runs:
        command += ["--runs", str(Path(args.runs).resolve())]
    # Started from here, Streamlit reads .streamlit/config.toml: this machine only, no statistics.
    if os.name == "posix":
        # In this process, so that whatever ends the command ends the server.
        os.chdir(ROOT)
        os.execv(command[0], command)
    return subprocess.run(command, check=False, cwd=ROOT).returncode
