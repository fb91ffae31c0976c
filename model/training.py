"""The training loop.

    python -m model.training ...                   the same as `orrery train ...`
    accelerate launch -m model.training ...        on several processes, GPUs or machines

Each update is fixed by the weights, the optimizers, the seed and the step, whatever the number of
processes: the batch of step s is drawn for all of them, and each takes its share.
"""

from __future__ import annotations

import csv
import io
import json
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from .checkpoint import (
    HISTORY,
    RUN_INFO,
    WEIGHTS,
    Run,
    save_weights,
    snapshot_path,
    write_description,
)
from .config import GPTConfig
from .corpus import Batch
from .errors import ModelError
from .files import write_json, write_text
from .gpt import GPT, IGNORE_INDEX, next_token_loss
from .muon import Muon
from .progress import PROGRESS, load_progress, save_progress
from .recipe import Recipe
from .sources import Data, open_source
from .throughput import matmul_rate, model_flops_utilisation

COLUMNS = (
    "step",
    "tokens",
    "seconds",
    "train_loss",
    "val_loss",
    "val_estimate",
    "learning_rate",
    "gradient_norm",
)
"""Of history.csv. Losses in nats a token: `train_loss` is the mean since the row before,
`val_loss` is on the whole validation split, `val_estimate` on a fixed sample of it."""

ESTIMATE_WINDOWS = 64
EVALUATION_TOKENS = 8192
"""tokens in one forward pass of an evaluation"""

OnStep = Callable[[int, Tensor], None]
"""Called after each update with the number of updates so far and the batch's loss."""


def train(
    config: GPTConfig,
    data: Data,
    recipe: Recipe,
    out: str | Path,
    *,
    command: str | None = None,
    on_step: OnStep = lambda step, loss: None,
    save_seconds: float = 60.0,
    tracker: str | None = None,
) -> dict[str, Any]:
    """Train a GPT into the new run directory `out`; return what its `run.json` says.

    A first SIGINT or SIGTERM saves and returns early, with `finished` false; `resume` goes on
    from there, or from at most `save_seconds` before the moment of a harder end.

    Args:
        data: what to train on, see `corpus.tokenise`, `Corpus.open` and `RepeatedTokens`.
        command: kept in `run.json`.
        tracker: 'tensorboard' or 'wandb'; the history goes there too.

    Raises:
        ModelError: when `out` exists, a setting does not fit, the loss is not finite, or a file
            cannot be written.
    """
    accelerator = _accelerator(recipe, out, tracker)
    out = Path(out)
    torch.manual_seed(recipe.seed)
    gpt = GPT(config)
    _check_fit(accelerator, config, data, recipe)
    if accelerator.is_main_process:
        _lay_out(out, gpt, data, recipe, command)
    accelerator.wait_for_everyone()
    return _run(accelerator, gpt, data, recipe, out, on_step, save_seconds)


def resume(
    run: str | Path,
    *,
    data: Data | None = None,
    on_step: OnStep = lambda step, loss: None,
    save_seconds: float = 60.0,
    tracker: str | None = None,
) -> dict[str, Any]:
    """Finish an unfinished run; on the same machine, bit for bit as if it had not stopped.

    Args:
        data: the corpus, when it is no longer where it was.

    Raises:
        ModelError: when the run is finished or damaged, or the corpus is not the one it began on.
    """
    run = Path(run)
    opened = Run.open(run)
    config, info = opened.config, opened.info
    if info.get("finished") or not (run / PROGRESS).exists():
        raise ModelError(f"{run} is finished: there is nothing to resume; train a new run.")
    recipe = Recipe.from_dict(info["recipe"])
    accelerator = _accelerator(recipe, run, tracker)
    data = data or open_source(info["source"], opened.tokenizer())
    if data.describe() != info["data"]:
        raise ModelError(
            f"the corpus has changed since {run} began on it ({data.describe()} instead of "
            f"{info['data']}): give the same text."
        )
    _check_fit(accelerator, config, data, recipe)
    if accelerator.is_main_process:
        for half in (*run.glob(".*.tmp"), *run.glob("snapshots/.*.tmp")):
            half.unlink()  # what a kill left of a file that was being written
    return _run(accelerator, GPT(config), data, recipe, run, on_step, save_seconds)


