"""Metrics equal PyTorch's own losses, and fractions are undefined where they say nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from random_models import random_hooked

from interp.errors import InputError
from interp.fractions import recovered
from interp.inputs import contrast
from interp.metrics import (
    Runs,
    as_metric,
    cross_entropy,
    kl_divergence,
    log_prob,
    logit_difference,
    probability,
    rank,
)
from interp.patching import activation_patching

GENERATOR = torch.Generator().manual_seed(0)


def noise(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


BASE, SOURCE, EDITED = noise(3, 4, 11), noise(3, 4, 11), noise(5, 4, 11)
BATCH = torch.tensor([2, 0, 1, 1, 2])
NEXT = torch.tensor([[1, 2, 3, -1], [4, 5, 6, -1], [7, 8, 9, -1]])
RUNS = Runs(NEXT, BASE, SOURCE)
LAST = Runs(NEXT[:, -1:], BASE[:, -1:], SOURCE[:, -1:])


@pytest.fixture(scope="module")
def model():
    return random_hooked(70)


def last(metric):
    return metric(EDITED[:, -1:], BATCH, LAST)


def test_target_metrics(model):
    log_probs, targets = EDITED[:, -1].log_softmax(-1), ["b", "d", "k"]
    ids = torch.tensor([1, 3, 10])[BATCH]
    rows = torch.arange(5)
    picked = log_probs[rows, ids]
    torch.testing.assert_close(last(log_prob(model, targets)), picked)
    torch.testing.assert_close(last(probability(model, targets)), picked.exp())
    torch.testing.assert_close(
        last(logit_difference(model, targets, "c")), picked - log_probs[:, 2]
    )
    order = EDITED[:, -1].argsort(descending=True)
    expected = (order == ids[:, None]).double().argmax(-1).double()
    torch.testing.assert_close(last(rank(model, targets)), expected)


@pytest.mark.parametrize("reference", ["source", "base"])
def test_kl_is_torchs_both_ways(reference):
    of = {"source": SOURCE, "base": BASE}[reference][BATCH].log_softmax(-1)
    mine = EDITED.log_softmax(-1)
    forth = F.kl_div(mine, of, log_target=True, reduction="none").sum(-1)
    back = F.kl_div(of, mine, log_target=True, reduction="none").sum(-1)
    torch.testing.assert_close(last(kl_divergence(reference)), forth[:, -1])
    every = kl_divergence(reference, direction="to reference", pos=None)
    torch.testing.assert_close(every(EDITED, BATCH, RUNS), back.mean(-1))


def test_cross_entropy_is_torchs():
    expected = [F.cross_entropy(EDITED[row, :3], NEXT[b, :3]) for row, b in enumerate(BATCH)]
    torch.testing.assert_close(cross_entropy()(EDITED, BATCH, RUNS), torch.stack(expected))
    first = Runs(NEXT[:, :1], BASE[:, :1])
    torch.testing.assert_close(
        cross_entropy(pos=0)(EDITED[:, :1], BATCH, first),
        F.cross_entropy(EDITED[:, 0], NEXT[BATCH, 0], reduction="none"),
    )


def test_any_function_of_the_last_logits():
    metric = as_metric(lambda logits: logits.amax(-1))
    torch.testing.assert_close(last(metric), EDITED[:, -1].amax(-1))


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        (lambda logits: logits, r"returned \(\d+, 11\) for \d+ runs, but one number a run"),
        (lambda logits: logits.mean(), r"returned \(\) for"),
        (lambda logits: 3.0, "returned float for"),
    ],
)
def test_a_metric_of_the_wrong_shape_is_refused(model, metric, sentence):
    pair = contrast(model, "abcdefg", "abhdefg")
    with pytest.raises(InputError, match=sentence):
        activation_patching(model, pair, metric, "z")


def test_wrong_metrics_are_refused(model):
    with pytest.raises(InputError, match="Character 'x' at position 0"):
        log_prob(model, "xy")
    with pytest.raises(InputError, match="Token id 11 at position 0"):
        log_prob(model, 11)
    with pytest.raises(InputError, match="reference='clean'"):
        kl_divergence("clean")
    with pytest.raises(InputError, match="no token follows it"):
        last(cross_entropy(pos=-1))
    with pytest.raises(InputError, match="2 target tokens for more prompts"):
        last(log_prob(model, ["a", "b"]))


# --- fractions -----------------------------------------------------------------------------------


def test_fraction_is_0_at_base_1_at_source_and_free_outside():
    base, source = torch.tensor([1.0, -2.0]).double(), torch.tensor([3.0, 2.0]).double()
    edited = torch.stack([base, source, 2 * source - base], dim=1)
    shares = recovered(edited, base, source, 0.1)
    expected = np.array([[0.0, 1.0, 2.0]] * 2)
    np.testing.assert_allclose(shares.each, expected)
    np.testing.assert_allclose(shares.pooled, expected[0])
    assert shares.undefined == shares.pooled_undefined == ""


def test_a_small_difference_is_undefined_with_a_reason_and_never_infinite():
    base = torch.tensor([1.0, 1.0, 1.0]).double()
    source = torch.tensor([2.0, 1.05, 1.0]).double()
    shares = recovered(noise(3, 4), base, source, 0.1)
    assert np.isfinite(shares.each[0]).all()
    assert np.isnan(shares.each[1:]).all()
    assert "2 of 3 pairs: in pair 1 by 0.05, and at least 0.1" in shares.undefined
    assert np.isfinite(shares.pooled).all()


def test_a_pair_that_is_not_finite_spoils_no_other():
    base = torch.tensor([1.0, 1.0, float("inf"), float("nan")]).double()
    source = torch.tensor([2.0, 3.0, float("inf"), 1.0]).double()
    shares = recovered(noise(4, 2), base, source, 0.1)
    assert np.isfinite(shares.each[:2]).all()
    assert np.isnan(shares.each[2:]).all()
    assert np.isfinite(shares.pooled).all()
    assert "2 of 4 pairs: in pair 2 by nan, and at least" in shares.undefined


def test_pooled_is_a_ratio_of_sums_not_a_mean_of_ratios():
    base, source = torch.zeros(2).double(), torch.tensor([1.0, 3.0]).double()
    edited = torch.tensor([1.0, 0.0]).double()
    shares = recovered(edited, base, source, 0.1)
    assert float(shares.pooled) == pytest.approx(1 / 4)
    assert float(shares.each.mean()) == pytest.approx(1 / 2)


def test_differences_that_cancel_have_no_pooled_fraction():
    base = torch.zeros(6).double()
    source = torch.tensor([1.0, -1, 2, -2, 1, -1]).double()
    shares = recovered(noise(6, 2), base, source, 0.1)
    assert np.isfinite(shares.each).all()
    assert np.isnan(shares.pooled).all()
    assert "opposite sign cancel" in shares.pooled_undefined


def test_kl_fraction_is_one_minus_the_ratio(model):
    pair = contrast(model, "abcdefg", "hijkabc")
    metric = dataclasses.replace(kl_divergence("source"), floor=0.0)
    result = activation_patching(model, pair, metric, "resid_pre")
    expected = 1 - result.raw / result.base
    np.testing.assert_allclose(result.fraction, expected, rtol=0, atol=1e-12)
    assert float(result.source[0]) == 0
