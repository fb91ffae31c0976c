"""Ablations equal the same ablation made with TransformerLens' hooks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hook_oracle import logits_with_hooks
from random_models import random_hooked

from interp.ablation import ablation
from interp.errors import InputError
from interp.metrics import cross_entropy, kl_divergence, logit_difference
from interp.sites import Site

PROMPTS = ["abcdefg", "kbcdebc"]
REFERENCE = ["cdkabca", "gfedcba", "bbbacdh"]


@pytest.fixture(scope="module")
def model():
    return random_hooked(20)


def by_hooks(model, value):
    """Logit differences [batch, layer, head] with each head's z replaced by `value(cache)`."""
    ids = torch.stack([model.to_tokens(p, prepend_bos=False)[0] for p in PROMPTS])
    out = torch.zeros(2, 2, 3, dtype=torch.float64)
    for layer in range(2):
        for head in range(3):
            site = Site("z", layer, head=head)
            logits = logits_with_hooks(model, ids, {site: value(site)})[:, -1]
            out[:, layer, head] = logits[:, 0] - logits[:, 1]
    return out.numpy()


def reference_cache(model):
    ids = torch.stack([model.to_tokens(p, prepend_bos=False)[0] for p in REFERENCE])
    return model.run_with_cache(ids)[1]


def test_mean_of_each_position(model):
    cache = reference_cache(model)
    expected = by_hooks(model, lambda site: cache[site.hook_name][:, :, site.head].mean(0))
    ours = ablation(model, PROMPTS, logit_difference(model, "a", "b"), "z", reference=REFERENCE)
    np.testing.assert_allclose(ours.raw, expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.change, ours.raw - ours.base, rtol=0, atol=1e-12)


def test_mean_over_positions(model):
    cache = reference_cache(model)
    expected = by_hooks(model, lambda site: cache[site.hook_name][:, :, site.head].mean((0, 1)))
    ours = ablation(
        model,
        PROMPTS,
        logit_difference(model, "a", "b"),
        "z",
        reference=REFERENCE,
        each_position=False,
    )
    np.testing.assert_allclose(ours.raw, expected, rtol=0, atol=1e-10)


def test_zero_is_warned_about(model):
    expected = by_hooks(model, lambda site: 0.0)
    with pytest.warns(UserWarning, match="Zero ablation also removes"):
        ours = ablation(model, PROMPTS, logit_difference(model, "a", "b"), "z", by="zero")
    np.testing.assert_allclose(ours.raw, expected, rtol=0, atol=1e-10)


def test_resample_is_the_value_of_one_reference_prompt(model):
    cache = reference_cache(model)
    candidates = np.stack(
        [
            by_hooks(model, lambda site, i=i: cache[site.hook_name][i, :, site.head])
            for i in range(3)
        ]
    )
    ours = ablation(
        model,
        PROMPTS,
        logit_difference(model, "a", "b"),
        "z",
        by="resample",
        reference=REFERENCE,
        seed=3,
    )
    distance = np.abs(candidates - ours.raw.to_numpy()).max(axis=(2, 3))
    assert (distance.min(axis=0) < 1e-10).all()
    again = ablation(
        model,
        PROMPTS,
        logit_difference(model, "a", "b"),
        "z",
        by="resample",
        reference=REFERENCE,
        seed=3,
    )
    np.testing.assert_array_equal(ours.raw, again.raw)


def test_a_head_that_writes_nothing_does_not_matter():
    model = random_hooked(21)
    model.blocks[1].attn.W_O[2] = 0
    loss = ablation(model, PROMPTS, cross_entropy(), "z", reference=REFERENCE)
    assert np.abs(loss.change[:, 1, 2]).max() < 1e-12
    assert np.abs(loss.change[:, 1, 1]).min() > 1e-4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "came without reference prompts"),
        ({"by": "median"}, "by 'median' was asked for"),
        ({"reference": "abc"}, "have 3 tokens and the input 7"),
        ({"by": "resample", "reference": "abc"}, "have 3 tokens and the input 7"),
        ({"by": "resample", "reference": PROMPTS[:1]}, "Prompt 0 equals every reference prompt"),
        ({"by": "zero", "kinds": "ln1_scale"}, "it is what LayerNorm divides by"),
        (
            {"reference": REFERENCE, "each_position": False, "kinds": "pattern"},
            "was to be averaged over positions",
        ),
        ({"reference": REFERENCE, "metric": kl_divergence()}, "an ablation has none"),
    ],
)
def test_wrong_calls_are_refused(model, options, sentence):
    call = {"kinds": "z", "metric": logit_difference(model, "a", "b")} | options
    with pytest.raises(InputError, match=sentence):
        ablation(model, PROMPTS, call.pop("metric"), call.pop("kinds"), **call)