def _run(
    accelerator: Accelerator,
    gpt: GPT,
    data: Data,
    recipe: Recipe,
    out: Path,
    on_step: OnStep,
    save_seconds: float,
) -> dict[str, Any]:
    gpt.to(accelerator.device).train()
    optimizers = make_optimizers(gpt, recipe)
    at, saved_losses = load_progress(out, gpt, optimizers)
    model, *prepared = accelerator.prepare(gpt, *optimizers)

    tokens_a_step = recipe.batch_size * gpt.config.n_ctx
    first, norm, losses = at["step"], at["gradient_norm"], list(saved_losses)
    history = _read_history(out, before=first)
    started = last_save = time.perf_counter()

    def seconds() -> float:
        return at["seconds"] + time.perf_counter() - started

    with _stop_signal() as stop:
        for step in range(first, recipe.steps + 1):
            stopping = _agreed(accelerator, stop, step)
            due = stopping or time.perf_counter() - last_save >= save_seconds
            if due or step in recipe.row_steps:
                _check_finite(losses, gpt, recipe, step, out)
            if due and step > first and accelerator.is_main_process:
                save_progress(
                    out,
                    gpt,
                    optimizers,
                    step=step,
                    seconds=seconds(),
                    losses=torch.stack(losses) if losses else torch.empty(0),
                    gradient_norm=None if norm is None else float(norm),
                )
                _write_history(out, history)
                last_save = time.perf_counter()
            if stopping:
                break
            if step in recipe.row_steps:
                if accelerator.is_main_process:
                    row = {
                        "step": step,
                        "tokens": step * tokens_a_step,
                        "seconds": round(seconds(), 3),
                        "train_loss": float(torch.stack(losses).mean()) if losses else None,
                        "learning_rate": recipe.learning_rate * recipe.rate_factor(step),
                        "gradient_norm": None if norm is None else float(norm),
                        **_measure(gpt, data, recipe, step),
                    }
                    history.append(row)
                    accelerator.log({k: v for k, v in row.items() if v is not None}, step=step)
                    if step in recipe.snapshot_steps:
                        _save_snapshot(out, gpt, recipe, step)
                        _write_history(out, history)
                losses = []
            if step < recipe.steps:
                set_rates(optimizers, recipe.rate_factor(step))
                loss, norm = _update(accelerator, model, prepared, data, recipe, step)
                losses.append(loss)
                if accelerator.is_main_process:
                    on_step(step + 1, loss)

    info = Run(out).info
    if accelerator.is_main_process and not stop.is_set():
        info = _finish(out, gpt, history, seconds(), accelerator)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return info


def _update(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    data: Data,
    recipe: Recipe,
    step: int,
) -> tuple[Tensor, Tensor]:
    """One step: the mean loss over all processes, and the gradient's length before clipping."""
    rank, n_processes = accelerator.process_index, accelerator.num_processes
    config = accelerator.unwrap_model(model).config
    if config.dropout:
        seeds = np.random.SeedSequence((recipe.seed, step, rank)).generate_state(1, np.uint64)
        torch.manual_seed(int(seeds[0]))
    whole = data.batch(step, n_windows=recipe.batch_size, n_ctx=config.n_ctx, seed=recipe.seed)
    x, y = (part.chunk(n_processes)[rank].to(accelerator.device) for part in whole)
    total = torch.zeros((), device=accelerator.device)
    norm = torch.zeros(())
    for x_part, y_part in zip(x.chunk(recipe.accumulate), y.chunk(recipe.accumulate), strict=True):
        with accelerator.accumulate(model):
            loss = next_token_loss(model(x_part), y_part)
            accelerator.backward(loss)
            total += loss.detach() / recipe.accumulate
            if accelerator.sync_gradients:
                clip = recipe.clip_norm or float("inf")
                norm = accelerator.clip_grad_norm_(model.parameters(), clip)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    if n_processes > 1:
        total = accelerator.reduce(total, reduction="mean")
    return total, norm


