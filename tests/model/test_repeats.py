"""The induction task, and the model that solves it."""

from __future__ import annotations

import pytest
import torch

from model.evaluation import validation_loss
from model.gpt import GPT, IGNORE_INDEX
from model.repeats import INDUCTION, RepeatedTokens


def test_windows_repeat_and_only_the_repetition_is_scored():
    x, y = RepeatedTokens().batch(3, n_windows=50, n_ctx=31, seed=1)
    periods = set()
    for ids, targets in zip(torch.cat([x, y[:, -1:]], dim=1).tolist(), y.tolist(), strict=True):
        period = next(p for p in range(1, 32) if ids[p] == ids[0])
        periods.add(period)
        assert len(set(ids[:period])) == period  # drawn without replacement
        assert all(ids[i] == ids[i % period] for i in range(32))
        assert targets == [ids[i + 1] if i + 1 >= period else IGNORE_INDEX for i in range(31)]
    assert periods == set(range(7, 16))


def test_a_batch_depends_on_seed_and_step_alone_and_validation_is_apart():
    task = RepeatedTokens()
    draw = lambda step, seed: task.batch(step, n_windows=20, n_ctx=31, seed=seed)[0]  # noqa: E731
    assert torch.equal(draw(4, 1), draw(4, 1))
    assert not torch.equal(draw(4, 1), draw(4, 2))
    validation = torch.cat([x for x, _ in task.validation(n_windows=100, n_ctx=31)])
    assert validation.shape == (512, 31)
    seen = {tuple(row) for step in range(8) for row in draw(step, 1).tolist()}
    assert not seen & {tuple(row) for row in validation.tolist()}


def test_an_untrained_model_scores_about_chance():
    torch.manual_seed(0)
    assert validation_loss(GPT(INDUCTION), RepeatedTokens()) == pytest.approx(3.4657, abs=0.35)
