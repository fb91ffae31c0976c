"""What a training run is, beside what it learns: its files, its loss, its limits."""

from __future__ import annotations

import csv
import dataclasses
import errno
import subprocess
import sys

import pytest
import tiny_training as tiny
import torch
import torch.nn.functional as F

from model import files
from model.checkpoint import Run, load_gpt
from model.errors import ModelError
from model.evaluation import mean_loss, validation_loss
from model.gpt import GPT
from model.muon import Muon
from model.optimizers import make_optimizers, set_rates
from model.training import resume, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, its `run.json` and its corpus."""
    folder = tmp_path_factory.mktemp("trained")
    out = folder / "run"
    return out, tiny.run(out, folder, command="orrery train"), tiny.corpus(folder)


def rows(out):
    with (out / "history.csv").open() as file:
        return list(csv.DictReader(file))


def test_it_learns(trained):
    _, info, _ = trained
    assert info["val_loss"] < 0.8 * 2.4849  # ln 12


def test_a_run_holds_the_documented_files(trained):
    out, info, corpus = trained
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    snapshots = {f"snapshots/step-{step:08d}.safetensors" for step in (0, 1, 2, 4, 8, 16)}
    assert names == snapshots | {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "history.csv",
        "run.json",
    }
    assert info["finished"] is True
    assert info["command"] == "orrery train"
    assert info["data"]["sha256"] == corpus.sha256
    assert info["weights_sha256"] == Run.open(out).weights().sha256


def test_the_reported_loss_is_that_of_the_saved_weights_on_the_whole_split(trained):
    out, info, corpus = trained
    gpt = load_gpt(out, dtype=torch.float64)
    ids = torch.cat([x.flatten() for x, _ in corpus.validation(n_windows=9, n_ctx=7)])
    ids = ids[: corpus.n_val - 1]
    last = int(next(iter(corpus.validation(n_windows=10**6, n_ctx=7)))[1].flatten()[len(ids) - 1])
    targets = torch.cat([ids[1:], torch.tensor([last])])
    total = 0.0
    for start in range(0, len(ids), 7):
        window, follows = ids[start : start + 7], targets[start : start + 7]
        log_probs = F.log_softmax(gpt(window[None])[0], dim=-1)
        total -= float(log_probs[torch.arange(len(window)), follows].detach().sum())
    assert info["val_loss"] == pytest.approx(total / len(ids), abs=1e-6)


def test_the_history_has_the_documented_columns(trained):
    out, info, _ = trained
    history = rows(out)
    assert [int(row["step"]) for row in history] == list(range(tiny.STEPS + 1))
    assert [int(row["tokens"]) for row in history] == [42 * s for s in range(tiny.STEPS + 1)]
    assert float(history[-1]["val_loss"]) == info["val_loss"]
    assert history[0]["train_loss"] == history[3]["val_loss"] == history[3]["val_estimate"] == ""
    assert all(float(row["gradient_norm"]) > 0 for row in history[1:])


def test_the_first_update_is_gradient_clipping_muon_and_adamw(trained):
    out, _, corpus = trained
    gpt, recipe = load_gpt(out, 0).train(), tiny.recipe()
    x, y = corpus.batch(0, n_windows=6, n_ctx=7, seed=5)
    gpt.config = dataclasses.replace(gpt.config, dropout=0.0)
    config = tiny.config(dropout=0.0)
    plain = GPT(config)
    plain.load_state_dict(gpt.state_dict())
    loss = F.cross_entropy(plain(x).flatten(0, 1), y.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), recipe.clip_norm)
    optimizers = make_optimizers(plain, recipe)
    set_rates(optimizers, recipe.rate_factor(0))
    for optimizer in optimizers:
        optimizer.step()
    again = out.parent / "plain"
    train(config, corpus, tiny.recipe(), again)
    for name, parameter in load_gpt(again, 1).named_parameters():
        torch.testing.assert_close(parameter, dict(plain.named_parameters())[name])


def test_every_parameter_has_one_optimizer():
    for changes in ({}, {"tied_embeddings": True}, {"d_mlp": 0}, {"bias": False}):
        gpt = GPT(tiny.config(**changes))
        muon, adamw = make_optimizers(gpt, tiny.recipe())
        owned = [p for o in (muon, adamw) for group in o.param_groups for p in group["params"]]
        assert len(owned) == len({id(p) for p in owned})
        assert {id(p) for p in owned} == {id(p) for p in gpt.parameters()}
        names = {id(p): name for name, p in gpt.named_parameters()}
        hidden = {names[id(p)] for group in muon.param_groups for p in group["params"]}
        assert hidden == {n for n, p in gpt.named_parameters() if "blocks" in n and p.ndim == 2}
        stacked = [g for g in muon.param_groups if g["n_stacked"] == 3]
        in_threes = {names[id(p)] for group in stacked for p in group["params"]}
        assert in_threes == {name for name in hidden if name.endswith("qkv_proj.weight")} != set()
        assert isinstance(muon, Muon)


def test_parts_of_a_batch_give_the_update_of_the_whole(tmp_path):
    losses = {}
    for parts in (1, 3):
        out = tmp_path / str(parts)
        corpus, config = tiny.corpus(tmp_path), tiny.config(dropout=0.0)
        train(config, corpus, tiny.recipe(accumulate=parts), out)
        losses[parts] = [float(row["train_loss"]) for row in rows(out)[1:]]
    assert losses[3] == pytest.approx(losses[1], abs=1e-5)


def test_half_snapshots_keep_the_final_weights_whole(tmp_path):
    out = tmp_path / "run"
    recipe = tiny.recipe(half_snapshots=True, snapshot_at=(5,), snapshot_from=8)
    train(tiny.config(), tiny.corpus(tmp_path), recipe, out)
    run = Run.open(out)
    assert run.steps == [0, 5, 8, 16, 23]
    assert {t.dtype for t in run.weights(5).tensors.values()} == {torch.float16}
    assert {t.dtype for t in run.weights().tensors.values()} == {torch.float32}


def test_evaluation_ignores_dropout_and_leaves_the_mode(tmp_path):
    gpt, corpus = GPT(tiny.config(dropout=0.5)).train(), tiny.corpus(tmp_path)
    assert validation_loss(gpt, corpus) == validation_loss(gpt, corpus)
    assert gpt.training
    one_by_one = mean_loss(gpt, corpus.validation(n_windows=1, n_ctx=7))
    assert one_by_one == pytest.approx(validation_loss(gpt, corpus), abs=1e-6)


def test_nothing_is_overwritten(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(ModelError, match="exists"):
        tiny.run(out, tmp_path)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("config", "recipe", "names"),
    [
        ({"d_vocab": 5}, {}, "d_vocab=5"),
        ({"n_ctx": 6000}, {}, "4500 tokens .* n_ctx=6000"),
    ],
)
def test_what_does_not_fit_together_is_named_before_anything_is_written(
    tmp_path, config, recipe, names
):
    with pytest.raises(ModelError, match=names):
        train(tiny.config(**config), tiny.corpus(tmp_path), tiny.recipe(**recipe), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_divergence_stops_and_names_step_rate_and_last_good_snapshot(tmp_path, monkeypatch):
    out = tmp_path / "run"
    forward, calls = GPT.forward, [0]

    def fails_later(self, ids, cache=None):
        if self.training:
            calls[0] += 1
        return forward(self, ids, cache) * (float("nan") if calls[0] > 6 else 1.0)

    monkeypatch.setattr(GPT, "forward", fails_later)
    with pytest.raises(
        ModelError, match=r"loss is not finite at step 6.*rate.*0\.\d+.*step-00000004"
    ):
        tiny.run(out, tmp_path)
    monkeypatch.undo()
    run = Run.open(out)
    assert run.steps == [0, 1, 2, 4]
    assert all(t.isfinite().all() for step in run.steps for t in run.weights(step).tensors.values())


def test_a_full_disk_leaves_the_older_files_whole(tmp_path, monkeypatch):
    out, room = tmp_path / "run", [3]
    save = files.os.fsync

    def full(handle):
        if out.exists():
            room[0] -= 1
            if room[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
        save(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ModelError, match="No space left on device"):
        tiny.run(out, tmp_path)
    monkeypatch.undo()
    assert not list(out.rglob("*.tmp"))
    run = Run.open(out)
    for step in run.steps:
        run.weights(step)
    assert resume(out)["finished"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        tiny.run(tmp_path / "file" / "run", tmp_path)


def test_training_does_not_load_transformer_lens():
    code = "import sys, model, model.training; sys.exit('transformer_lens' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_tracker_that_is_not_there_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"tensorboard, which is not installed.*pip install"):
        tiny.run(tmp_path / "run", tmp_path, tracker="tensorboard")
    assert not (tmp_path / "run").exists()


def test_each_step_drops_other_units(tmp_path):
    seeds: list[int] = []
    tiny.run(tmp_path / "run", tmp_path, on_step=lambda *_: seeds.append(torch.initial_seed()))
    assert len(set(seeds)) == tiny.STEPS
