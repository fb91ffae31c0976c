"""Stopping and going on: the result is that of a run that was never stopped."""

from __future__ import annotations

import csv
import multiprocessing
import random
import shutil
import signal
import time

import pytest
import tiny_training as tiny
from safetensors.torch import load_file

from model import recorder
from model.checkpoint import Run
from model.errors import ModelError
from model.training import resume


def outcome(out):
    """All that must agree: weights, snapshots and every column of the history but the time."""
    run = Run.open(out)
    with (out / "history.csv").open() as file:
        history = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    return {step: run.weights(step).sha256 for step in run.steps}, history


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    tiny.run(folder / "run", folder)
    return outcome(folder / "run")


@pytest.mark.parametrize("step", [1, 8, 15, 22])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(tmp_path, step, uninterrupted):
    out = tmp_path / "run"
    info = tiny.run(out, tmp_path, on_step=tiny.stop_at(step))
    assert not info["finished"]
    assert Run.open(out).steps  # it loads as it stands
    shutil.copytree(out, tmp_path / "twin")
    assert resume(out)["finished"]
    assert outcome(out) == uninterrupted
    resume(tmp_path / "twin")
    assert outcome(tmp_path / "twin") == uninterrupted


def test_a_run_can_be_stopped_twice(tmp_path, uninterrupted):
    out = tmp_path / "run"
    tiny.run(out, tmp_path, on_step=tiny.stop_at(5))
    assert not resume(out, on_step=tiny.stop_at(13))["finished"]
    resume(out)
    assert outcome(out) == uninterrupted


def test_updates_made_again_stand_in_the_history_once(tmp_path, uninterrupted):
    """A harder end than a signal: what was written last is older than the history."""
    out = tmp_path / "run"
    tiny.run(out, tmp_path, on_step=tiny.stop_at(5))
    older = (out / "resume.safetensors").read_bytes()
    resume(out, on_step=tiny.stop_at(18))
    (out / "resume.safetensors").write_bytes(older)
    resume(out)
    assert outcome(out) == uninterrupted


def test_the_history_is_never_behind_what_a_resumed_run_starts_from(
    tmp_path, uninterrupted, monkeypatch
):
    """A kill may come between the two files; rows that are missing then are never made again."""
    out, behind = tmp_path / "run", []
    expected = [int(row["step"]) for row in uninterrupted[1]]
    save = recorder.save_progress

    def save_and_look(*args, step, **progress):
        save(*args, step=step, **progress)
        if step:
            there = [int(row["step"]) for row in outcome(out)[1]]
            behind.extend({s for s in expected if s < step} - set(there))

    monkeypatch.setattr(recorder, "save_progress", save_and_look)
    tiny.run(out, tmp_path, save_seconds=0.0)
    assert not behind


def test_a_finished_run_has_nothing_to_resume(tmp_path):
    tiny.run(tmp_path / "run", tmp_path)
    with pytest.raises(ModelError, match="finished"):
        resume(tmp_path / "run")


def test_another_corpus_is_refused(tmp_path):
    out = tmp_path / "run"
    tiny.run(out, tmp_path, on_step=tiny.stop_at(5))
    (tmp_path / "text.txt").write_text(tiny.text(seed=1))
    with pytest.raises(ModelError, match="corpus has changed"):
        resume(out)
    (tmp_path / "text.txt").write_text(tiny.text())
    assert resume(out)["finished"]


def test_damaged_progress_is_refused(tmp_path):
    out = tmp_path / "run"
    tiny.run(out, tmp_path, on_step=tiny.stop_at(5))
    path = out / "resume.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ModelError, match="cannot be resumed from"):
        resume(out)
    path.write_bytes(whole[:100])
    with pytest.raises(ModelError, match="cannot be resumed from"):
        resume(out)


def test_the_signal_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    tiny.run(tmp_path / "run", tmp_path, on_step=tiny.stop_at(2))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_run_that_loads_and_resumes(tmp_path, uninterrupted):
    """20 kills at random moments, through a server that has imported everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tiny_training"])
    rng = random.Random(0)
    out, kills, seconds = tmp_path / "run", 0, 0.5
    while kills < 20:
        fresh = not out.exists()
        target = tiny.run_saving_each_step if fresh else tiny.resume_saving_each_step
        process = context.Process(target=target, args=(out, tmp_path) if fresh else (out,))
        process.start()
        deadline = time.monotonic() + 60
        while fresh and not out.exists() and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, seconds))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        run = Run.open(out)
        for step in run.steps:
            run.weights(step)
        if run.info["finished"]:
            assert outcome(out) == uninterrupted
            shutil.rmtree(out)
            seconds /= 2  # it was too slow a hand
        else:
            load_file(out / "resume.safetensors")
    if out.exists():
        resume(out)
        assert outcome(out) == uninterrupted
        assert not list(out.rglob("*.tmp"))