def make_optimizers(gpt: GPT, recipe: Recipe) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the blocks' matrices, AdamW for embeddings, unembedding, biases and LayerNorms.

    Each group's `peak` is its learning rate before warm-up and decay.
    """
    hidden: dict[int, list[Tensor]] = {1: [], 3: []}
    embeddings: list[Tensor] = []
    unembedding: list[Tensor] = []
    vectors: list[Tensor] = []
    for name, parameter in gpt.named_parameters():
        if parameter.ndim < 2:
            vectors.append(parameter)
        elif name.startswith("blocks."):
            hidden[3 if name.endswith("qkv_proj.weight") else 1].append(parameter)
        elif name in ("embed.weight", "pos_embed.weight"):
            embeddings.append(parameter)
        else:
            unembedding.append(parameter)
    rate, decay = recipe.learning_rate, recipe.weight_decay
    embedding_rate = rate * (1.0 if gpt.config.tied_embeddings else recipe.embedding_rate)
    muon = Muon(
        [
            {"params": parameters, "n_stacked": n_stacked, "peak": rate}
            for n_stacked, parameters in hidden.items()
        ],
        lr=rate,
        momentum=recipe.momentum,
        weight_decay=decay,
    )
    adamw = torch.optim.AdamW(
        [
            {"params": parameters, "peak": peak, "weight_decay": group_decay}
            for parameters, peak, group_decay in (
                (embeddings, embedding_rate, decay),
                (unembedding, rate, decay),
                (vectors, rate, 0.0),
            )
            if parameters
        ],
        lr=rate,
        betas=recipe.betas,
        fused=True,
    )
    return muon, adamw


def set_rates(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


@torch.no_grad()
def evaluate(gpt: GPT, batches: Iterable[Batch]) -> float:
    """The mean loss in nats over every target of `batches`, without dropout."""
    was_training = gpt.training
    gpt.eval()
    total, count = 0.0, 0
    for x, y in batches:
        n_targets = int((y != IGNORE_INDEX).sum())
        loss = next_token_loss(gpt(x.to(gpt.device)), y.to(gpt.device))
        total, count = total + float(loss) * n_targets, count + n_targets
    gpt.train(was_training)
    return total / count


def evaluate_whole(gpt: GPT, data: Data) -> float:
    """The loss on the whole validation split, every position scored once."""
    n_ctx = gpt.config.n_ctx
    n_windows = max(1, EVALUATION_TOKENS // n_ctx)
    return evaluate(gpt, data.validation(n_windows=n_windows, n_ctx=n_ctx))


def _measure(gpt: GPT, data: Data, recipe: Recipe, step: int) -> dict[str, float | None]:
    n_ctx, every = gpt.config.n_ctx, recipe.evaluate_every
    estimate = whole = None
    if step in recipe.snapshot_steps or step == recipe.steps:
        estimate = evaluate(gpt, data.validation_sample(n_windows=ESTIMATE_WINDOWS, n_ctx=n_ctx))
    if step == recipe.steps or (every and step % every == 0):
        whole = evaluate_whole(gpt, data)
    return {"val_loss": whole, "val_estimate": estimate}


def _accelerator(recipe: Recipe, out: str | Path, tracker: str | None) -> Accelerator:
    accelerator = Accelerator(
        mixed_precision=recipe.precision,
        gradient_accumulation_steps=recipe.accumulate,
        dynamo_backend="inductor" if recipe.compile else None,
        log_with=tracker,
        project_dir=str(out) if tracker else None,
    )
    if tracker:
        accelerator.init_trackers("orrery")
    return accelerator


def _check_fit(accelerator: Accelerator, config: GPTConfig, data: Data, recipe: Recipe) -> None:
    data.check_context(config.n_ctx)
    if data.d_vocab is not None and data.d_vocab > config.d_vocab:
        raise ModelError(
            f"the corpus has ids up to {data.d_vocab - 1} and the model's vocabulary has "
            f"d_vocab={config.d_vocab}: choose a larger one."
        )
    share = accelerator.num_processes * recipe.accumulate
    if recipe.batch_size % share:
        raise ModelError(
            f"batch_size={recipe.batch_size} does not divide into {accelerator.num_processes} "
            f"processes of {recipe.accumulate} parts: choose a multiple of {share}."
        )


def _lay_out(
    out: Path,
    gpt: GPT,
    data: Data,
    recipe: Recipe,
    command: str | None,
) -> None:
    """The run at step 0, put in place whole: from its first moment it loads and resumes."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(
            f"{out} exists: choose another folder for --out, or go on with `orrery resume {out}`."
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=".tmp"))
    except OSError as error:
        raise ModelError(
            f"{out} cannot be written ({error.strerror}): choose a folder that can."
        ) from None
    try:
        write_description(beside, gpt.config, data.tokenizer)
        info = {
            "command": command,
            "finished": False,
            "recipe": recipe.to_dict(),
            "source": dict(data.source),
            "data": data.describe(),
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("orrery", "torch", "numpy", "accelerate")},
            },
        }
        write_json(beside / RUN_INFO, info)
        _save_snapshot(beside, gpt, recipe, 0)
        save_progress(
            beside,
            gpt,
            make_optimizers(gpt, recipe),
            step=0,
            seconds=0.0,
            losses=torch.empty(0),
            gradient_norm=None,
        )
        beside.chmod(0o755)
        beside.replace(out)
    except OSError as error:
        raise ModelError(
            f"{out} cannot be written ({error.strerror}): choose a folder that can."
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _save_snapshot(out: Path, gpt: GPT, recipe: Recipe, step: int) -> None:
    dtype = torch.float16 if recipe.half_snapshots else None
    save_weights(snapshot_path(out, step), gpt, step=step, dtype=dtype)


def _finish(
    out: Path, gpt: GPT, history: list[dict[str, Any]], seconds: float, accelerator: Accelerator
) -> dict[str, Any]:
    last = history[-1]
    speed = last["tokens"] / seconds
    rate = matmul_rate(accelerator.device) * accelerator.num_processes
    sha256 = save_weights(out / WEIGHTS, gpt, step=last["step"])
    _write_history(out, history)
    info = Run(out).info | {
        "finished": True,
        "steps": last["step"],
        "tokens": last["tokens"],
        "train_loss": last["train_loss"],
        "val_loss": last["val_loss"],
        "val_estimate": last["val_estimate"],
        "weights_sha256": sha256,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(speed),
        "model_flops_utilisation": round(model_flops_utilisation(gpt.config, speed, rate), 3),
        "processes": accelerator.num_processes,
        "device": accelerator.device.type,
        "threads": torch.get_num_threads(),
    }
    write_json(out / RUN_INFO, info)
    (out / PROGRESS).unlink(missing_ok=True)
    return info


def _check_finite(losses: list[Tensor], gpt: GPT, recipe: Recipe, step: int, out: Path) -> None:
    bad = next((i for i, loss in enumerate(losses) if not torch.isfinite(loss)), None)
    if bad is None and all(bool(p.isfinite().all()) for p in gpt.parameters()):
        return
    at = step - 1 if bad is None else step - len(losses) + bad
    what = "the weights are" if bad is None else f"the loss became {float(losses[bad])}, which is"
    good = max((s for s in Run(out).snapshots if s <= at), default=None)
    kept = f"step {good}, {snapshot_path(out, good)}" if good is not None else "none"
    raise ModelError(
        f"{what} not finite at step {at}, with learning rate "
        f"{recipe.learning_rate * recipe.rate_factor(at):.2g}: the last good snapshot is {kept}; "
        "train again with a lower --learning-rate."
    )


def _agreed(accelerator: Accelerator, stop: threading.Event, step: int) -> bool:
    """Whether to stop, with one answer in all processes: if one left, the others would wait."""
    if accelerator.num_processes == 1:
        return stop.is_set()
    if step % 10:
        return False
    flag = torch.tensor(float(stop.is_set()), device=accelerator.device)
    if float(accelerator.reduce(flag, reduction="sum")) > 0:
        stop.set()
    return stop.is_set()


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one ends the program as usual."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, on_signal)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read_history(out: Path, before: int) -> list[dict[str, Any]]:
    """The rows before a step; those from it on belong to updates that are made again."""
    path = out / HISTORY
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = [
            {name: json.loads(value) if value else None for name, value in row.items()}
            for row in csv.DictReader(file)
        ]
    return [row for row in rows if row["step"] < before]


def _write_history(out: Path, history: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([row[name] for name in COLUMNS] for row in history)
    write_text(out / HISTORY, text.getvalue())


if __name__ == "__main__":
    from .cli import main

    sys.exit(main(["train", *sys.argv[1:]]))
