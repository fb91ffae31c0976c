"""`orrery train` and `orrery resume`: what they say, write and refuse."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import tiny_training as tiny
import torch

import model.corpus as corpus_module
from model.checkpoint import Run
from model.cli import main

SHAPE = ["--n-layers", "1", "--n-heads", "3", "--d-model", "15", "--n-ctx", "7"]
SIZES = [*SHAPE, "--batch-size", "6", "--steps", "9"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(tiny.text())


def info(out: str) -> dict:
    return json.loads((Run.open(out).path / "run.json").read_text())


def test_train_writes_a_run_and_says_what_it_reached(capsys):
    command = ["train", "--text", "text.txt", *SIZES, "--out", "run"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "9 steps" in out
    assert f"validation loss {info('run')['val_loss']:.4f} on the whole split" in out
    assert err == ""  # no terminal, no bar
    assert info("run")["command"] == " ".join(["orrery", *command])


def test_sizes_tokens_and_recipe_reach_the_run():
    command = ["train", "--text", "text.txt", *SHAPE, "--batch-size", "6", "--out", "run"]
    command += ["--tokens", "840", "--dropout", "0.1", "--seed", "3", "--weight-decay", "0"]
    assert main([*command, "--snapshot-at", "7"]) == 0
    config, recipe = Run.open("run").config, info("run")["recipe"]
    assert (config.n_layers, config.n_heads, config.d_model, config.d_mlp) == (1, 3, 15, 60)
    assert (config.d_vocab, config.dropout) == (12, 0.1)
    assert (recipe["steps"], recipe["seed"], recipe["weight_decay"]) == (20, 3, 0)
    assert 7 in Run.open("run").steps


def test_wide_models_get_a_smaller_rate():
    wide = [*SHAPE, "--d-model", "384", "--batch-size", "2", "--steps", "1"]
    assert main(["train", "--text", "text.txt", *wide, "--out", "run"]) == 0
    assert info("run")["recipe"]["learning_rate"] == pytest.approx(0.01 / 3)


def test_without_a_text_it_trains_on_tiny_shakespeare(tmp_path, monkeypatch):
    import hashlib

    text = (tmp_path / "text.txt").read_bytes()
    monkeypatch.setattr(corpus_module, "TINY_SHAKESPEARE", (tmp_path / "text.txt").as_uri())
    monkeypatch.setattr(corpus_module, "TINY_SHAKESPEARE_SHA256", hashlib.sha256(text).hexdigest())
    assert main(["train", *SIZES, "--out", "run"]) == 0
    assert info("run")["source"] == {"corpus": "tinyshakespeare"}


def test_train_takes_a_folder_of_token_files(tmp_path):
    for name in ("train.bin", "val.bin"):
        (np.arange(500) % 12).astype(np.uint16).tofile(tmp_path / name)
    assert main(["train", "--data", ".", *SIZES, "--out", "run"]) == 0
    assert Run.open("run").tokenizer() is None


@pytest.mark.slow
def test_the_induction_task_is_learned(capsys):
    torch.set_num_threads(1)
    assert main(["train", "--task", "induction", "--out", "run"]) == 0
    assert info("run")["val_loss"] < 0.05


def test_resume_finishes_a_stopped_run_and_refuses_a_finished_one(tmp_path, capsys):
    tiny.run(tmp_path / "run", tmp_path, on_step=tiny.stop_at(4))
    assert main(["resume", "run"]) == 0
    assert "23 steps" in capsys.readouterr().out
    assert main(["resume", "run"]) == 2
    assert "finished" in capsys.readouterr().err


def test_resume_finds_a_text_that_has_moved(tmp_path, capsys):
    tiny.run(tmp_path / "run", tmp_path, on_step=tiny.stop_at(4))
    (tmp_path / "text.txt").rename(tmp_path / "moved.txt")
    assert main(["resume", "run"]) == 2
    assert "text.txt" in capsys.readouterr().err
    assert main(["resume", "run", "--text", "moved.txt"]) == 0


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--text", "missing.txt"], "missing.txt"),
        (["--text", "text.txt", "--n-ctx", "6000"], "n_ctx=6000"),
        (["--text", "text.txt", "--preset", "huge"], "shakespeare-char"),
        (["--text", "text.txt", "--n-heads", "4"], "n_heads=4"),
        (["--text", "text.txt", "--steps", "0"], "steps=0"),
        (["--text", "text.txt", "--tokenizer", "none.json"], "none.json"),
        (["--text", "text.txt", "--tokenizer", "gpt2"], "--tokenizer FILE"),
        (["--task", "induction", "--val-fraction", "0.2"], "--val-fraction"),
        (["--data", "."], "train.bin"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, names, capsys):
    assert main(["train", *SIZES, *arguments, "--out", "run"]) == 2
    err = capsys.readouterr().err
    assert names in err
    assert err.count("\n") == 1
    assert not os.path.exists("run")  # noqa: PTH110 (a file or folder of any kind)


def losses(out) -> list[float]:
    lines = [line.split(",") for line in (out / "history.csv").read_text().splitlines()]
    return [float(line[3]) for line in lines[2:]] + [info(out)["val_loss"]]


@pytest.mark.slow
def test_two_processes_draw_the_loss_curve_of_one(tmp_path):
    command = ["--text", "text.txt", *SIZES, "--save-every", "0"]
    assert main(["train", *command, "--out", "one"]) == 0
    launch = ["torch.distributed.run", "--nproc_per_node", "2", "--master_port"]
    launch += [port(), "--module", "model.training", *command, "--out", "two"]
    # on CPUs `accelerate launch` starts one process only; Accelerate reads torchrun's environment
    done = subprocess.run(
        [sys.executable, "-m", *launch],
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert info("two")["processes"] == 2
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)


def port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
