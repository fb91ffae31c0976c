"""Train a GPT on a text.

Without --text or --data it trains the course GPT on tiny Shakespeare, downloaded once. The run
directory holds the weights, snapshots on the way, the history and the exact command.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ..config import GPTConfig
    from ..recipe import Recipe
    from ..sources import Data
    from ..training import OnStep

DEFAULT_TOKENS = 1_536_000
"""nanoGPT's budget for its smallest Shakespeare model"""
INDUCTION_TOKENS = 300 * 32 * 32
"""enough for induction heads to form, and some more"""
TASK_RECIPE = {
    "batch_size": 32,
    "learning_rate": 0.03,
    "warmup_steps": 20,
    "weight_decay": 0.0,
}
BEST_RATE_WIDTH = 128
"""the width at which the default learning rate was found; wider models get less"""

SIZES = ("n_layers", "n_heads", "d_model", "d_mlp", "n_ctx")


def arguments(parser: argparse.ArgumentParser) -> None:
    from ..config import PRESETS
    from ..precision import PRECISIONS
    from ..recipe import Recipe

    default = {field.name: field.default for field in dataclasses.fields(Recipe)}
    data = parser.add_argument_group("data").add_mutually_exclusive_group()
    data.add_argument("--text", nargs="+", metavar="FILE", help="UTF-8 text files, joined in order")
    data.add_argument("--data", metavar="FOLDER", help="train.bin and val.bin, as nanoGPT has them")
    data.add_argument("--task", choices=["induction"], help="repeated random tokens")
    text = parser.add_argument_group("text")
    text.add_argument(
        "--tokenizer",
        default="characters",
        metavar="FILE",
        help="'characters' (default), 'gpt2' or a tokenizer.json",
    )
    text.add_argument("--val-fraction", type=float, help="of the text, its end (default: 0.1)")

    model = parser.add_argument_group("model")
    model.add_argument(
        "--preset", help=f"{', '.join(PRESETS)} (default: course; the task brings its own)"
    )
    for name in SIZES:
        model.add_argument(_flag(name), type=int, help=f"instead of the preset's {name}")
    model.add_argument("--dropout", type=float, help="instead of the preset's")

    length = parser.add_argument_group("length").add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, help="how many updates")
    length.add_argument(
        "--tokens",
        type=int,
        help=f"how many tokens (default: {DEFAULT_TOKENS:,}; induction: 300 steps)",
    )
    recipe = parser.add_argument_group("recipe")
    for name, kind, help_ in (
        ("batch_size", int, "windows of n_ctx tokens a step, over all processes"),
        ("learning_rate", float, "peak; smaller by default for models wider than 128"),
        ("embedding_rate", float, "the embeddings' learning rate as a multiple"),
        ("warmup_steps", int, "steps of linear warm-up"),
        ("decay_power", float, "the rate falls as 1 - progress^power; 1 is linear"),
        ("momentum", float, "Muon's"),
        ("weight_decay", float, "on matrices and embeddings"),
        ("clip_norm", float, "clip gradients longer than this; 0 clips none"),
        ("accumulate", int, "feed the batch in this many parts"),
        ("seed", int, "of weights, data order and dropout"),
        ("evaluate_every", int, "steps between evaluations on the whole validation split"),
        ("snapshot_from", int, "the first step after 0 of the snapshot grid"),
    ):
        recipe.add_argument(_flag(name), type=kind, help=f"{help_} (default: {default[name]:g})")
    recipe.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of matrix products: no for float32, bf16, or auto (default): bf16 where it is faster",
    )
    recipe.add_argument("--compile", action="store_true", help="torch.compile the model")

    output = parser.add_argument_group("output")
    output.add_argument("--out", default="runs/train", help="the new run (default: runs/train)")
    output.add_argument(
        "--snapshot-at", type=int, nargs="+", metavar="STEP", help="keep these steps too"
    )
    output.add_argument(
        "--half-snapshots", action="store_true", help="store all but the final weights as float16"
    )
    progress_arguments(output)


def run(args: argparse.Namespace) -> int:
    from ..training import train

    data = _data(args)
    config = _config(args, data)
    recipe = _recipe(args, config)
    with progress_bar(recipe.steps, recipe.batch_size * config.n_ctx) as on_step:
        info = train(
            config,
            data,
            recipe,
            args.out,
            command=shlex.join(["orrery", *args.argv]),
            on_step=on_step,
            save_seconds=args.save_every,
            tracker=args.tracker,
        )
    return report(info, args.out)


