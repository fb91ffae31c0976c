"""Open the explorer in a browser."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

EXPLORER = Path(__file__).parents[2] / "apps" / "explorer.py"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", nargs="?", help="a run to open first")
    parser.add_argument("--port", type=int, default=8501, help="default: 8501")


def run(args: argparse.Namespace) -> int:
    from ..checkpoint import Run
    from ..errors import ModelError

    if not EXPLORER.is_file():
        raise ModelError(
            "the explorer is not part of this installation: clone the project and "
            "install it with `pip install -e .`."
        )
    command = [sys.executable, "-m", "streamlit", "run", str(EXPLORER)]
    command += [f"--server.port={args.port}", "--server.address=127.0.0.1"]
    command += ["--browser.gatherUsageStats=false", "--client.toolbarMode=viewer"]
    if args.model:
        command += ["--", "--run", str(Run.open(args.model).path.resolve())]
    return subprocess.run(command, check=False).returncode
