"""The training loop.

    python -m model.training ...                   the same as `orrery train ...`
    accelerate launch -m model.training ...        on several GPUs or machines
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 -m model.training ...     on CPUs

Each update is fixed by the weights, the optimizers, the seed and the step, whatever the number of
processes: the batch of a step is drawn for all of them, and each takes its share.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from .checkpoint import Run
from .config import GPTConfig
from .errors import ModelError
from .gpt import GPT, next_token_loss
from .optimizers import set_rates
from .precision import products_in, settled_precision
from .progress import PROGRESS
from .recipe import Recipe
from .recorder import HISTORY, Recorder, clear_half_written, create_run
from .sources import Data, open_source
from .stopping import all_stop, stop_signal

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
    precision = settled_precision(recipe.precision, config, accelerator.device)
    recipe = dataclasses.replace(recipe, precision=precision)
    _check_fit(config, data, recipe, accelerator.num_processes)
    torch.manual_seed(recipe.seed)
    gpt = GPT(config)
    if accelerator.is_main_process:
        create_run(Path(out), gpt, recipe, data, command)
    accelerator.wait_for_everyone()
    return _run(accelerator, gpt, data, recipe, Path(out), on_step, save_seconds)


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
    opened = Run.open(run)
    info = opened.info
    if info.get("finished") or not (opened.path / PROGRESS).exists():
        raise ModelError(f"{run} is finished: there is nothing to resume; train a new run.")
    recipe = Recipe.from_dict(info["recipe"])
    accelerator = _accelerator(recipe, run, tracker)
    data = data or open_source(info["source"], opened.tokenizer())
    if data.describe() != info["data"]:
        raise ModelError(
            f"the corpus has changed since {run} began on it (now {data.describe()}, then "
            f"{info['data']}): give the same text."
        )
    _check_fit(opened.config, data, recipe, accelerator.num_processes)
    if accelerator.is_main_process:
        clear_half_written(opened.path)
    return _run(accelerator, GPT(opened.config), data, recipe, opened.path, on_step, save_seconds)


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
    recorder = Recorder(out, gpt, recipe, data)
    model, *optimizers = accelerator.prepare(gpt, *recorder.optimizers)
    accelerator.init_trackers("orrery")  # does nothing without a tracker

    stopping = False
    with stop_signal() as stop:
        for step in range(recorder.first_step, recipe.steps + 1):
            stopping = all_stop(accelerator, stop, step)
            if accelerator.is_main_process:
                if stopping or recorder.seconds_since_save >= save_seconds:
                    recorder.save(step)
                if step in recipe.row_steps and not stopping:
                    accelerator.log(recorder.measure(step), step=step)
            if stopping or step == recipe.steps:
                break
            set_rates(recorder.optimizers, recipe.rate_factor(step))
            loss, norm = _update(accelerator, model, optimizers, data, recipe, step)
            if accelerator.is_main_process:
                recorder.add(loss, norm)
                on_step(step + 1, loss)

    if accelerator.is_main_process and not stopping:
        recorder.finish(device=accelerator.device, processes=accelerator.num_processes)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return Run(out).info


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
    if config.dropout:  # drawn from the step, so that a resumed run drops the same
        torch.manual_seed(_dropout_seed(recipe.seed, step, rank))
    whole = data.batch(step, n_windows=recipe.batch_size, n_ctx=config.n_ctx, seed=recipe.seed)
    x, y = (part.chunk(n_processes)[rank].to(accelerator.device) for part in whole)
    losses: list[Tensor] = []
    norm = torch.zeros(())
    for x_part, y_part in zip(x.chunk(recipe.accumulate), y.chunk(recipe.accumulate), strict=True):
        with accelerator.accumulate(model):
            with products_in(recipe.precision, accelerator.device):
                logits = model(x_part)
            loss = next_token_loss(logits.float(), y_part)
            accelerator.backward(loss)
            losses.append(loss.detach())
            if accelerator.sync_gradients:
                longest = recipe.clip_norm or float("inf")
                norm = accelerator.clip_grad_norm_(model.parameters(), longest)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    loss = torch.stack(losses).mean()
    if n_processes > 1:
        loss = accelerator.gather(loss).mean()  # type: ignore[union-attr]
    assert norm is not None
    return loss, norm


def _dropout_seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


def _accelerator(recipe: Recipe, out: str | Path, tracker: str | None) -> Accelerator:
    if tracker is not None and importlib.util.find_spec(tracker) is None:
        raise ModelError(
            f"the history was to go to {tracker}, which is not installed: `pip install {tracker}`, "
            f"or train without it; {HISTORY} is written in any case."
        )
    return Accelerator(
        mixed_precision="no",  # its own would also score the GPT in lower precision
        gradient_accumulation_steps=recipe.accumulate,
        dynamo_backend="inductor" if recipe.compile else None,
        log_with=tracker,
        project_dir=str(out) if tracker else None,
    )


def _check_fit(config: GPTConfig, data: Data, recipe: Recipe, n_processes: int) -> None:
    data.check_context(config.n_ctx)
    if data.largest_id >= config.d_vocab:
        raise ModelError(
            f"the corpus has ids up to {data.largest_id} and the model's vocabulary has "
            f"d_vocab={config.d_vocab}: choose a model with a larger one."
        )
    share = n_processes * recipe.accumulate
    if recipe.batch_size % share:
        raise ModelError(
            f"batch_size={recipe.batch_size} does not divide into {n_processes} processes of "
            f"{recipe.accumulate} parts: choose a multiple of {share}."
        )


if __name__ == "__main__":
    from .cli import main

    sys.exit(main(["train", *sys.argv[1:]]))