def progress_arguments(parser: Any) -> None:
    """What `train` and `resume` share."""
    parser.add_argument(
        "--save-every",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how often to save, for `orrery resume` after a kill (default: 60)",
    )
    parser.add_argument(
        "--tracker",
        choices=["tensorboard", "wandb"],
        help="send the history there too; nothing is sent without it",
    )


def report(info: dict[str, Any], out: str) -> int:
    """Print how a run ended; the exit code."""
    if int(os.environ.get("RANK", "0")):  # one process speaks
        return 0
    if not info["finished"]:
        sys.stderr.write(f"stopped and saved; go on with `orrery resume {out}`.\n")
        return 130
    products = {"no": "float32", "bf16": "bfloat16"}[info["recipe"]["precision"]]
    sys.stdout.write(
        f"{out}: {info['steps']:,} steps, {info['tokens']:,} tokens in {info['seconds']:.0f} s "
        f"({info['tokens_per_second']:,} tokens/s, products in {products}, model FLOP utilisation "
        f"{info['model_flops_utilisation']:.0%})\n"
        f"validation loss {info['val_loss']:.4f} on the whole split "
        f"({info['val_estimate']:.4f} on the sample), training loss {info['train_loss']:.4f}\n"
    )
    return 0


@contextmanager
def progress_bar(steps: int, tokens_a_step: int) -> Iterator[OnStep]:
    """A bar with loss, tokens/s and the time left; nothing when no terminal is there."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("step {task.completed:,.0f} of {task.total:,.0f}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  {task.fields[speed]:,.0f} tokens/s  left"),
        TimeRemainingColumn(),
        console=(console := Console(stderr=True)),
        disable=not console.is_terminal,
        transient=True,
    )
    task = bar.add_task("", total=steps, loss=float("nan"), speed=0.0)
    shown_at, shown_step = time.perf_counter(), -1

    def on_step(step: int, loss: Tensor) -> None:
        nonlocal shown_at, shown_step
        now = time.perf_counter()
        if shown_step < 0:
            shown_step = step - 1
        if now - shown_at > 0.2:
            speed = (step - shown_step) * tokens_a_step / (now - shown_at)
            bar.update(task, completed=step, loss=float(loss), speed=speed)
            shown_at, shown_step = now, step

    with bar:
        yield on_step


def _data(args: argparse.Namespace) -> Data:
    from ..errors import ModelError
    from ..sources import named_tokenizer, open_source

    if args.task or args.data:
        if args.tokenizer != "characters" or args.val_fraction is not None:
            raise ModelError("--tokenizer and --val-fraction are for text: leave them out.")
        return open_source({"task": args.task} if args.task else {"folder": args.data})
    source = {"text": args.text} if args.text else {"corpus": "tinyshakespeare"}
    if args.val_fraction is not None:
        source |= {"val_fraction": args.val_fraction}
    return open_source(source, named_tokenizer(args.tokenizer))


def _config(args: argparse.Namespace, data: Data) -> GPTConfig:
    from ..config import preset
    from ..repeats import INDUCTION

    changes = {n: v for n in (*SIZES, "dropout") if (v := getattr(args, n)) is not None}
    if args.task and not args.preset:
        return dataclasses.replace(INDUCTION, **changes)
    if data.d_vocab is not None:
        changes["d_vocab"] = data.d_vocab
    return preset(args.preset or "course", **changes)


def _recipe(args: argparse.Namespace, config: GPTConfig) -> Recipe:
    from ..recipe import Recipe

    names = [field.name for field in dataclasses.fields(Recipe)]
    given: dict[str, Any] = {n: v for n in names if (v := getattr(args, n, None)) is not None}
    if args.task:
        given = TASK_RECIPE | given
    if args.steps is None:
        tokens = args.tokens or (INDUCTION_TOKENS if args.task else DEFAULT_TOKENS)
        batch_size = given.get("batch_size", Recipe.batch_size)
        given["steps"] = max(1, round(tokens / (batch_size * config.n_ctx)))
    if "learning_rate" not in given:
        given["learning_rate"] = Recipe.learning_rate * min(1.0, BEST_RATE_WIDTH / config.d_model)
    return Recipe.from_dict(given)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
