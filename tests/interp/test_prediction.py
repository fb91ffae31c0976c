"""Predictions equal the model's own, and what is drawn follows the published cuts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_hooked, random_ids
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from interp import InputError, continuation, next_token, token_losses
from interp.prediction import tempered
from model.generation import sample

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(scope="module")
def model():
    return random_hooked(23)


@pytest.mark.parametrize("batch", [1, 3])
def test_losses_are_the_models_own(model, batch):
    ids = random_ids(4, batch=batch)
    got = token_losses(model, ids)
    want = model(ids, return_type="loss", loss_per_token=True)
    torch.testing.assert_close(torch.tensor(got["loss"].to_numpy()[:, 1:]), want, **CLOSE)
    log_probs = model(ids).log_softmax(-1)[:, :-1]
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    torch.testing.assert_close(torch.tensor(got["entropy"].to_numpy()[:, 1:]), entropy, **CLOSE)
    order = log_probs.argsort(-1, descending=True)
    rank = (order == ids[:, 1:, None]).int().argmax(-1)
    np.testing.assert_array_equal(got["rank"].to_numpy()[:, 1:], rank)
    assert all(np.isnan(got[name].to_numpy()[:, 0]).all() for name in ("loss", "entropy", "rank"))


def test_the_expected_loss_is_the_mean_over_what_could_come(model):
    ids = random_ids(5)[:, :4]
    entropy = token_losses(model, torch.cat([ids, ids[:, :1]], 1))["entropy"][0, 4]
    each = [token_losses(model, torch.cat([ids, torch.tensor([[v]])], 1)) for v in range(11)]
    loss = np.array([float(one["loss"][0, 4]) for one in each])
    assert float(entropy) == pytest.approx((np.exp(-loss) * loss).sum(), abs=1e-10)


def test_one_prediction_is_the_models_own(model):
    ids = random_ids(6, batch=2)
    got = next_token(model, ids, pos=3)
    logits = model(ids)[:, 3]
    torch.testing.assert_close(torch.tensor(got["logit"].to_numpy()), logits, **CLOSE)
    for name in ("probability", "sampled"):
        torch.testing.assert_close(torch.tensor(got[name].to_numpy()), logits.softmax(-1), **CLOSE)
    assert got["tokens"].to_numpy().tolist() == list("abcdefghijk")
    assert got["kept"].to_numpy().tolist() == [11, 11]
    same = next_token(model, ids, pos=-4)
    np.testing.assert_array_equal(same["logit"], got["logit"])


rows = st.lists(st.floats(-8, 8), min_size=11, max_size=11, unique=True)


@given(
    rows,
    st.floats(0.05, 3),
    st.one_of(st.none(), st.integers(1, 14)),
    st.one_of(st.none(), st.floats(0.01, 0.99)),
)
def test_cuts_are_those_of_another_implementation(logits, temperature, top_k, top_p):
    given = torch.tensor([logits], dtype=torch.float64)
    want = TemperatureLogitsWarper(temperature)(None, given)
    if top_k is not None:
        want = TopKLogitsWarper(top_k)(None, want)
    if top_p is not None:
        want = TopPLogitsWarper(top_p)(None, want)
    got = tempered(given, temperature, top_k, top_p)
    torch.testing.assert_close(got, want.softmax(-1), **CLOSE)


def test_what_is_drawn_is_what_the_trained_model_would_draw():
    """The sampler of `model` knows nothing of this one."""
    logits = torch.randn(1, 11, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for settings in ({"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.6}, {"temperature": 0.0}):
        chances = tempered(
            logits, *({"temperature": 1.0, "top_k": None, "top_p": None} | settings).values()
        )
        drawn = sample(
            logits.expand(40_000, -1), generator=torch.Generator().manual_seed(3), **settings
        )
        share = torch.bincount(drawn, minlength=11) / len(drawn)
        assert (share[chances[0] == 0] == 0).all()
        torch.testing.assert_close(share.double(), chances[0], atol=0.012, rtol=0)


def test_ties_at_a_cut_keep_exactly_k():
    logits = torch.zeros(1, 11, dtype=torch.float64)
    assert tempered(logits, 1.0, 4, None)[0].tolist() == [0.25] * 4 + [0] * 7
    assert tempered(logits, 0.0, None, None)[0].tolist() == [1] + [0] * 10


def test_a_continuation_is_drawn_from_its_own_predictions(model):
    ids = random_ids(7, batch=2)[:, :3]
    got = continuation(model, ids, 4, temperature=0.8, top_k=5, seed=1)
    assert got["pos"].to_numpy().tolist() == [3, 4, 5, 6]
    text = ids
    for step in range(4):
        after = next_token(model, text, temperature=0.8, top_k=5)
        chosen = torch.tensor(got["id"].to_numpy()[:, [step]])
        drawn = torch.tensor(after["sampled"].to_numpy()).gather(-1, chosen)
        torch.testing.assert_close(
            torch.tensor(got["probability"].to_numpy()[:, [step]]), drawn, **CLOSE
        )
        assert (drawn > 0).all()
        text = torch.cat([text, chosen], dim=1)
    losses = token_losses(model, text)["loss"].to_numpy()[:, 3:]
    np.testing.assert_allclose(got["loss"], losses, atol=1e-10)
    tokens = got["tokens"].to_numpy()[0]
    assert list(tokens) == [chr(97 + i) for i in got["id"].to_numpy()[0]]


def test_a_seed_repeats_a_continuation_and_another_does_not(model):
    def drawn(seed):
        return continuation(model, "abc", 4, seed=seed)["id"].to_numpy().tolist()

    assert drawn(0) == drawn(0)
    assert len({str(drawn(seed)) for seed in range(6)}) > 1


def test_the_likeliest_path_needs_no_seed(model):
    paths = [continuation(model, "ab", 5, temperature=0.0, seed=seed)["id"] for seed in (0, 1)]
    np.testing.assert_array_equal(*paths)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m: next_token(m, "abc", pos=3),
        lambda m: next_token(m, "abc", temperature=-1.0),
        lambda m: next_token(m, "abc", temperature=float("nan")),
        lambda m: next_token(m, "abc", top_k=0),
        lambda m: next_token(m, "abc", top_p=0.0),
        lambda m: next_token(m, "abc", top_p=1.1),
        lambda m: continuation(m, "abc", 0),
        lambda m: continuation(m, "abc", 5),
        lambda m: continuation(m, "abcabca", 1),
        lambda m: token_losses(m, ""),
    ],
)
def test_bad_requests_are_refused(model, wrong):
    with pytest.raises(InputError):
        wrong(model)
