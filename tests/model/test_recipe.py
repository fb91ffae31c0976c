from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import ModelError
from model.recipe import Recipe


def test_snapshots_follow_the_grid():
    steps = sorted(Recipe(steps=2900).snapshot_steps)
    assert steps[:12] == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 724]
    assert steps[12:] == [1024, 1448, 2048, 2896]


def test_the_final_step_is_no_snapshot_for_its_weights_are_the_models():
    assert sorted(Recipe(steps=4, snapshot_at=(3, 4)).snapshot_steps) == [0, 1, 2, 3]


def test_the_grid_can_begin_later():
    assert sorted(Recipe(steps=70, snapshot_from=10).snapshot_steps) == [0, 16, 32, 64]


@given(st.integers(1, 5000), st.integers(0, 300), st.floats(0.1, 3))
def test_the_rate_rises_then_falls_to_nothing(steps, warmup, power):
    recipe = Recipe(steps=steps, warmup_steps=warmup, decay_power=power)
    factors = [recipe.rate_factor(step) for step in range(steps + 1)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert factors[-1] == 0
    after = factors[min(warmup, steps) :]
    assert all(a >= b for a, b in itertools.pairwise(after))
    if warmup:
        assert factors[0] == pytest.approx(1 / warmup)


@given(st.integers(1, 5000))
def test_the_history_has_about_a_hundred_rows_and_both_ends(steps):
    recipe = Recipe(steps=steps)
    assert {0, steps} <= recipe.row_steps
    assert recipe.snapshot_steps <= recipe.row_steps
    assert len(recipe.row_steps) <= 230
    assert max(recipe.row_steps) == steps


def test_a_recipe_comes_back_from_json():
    recipe = Recipe(steps=7, betas=(0.8, 0.9), snapshot_at=(3,))
    assert Recipe.from_dict(recipe.to_dict()) == recipe


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"steps": 0}, "steps=0"),
        ({"batch_size": 5, "accumulate": 2}, "accumulate=2"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"decay_power": 0.0}, "decay_power=0.0"),
        ({"precision": "fp8"}, "bf16"),
        ({"snapshot_at": (8,)}, "snapshot_at=8"),
        ({"betas": (0.9, 1.0)}, "betas"),
    ],
)
def test_a_setting_outside_its_range_is_named(changes, names):
    with pytest.raises(ModelError, match=names):
        Recipe(**({"steps": 7} | changes))
