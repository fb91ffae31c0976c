"""How fast this GPT trains, and how well: beside a plain per-head GPT and Hugging Face's GPT-2.

    python tests/benchmarks/training.py [--text tinyshakespeare.txt] [--quick]
    python tests/benchmarks/training.py --memory

Speed: tokens a second of a whole step (forward, backward, clipping, fused AdamW) of the three
models at the course shape, in turns, each the median of its rounds; of this GPT compiled (where
there is a C++ compiler), and with the optimizers it is really trained with; and of the step's
matrix products with nothing between them, which no step in float32 can leave out. All in float32,
and where training would choose it, all with products in bfloat16 too, in which Hugging Face's
model is faster with its "eager" attention and gets that. On Linux all of it once more with glibc
told to keep what is freed: else a model alone with its step pays for pages that training, which
has scored validation text before, has kept.

Quality: the default recipe against nanoGPT's recipe on GPT2LMHeadModel of the same shape, both on
1,536,000 tokens of the same text and scored on its whole validation split. Seconds are steps times
the median step: evaluation is not counted, for either.

Memory: the peak of a process that trains on a corpus of 1 GB, above one that trains on 1 MB.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from per_head_reference import PerHeadGPT

from model import GPT, PRESETS, GPTConfig
from model.corpus import Corpus, tiny_shakespeare, tokenise
from model.gpt import IGNORE_INDEX, next_token_loss
from model.optimizers import make_optimizers
from model.precision import products_in, settled_precision
from model.recipe import Recipe
from model.recorder import HISTORY
from model.throughput import matmul_rate, model_flops_utilisation
from model.training import train

TARGET = 1.8857
"""where nanoGPT's own CPU recipe ends"""
STEPS, BATCH = 2000, 12
BATCHES = (12, 64)
CPU = torch.device("cpu")
OURS, PER_HEAD, HUGGING_FACE = "this GPT", "per-head reference", "GPT2LMHeadModel"
WITH_MUON = "this GPT with Muon"
COMPILED, PRODUCTS = "this GPT, compiled", "matrix products alone"
PRECISIONS = {"no": "float32", "bf16": "bfloat16"}
Step = Callable[[Tensor, Tensor], None]
Contender = tuple[str, str]
"""A name of the above and a precision."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", help="the text (default: tiny Shakespeare, downloaded)")
    parser.add_argument("--quick", action="store_true", help="a smoke run: a few steps of each")
    parser.add_argument("--memory", action="store_true", help="peak memory only")
    args = parser.parse_args()
    if args.memory:
        memory()
        return
    corpus = tokenise([args.text or tiny_shakespeare()])
    config = GPTConfig.from_dict(PRESETS["course"].to_dict() | {"d_vocab": corpus.d_vocab})
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    speed(config, rounds=2 if args.quick else 9)
    quality(config, corpus, *((6, 6) if args.quick else (STEPS, 50)))


# Speed


def hugging_face_gpt2(config: GPTConfig, attention: str = "sdpa") -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(
        vocab_size=config.d_vocab,
        n_positions=config.n_ctx,
        n_embd=config.d_model,
        n_layer=config.n_layers,
        n_head=config.n_heads,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=attention,
    )
    return GPT2LMHeadModel(shape)


def training_step(
    model: nn.Module,
    logits_of: Callable[[Tensor], Tensor],
    optimizers: Sequence[torch.optim.Optimizer] | None = None,
    precision: str = "no",
) -> Step:
    optimizers = optimizers or [torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)]

    def step(x: Tensor, y: Tensor) -> None:
        with products_in(precision, CPU):
            logits = logits_of(x)
        next_token_loss(logits.float(), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def matrix_products(config: GPTConfig, batch: int) -> Step:
    """Every product of a step, forward and backward, into memory that is there already."""
    tokens, d_model, d_mlp = batch * config.n_ctx, config.d_model, config.d_mlp or 0
    rows = (batch * config.n_heads, config.n_ctx, config.d_head)
    square = (*rows[:2], config.n_ctx)
    block = [(d_model, 3 * d_model), (d_model, d_model), (d_model, d_mlp), (d_mlp, d_model)]
    products: list[tuple[Tensor, Tensor]] = []
    for n_in, n_out in block * config.n_layers + [(d_model, config.d_vocab)]:
        x, weight = torch.randn(tokens, n_in), torch.randn(n_out, n_in)
        y = torch.randn(tokens, n_out)
        products += [(x, weight.T), (y, weight), (y.T, x)]
    for _ in range(config.n_layers):
        z, pattern = torch.randn(rows), torch.randn(square)
        products += 2 * [(z, z.mT), (pattern, z), (pattern.mT, z)]
    outs = [a @ b for a, b in products]

    def step(x: Tensor, y: Tensor) -> None:
        for (a, b), out in zip(products, outs, strict=True):
            torch.matmul(a, b, out=out)

    return step


def contenders(config: GPTConfig, precision: str) -> dict[str, Step]:
    gpt, muon_gpt, plain = GPT(config), GPT(config), PerHeadGPT(config)
    gpt2 = hugging_face_gpt2(config, "eager" if precision == "bf16" else "sdpa")
    muon = make_optimizers(muon_gpt, Recipe(steps=STEPS, precision=precision))
    steps = {
        OURS: training_step(gpt, gpt, precision=precision),
        PER_HEAD: training_step(plain, plain, precision=precision),
        HUGGING_FACE: training_step(
            gpt2, lambda ids: gpt2(input_ids=ids).logits, precision=precision
        ),
        WITH_MUON: training_step(muon_gpt, muon_gpt, muon, precision),
    }
    if shutil.which("c++"):
        twin = GPT(config)
        compiled = torch.compile(twin, dynamic=False)
        steps[COMPILED] = training_step(twin, compiled, precision=precision)
    return steps


def speed(config: GPTConfig, rounds: int) -> None:
    torch.manual_seed(0)
    here = settled_precision("auto", config, CPU)
    precisions = ("no", "bf16") if here == "bf16" else ("no",)
    steps = {
        (name, precision): step
        for precision in precisions
        for name, step in contenders(config, precision).items()
    }
    columns = {f"batch {batch}": rates(steps, config, batch, rounds) for batch in BATCHES}
    if sys.platform == "linux" and keep_freed_memory():
        columns |= {f"{batch}, kept": rates(steps, config, batch, rounds) for batch in BATCHES}

    def row(title: str, cells: Iterable[str]) -> None:
        print(f"{title:56}" + "".join(f"{cell:>12}" for cell in cells))

    def ratio(title: str, of: Contender, *others: Contender) -> None:
        best = (max(column[other] for other in others) for column in columns.values())
        speeds = (column[of] for column in columns.values())
        row(title, (f"{a / b:.2f}" for a, b in zip(speeds, best, strict=True)))

    row("tokens a second of a training step", columns)
    for name, precision in (*steps, (PRODUCTS, "no")):
        cells = (f"{column[name, precision]:,.0f}" for column in columns.values())
        row(f"{name}, {PRECISIONS[precision]}", cells)
    for precision in precisions:
        compared = [(OURS, PER_HEAD), (OURS, HUGGING_FACE)]
        if (COMPILED, precision) in steps:
            compared += [(COMPILED, PER_HEAD), (COMPILED, HUGGING_FACE)]
        for name, other in compared:
            title = f"{name} / {other}, both {PRECISIONS[precision]}"
            ratio(title, (name, precision), (other, precision))
    ratio(f"{PRODUCTS} / {PER_HEAD}, both float32", (PRODUCTS, "no"), (PER_HEAD, "no"))
    for other in (PER_HEAD, HUGGING_FACE):
        title = f"{OURS} as it trains here / {other} at its best"
        ratio(title, (OURS, here), *((other, precision) for precision in precisions))
    rate = matmul_rate(CPU)
    speeds = (column[OURS, "no"] for column in columns.values())
    used = (model_flops_utilisation(config, speed, rate) for speed in speeds)
    row("model FLOP utilisation of this GPT, float32", (f"{share:.0%}" for share in used))
    print()


def rates(
    steps: dict[Contender, Step], config: GPTConfig, batch: int, rounds: int
) -> dict[Contender, float]:
    """Tokens a second of each, and of the matrix products alone."""
    ids = torch.randint(config.d_vocab, (batch, config.n_ctx + 1))
    steps = steps | {(PRODUCTS, "no"): matrix_products(config, batch)}
    seconds: dict[Contender, list[float]] = {contender: [] for contender in steps}
    repeats = max(1, 120 // batch)
    for _ in range(rounds + 1):
        for contender, step in steps.items():
            start = time.perf_counter()
            for _ in range(repeats):
                step(ids[:, :-1], ids[:, 1:])
            seconds[contender].append((time.perf_counter() - start) / repeats)
    return {  # the first round warms up
        contender: batch * config.n_ctx / statistics.median(times[1:])
        for contender, times in seconds.items()
    }


def keep_freed_memory() -> bool:
    """Have glibc keep up to 1 GiB of what is freed; False under another C library."""
    libc = ctypes.CDLL(None)
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
    return hasattr(libc, "mallopt") and all(
        libc.mallopt(option, 2**30) for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD)
    )


# Quality


def quality(config: GPTConfig, corpus: Corpus, steps: int, every: int) -> None:
    rows = [("recipe", "final loss", f"tokens to {TARGET}", "seconds to it", "ms a step")]
    for name, losses, step_seconds in (
        ("this GPT, default recipe", *ours_by_default(config, corpus, steps, every)),
        ("GPT2LMHeadModel, nanoGPT's", *gpt2_as_nanogpt(config, corpus, steps, every)),
    ):
        reached = next((step for step, loss in losses.items() if loss <= TARGET), None)
        tokens = "not reached" if reached is None else f"{reached * BATCH * config.n_ctx:,}"
        beyond = ">" if reached is None else ""
        seconds = f"{beyond}{(reached or steps) * step_seconds:.1f}"
        rows.append((name, f"{losses[steps]:.4f}", tokens, seconds, f"{step_seconds * 1e3:.1f}"))
    for row in rows:
        print(f"{row[0]:28}" + "".join(f"{cell:>18}" for cell in row[1:]))


def ours_by_default(
    config: GPTConfig, corpus: Corpus, steps: int, every: int
) -> tuple[dict[int, float], float]:
    """The whole validation loss by step, and the median seconds of a step."""
    recipe = Recipe(steps=steps, batch_size=BATCH, evaluate_every=every)
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        train(
            config,
            corpus,
            recipe,
            out,
            on_step=lambda step, loss: times.append(time.perf_counter()),
        )
        lines = (out / HISTORY).read_text().splitlines()
    columns = lines[0].split(",")
    step, loss = columns.index("step"), columns.index("val_loss")
    cells = [line.split(",") for line in lines[1:]]
    losses = {int(row[step]): float(row[loss]) for row in cells if row[loss]}
    return losses, statistics.median(b - a for a, b in itertools.pairwise(times))


def gpt2_as_nanogpt(
    config: GPTConfig, corpus: Corpus, steps: int, every: int
) -> tuple[dict[int, float], float]:
    """nanoGPT's CPU recipe (its README and train_shakespeare_char.py) on Hugging Face's model."""
    torch.manual_seed(1337)
    gpt2 = hugging_face_gpt2(config)
    matrices = [p for p in gpt2.parameters() if p.ndim >= 2]
    vectors = [p for p in gpt2.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    losses, times = {}, []
    for step in range(steps + 1):
        if step % every == 0:
            losses[step] = whole_loss(gpt2, corpus, config.n_ctx)
        if step == steps:
            break
        start = time.perf_counter()
        warmup, progress = min(1.0, (step + 1) / 101), max(0.0, (step - 100) / (steps - 100 or 1))
        rate = (
            1e-4 + 9e-4 * 0.5 * (1 + math.cos(math.pi * progress)) if step > 100 else 1e-3 * warmup
        )
        for group in adamw.param_groups:
            group["lr"] = rate
        x, y = corpus.batch(step, n_windows=BATCH, n_ctx=config.n_ctx, seed=1337)
        next_token_loss(gpt2(input_ids=x).logits, y).backward()
        nn.utils.clip_grad_norm_(gpt2.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        times.append(time.perf_counter() - start)
    return losses, statistics.median(times)


@torch.no_grad()
def whole_loss(gpt2: nn.Module, corpus: Corpus, n_ctx: int) -> float:
    total, count = 0.0, 0
    for x, y in corpus.validation(n_windows=128, n_ctx=n_ctx):
        logits = gpt2(input_ids=x).logits.flatten(0, 1)
        total += float(
            F.cross_entropy(logits, y.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
        )
        count += int((y != IGNORE_INDEX).sum())
    return total / count


# Memory

TRAIN_ONE = """
import resource, sys
from model import preset
from model.corpus import Corpus
from model.recipe import Recipe
from model.training import train
train(preset("course"), Corpus.open(sys.argv[1]), Recipe(steps=100), sys.argv[1] + "/run")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def memory() -> None:
    peaks = {}
    for n_bytes in (10**6, 10**9):
        with tempfile.TemporaryDirectory() as folder:
            rng = np.random.default_rng(0)
            with Path(folder, "train.bin").open("wb") as file:
                for start in range(0, n_bytes, 10**7):
                    n_ids = min(10**7, n_bytes - start) // 2
                    file.write(rng.integers(65, size=n_ids, dtype=np.uint16).tobytes())
            rng.integers(65, size=10**5, dtype=np.uint16).tofile(Path(folder, "val.bin"))
            command = [sys.executable, "-c", TRAIN_ONE, folder]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            peaks[n_bytes] = int(done.stdout.split()[-1])
            print(f"corpus of {n_bytes / 1e6:6,.0f} MB: peak {peaks[n_bytes] / 1e6:,.0f} MB")
    small, large = peaks.values()
    print(f"the larger corpus takes {(large - small) / 1e6:,.0f} MB more")


if __name__ == "__main__":
    main()
