"""Rows that pad an embedding to a round size have logits, and are never shown as predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_models import letters_tokenizer, random_hooked

from interp import continuation, logit_lens, next_token
from interp.inputs import without_padding


@pytest.fixture(scope="module")
def padded():
    """Eleven letters, fourteen rows, of which the model likes those without a letter best."""
    model = random_hooked(29, d_vocab=14)
    model.tokenizer = letters_tokenizer(11)
    with torch.no_grad():
        model.unembed.b_U[11:] += 50
    return model


def test_padding_is_what_the_tokenizer_does_not_name(padded):
    scores = torch.randn(3, 14, generator=torch.Generator().manual_seed(0))
    left = without_padding(padded, scores)
    assert torch.equal(left[:, :11], scores[:, :11])
    assert (left[:, 11:] == -torch.inf).all()


def test_a_model_without_a_tokenizer_shows_all_its_ids(padded):
    scores = torch.zeros(14)
    bare = random_hooked(29, d_vocab=14)
    bare.tokenizer = None
    assert torch.equal(without_padding(bare, scores), scores)


def test_no_view_of_the_next_token_shows_padding(padded):
    assert (padded("abc")[0, -1].argmax() >= 11).item()
    lens = logit_lens(padded, "abcd", top=3)
    assert int(lens["top_ids"].max()) < 11
    assert int(lens["followed"].max()) < 11
    prediction = next_token(padded, "abc")
    assert "".join(prediction["tokens"].to_numpy()) == "abcdefghijk"
    own = padded("abc")[0, -1].softmax(-1)[:11]
    np.testing.assert_allclose(prediction["probability"][0], own, rtol=1e-10)
    np.testing.assert_allclose(prediction["sampled"][0], own / own.sum(), rtol=1e-10)
    drawn = continuation(padded, "ab", 5, temperature=3.0)
    assert int(drawn["id"].max()) < 11
