"""How long `orrery convert` takes and how much memory, proof included: course size and 124M.

    python tests/benchmarks/conversion.py [--quick]

Each conversion is a process of its own, on random weights: nanoGPT's and Hugging Face's layout.
Seconds are counted from after the imports; the peak is the whole process's, in multiples of the
weights, with and without what the imports alone hold.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from model import GPT, export, preset

SIZES = {
    "course": preset("course", tied_embeddings=True),
    "gpt2": preset("gpt2"),
}

TIMED = """
import contextlib, io, sys, time
import einops, model.cli, model.certificate, model.exporting, model.hooked, rich.table

def peak():  # not getrusage: it starts from what the parent held
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

imports, start = peak(), time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    code = model.cli.main(sys.argv[1:])
print(code, time.perf_counter() - start, imports, peak())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the course size only")
    sizes = list(SIZES)[: 1 if parser.parse_args().quick else None]
    print(f"{'':24}{'seconds':>9}{'peak / weights':>16}{'beyond imports':>16}")
    for size in sizes:
        for to in ("nanogpt", "hf"):
            with tempfile.TemporaryDirectory() as name:
                measure(size, to, Path(name))


def measure(size: str, to: str, folder: Path) -> None:
    gpt = GPT(SIZES[size])
    export(gpt, to, folder / "source")
    weights = sum(p.numel() * 4 for p in gpt.parameters())
    argv = ["convert", str(folder / "source"), "--out", str(folder / "run")]
    command = [sys.executable, "-c", TIMED, *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, seconds, imports, peak = map(float, done.stdout.split()[-4:])
    assert code == 0, done.stderr
    beyond = (peak - imports) / weights
    print(f"{size + ' from ' + to:24}{seconds:9.1f}{peak / weights:16.2f}{beyond:16.2f}")


if __name__ == "__main__":
    main()
