"""A run as a series of models: every step is the model that `load` gives, damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from random_gpt import random_gpt
from tiny_run import STEPS, write_run

from model import ModelError, Snapshots, load, save_weights
from model.checkpoint import WEIGHTS, snapshot_path
from model.recipe import Recipe


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "tiny")


def finish(run: Path, *, snapshot_at: tuple[int, ...] = ()) -> None:
    """Give the run a recipe that would have kept snapshots 0, 8, 16 and `snapshot_at`."""
    recipe = Recipe(steps=32, snapshot_from=8, snapshot_at=snapshot_at)
    (run / "run.json").write_text(json.dumps({"finished": True, "recipe": recipe.to_dict()}))


@pytest.mark.parametrize("order", [STEPS, STEPS[::-1]])
def test_each_step_is_the_model_that_load_gives(run: Path, order) -> None:
    snapshots, ids = Snapshots(run), torch.tensor([[1, 2, 3, 4]])
    assert snapshots.steps == STEPS
    models = []
    for step in order:
        model, alone = snapshots.load(step), load(run, step)
        models.append(model)
        assert model.checkpoint_hash == alone.checkpoint_hash == snapshots.checkpoint(step)
        assert model.cfg.checkpoint_value == step
        assert torch.equal(model(ids), alone(ids))
        for name, value in alone.state_dict().items():
            assert torch.equal(model.state_dict()[name], value), name
        assert not any(p.requires_grad for p in model.parameters())
    assert models[0] is models[1] is models[2]


def test_what_was_read_of_an_earlier_step_stays(run: Path) -> None:
    snapshots = Snapshots(run)
    before = snapshots.load(0).embed.W_E
    kept = before.clone()
    snapshots.load(8)
    assert torch.equal(before, kept)


def test_a_step_that_the_recipe_would_have_kept_is_expected(run: Path) -> None:
    finish(run, snapshot_at=(5,))
    snapshots = Snapshots(run)
    assert snapshots.steps == (0, 5, 8, 16, 32)
    with pytest.raises(ModelError, match="no step 5"):
        snapshots.checkpoint(5)


@pytest.mark.parametrize("place", [100, -100])
def test_damage_is_found_when_a_step_is_loaded(run: Path, place: int) -> None:
    path = snapshot_path(run, 8)
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)
    snapshots = Snapshots(run)
    with pytest.raises(ModelError, match="step-00000008"):
        snapshots.load(8)
    assert snapshots.load(0).cfg.checkpoint_value == 0


def test_a_damaged_final_file_leaves_the_snapshots_readable(run: Path) -> None:
    finish(run)
    final = run / WEIGHTS
    final.write_bytes(final.read_bytes()[:1000])
    snapshots = Snapshots(run)
    assert snapshots.steps == (0, 8, 16, 32)
    assert snapshots.load(8).cfg.checkpoint_value == 8
    with pytest.raises(ModelError, match=WEIGHTS):
        snapshots.load(32)


def test_weights_of_another_model_are_refused(run: Path) -> None:
    save_weights(snapshot_path(run, 8), random_gpt(n_ctx=24, d_mlp=29).float(), step=8)
    with pytest.raises(ModelError, match="says"):
        Snapshots(run).load(8)


def test_what_the_history_says(run: Path) -> None:
    assert Snapshots(run).recorded(8) == {}
    (run / "history.csv").write_text(
        "step,tokens,seconds,train_loss,val_loss,val_estimate\n0,0,0.1,,4.5,4.4\n8,640,1,3.25,,3.5\n"
    )
    snapshots = Snapshots(run)
    assert snapshots.recorded(0) == {"tokens_seen": 0.0, "val_loss": 4.4}
    assert snapshots.recorded(8) == {"tokens_seen": 640.0, "train_loss": 3.25, "val_loss": 3.5}
    assert snapshots.recorded(32) == {}


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        Snapshots(tmp_path)
