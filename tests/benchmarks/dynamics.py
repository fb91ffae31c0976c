"""Time and peak memory of the default set over 30 snapshots of the course model.

    python tests/benchmarks/dynamics.py

Measures 30 snapshots of random weights, on windows of a random text of 200,000 characters with
trigram counts and a tuned lens fitted at each step, as `orrery dynamics` does. The process is
killed after a few steps and started again, which must not measure a finished step twice. The
bounds, on two cores: 5 minutes and 1 GB in all.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

SECONDS, MEGABYTES = 300.0, 1000.0
N_CHARACTERS = 200_000


def write_snapshots(folder: Path, n: int) -> None:
    """A run of the course model with `n` steps, the last one final."""
    from model import GPT, character_tokenizer, preset, save_weights
    from model.checkpoint import WEIGHTS, snapshot_path, write_description

    characters = "".join(map(chr, range(32, 97)))
    config = preset("course", d_vocab=len(characters))
    for step in range(n):
        torch.manual_seed(step)
        path = folder / WEIGHTS if step == n - 1 else snapshot_path(folder, step)
        save_weights(path, GPT(config), step=step)
    write_description(folder, config, character_tokenizer(characters))
    order = np.random.default_rng(0).integers(0, len(characters), N_CHARACTERS)
    (folder / "text").write_text("".join(characters[i] for i in order))


def measure(run: Path, threads: int) -> None:
    """What the command does, in this process; prints a line a step and its own peak at the end."""
    import interp
    from model import Snapshots
    from model.memory import give_memory_back_at_once

    give_memory_back_at_once()
    torch.set_num_threads(threads)
    series = Snapshots(run)
    excerpts = series.excerpts(128, run / "text")
    assert excerpts is not None
    assert excerpts.whole is not None
    whole = torch.from_numpy(excerpts.whole.astype("int64"))
    ngrams = interp.count_ngrams(whole, series.run.config.d_vocab, order=3)
    load, loaded = series.load, []
    series.load = lambda step: (loaded.append(step), load(step))[1]  # type: ignore[method-assign]

    def progress(done: int, total: int) -> None:
        print(f"step {done} of {total}", flush=True)

    interp.track_training(
        series, excerpts.held_out, train=excerpts.train, ngrams=ngrams, progress=progress
    )
    status = Path("/proc/self/status").read_text()
    print(f"peak {int(status.split('VmHWM:')[1].split()[0]) / 1024:.0f}")
    print(f"loaded {len(loaded)}")


def start(run: Path, threads: int) -> subprocess.Popen:
    command = [sys.executable, __file__, "--measure", str(run), "--threads", str(threads)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--snapshots", type=int, default=30)
    parser.add_argument("--kill-after", type=int, default=5, metavar="STEPS")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        measure(args.measure, args.threads)
        return
    os.environ["ORRERY_CACHE"] = tempfile.mkdtemp()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "course"
        write_snapshots(run, args.snapshots)
        began = time.perf_counter()
        first = start(run, args.threads)
        assert first.stdout is not None
        for line in first.stdout:
            if line.startswith(f"step {args.kill_after} "):
                first.send_signal(signal.SIGKILL)
                break
        first.wait()
        killed = time.perf_counter()
        second = start(run, args.threads)
        assert second.stdout is not None
        said = second.stdout.read().splitlines()
        second.wait()
        seconds = time.perf_counter() - began
    peak, loaded = (float(line.split()[1]) for line in said[-2:])
    # The final model is loaded once more, to be compared with.
    done_again = loaded - 1 - (args.snapshots - args.kill_after)
    print(
        f"{args.snapshots} snapshots: {seconds:.0f} s (bound {SECONDS:.0f}), {args.threads} threads"
    )
    print(
        f"killed after {args.kill_after} steps and {killed - began:.0f} s; {done_again:+.0f} again"
    )
    print(f"peak memory {peak:.0f} MB (bound {MEGABYTES:.0f})")


if __name__ == "__main__":
    main()
