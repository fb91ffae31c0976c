"""The model against its text's statistics: each number recomputed another way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_models import random_hooked

from interp import (
    InputError,
    count_ngrams,
    direct_path,
    direct_path_against_bigram,
    loss_by_position,
    ngram_comparison,
    repeated_block_loss,
)
from interp.corpus import windows
from interp.tally import Tally, tally
from interp.text_statistics import in_context_score

TEXT = torch.randint(0, 11, (300,), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def model():
    return random_hooked(13)


@pytest.fixture(scope="module")
def ngrams():
    return count_ngrams(TEXT[:150], 11, order=3)


def test_comparison_is_what_torch_says_of_both_models(model, ngrams):
    got = ngram_comparison(model, ngrams, TEXT[150:], batch_size=4)
    rows = TEXT[150:297].view(21, 7)
    q = torch.distributions.Categorical(logits=model(rows)[:, :-1])
    for order in (1, 2, 3):
        p = torch.distributions.Categorical(probs=ngrams.probabilities(rows, order)[:, :-1])
        here = got.sel(order=order)
        kl = torch.distributions.kl_divergence
        assert float(here["kl_model_ngram"]) == pytest.approx(float(kl(q, p).mean()), abs=1e-10)
        assert float(here["kl_ngram_model"]) == pytest.approx(float(kl(p, q).mean()), abs=1e-10)
        loss = -float(p.log_prob(rows[:, 1:]).mean())
        assert float(here["cross_entropy"]) == pytest.approx(loss, abs=1e-10)
        same = (p.probs.argmax(-1) == q.probs.argmax(-1)).double().mean()
        assert float(here["top1_agreement"]) == pytest.approx(float(same))
        own = -float(q.log_prob(rows[:, 1:]).mean())
        assert float(got["model_cross_entropy"]) == pytest.approx(own, abs=1e-10)
        assert float(here["gap"]) == pytest.approx(loss - own, abs=1e-10)
    assert got.attrs["settings"] == {"windows": 21, "length": 7}
    assert (got["gap_low"] < got["gap"]).all()
    assert (got["gap"] < got["gap_high"]).all()


def test_a_model_that_is_the_unigram_is_nearest_to_the_unigram(ngrams):
    model = random_hooked(13)
    model.unembed.W_U.data.zero_()
    model.unembed.b_U.data = ngrams.probabilities(torch.zeros(1, 1, dtype=torch.long), 1)[
        0, 0
    ].log()
    got = ngram_comparison(model, ngrams, TEXT)
    assert float(got["kl_model_ngram"].sel(order=1)) == pytest.approx(0, abs=1e-12)
    assert float(got["kl_ngram_model"].sel(order=1)) == pytest.approx(0, abs=1e-12)
    assert float(got["top1_agreement"].sel(order=1)) == 1
    assert float(got["gap"].sel(order=1)) == pytest.approx(0, abs=1e-12)
    assert float(got["kl_model_ngram"].sel(order=2)) > 0.01


@pytest.mark.parametrize("batch_size", [5, 64])
def test_loss_by_position_is_the_models_own_loss(model, batch_size):
    got = loss_by_position(model, TEXT, batch_size=batch_size)
    rows = TEXT[:294].view(42, 7)
    want = model(rows, return_type="loss", loss_per_token=True).mean(0)
    np.testing.assert_allclose(got["loss"], want, rtol=1e-10, atol=1e-10)
    assert np.isnan(got["in_context"])


def test_text_and_ids_and_windows_are_one_corpus(model):
    letters = "".join(chr(97 + i) for i in TEXT[:100].tolist())
    rows = TEXT[:98].view(14, 7)
    texts = [letters[7 * i : 7 * i + 7] for i in range(14)]
    want = loss_by_position(model, letters)["loss"].to_numpy()
    for corpus in (TEXT[:100], TEXT[:100].tolist(), rows, texts, rows.numpy().astype(np.uint16)):
        np.testing.assert_array_equal(loss_by_position(model, corpus)["loss"], want)


def test_the_in_context_score_is_zero_over_all_turns_of_the_positions():
    losses = torch.randn(1, 29, dtype=torch.double, generator=torch.Generator().manual_seed(3))
    turned = torch.cat([losses.roll(shift, 1) for shift in range(29)])
    assert abs(float(in_context_score(turned).mean())) < 1e-12
    falling = torch.arange(29.0, 0, -1, dtype=torch.double)[None]
    assert float(in_context_score(falling)) == pytest.approx(-(24.5 - 11.5))
    assert in_context_score(losses[:, :23]).isnan().all()


def test_blocks_read_twice_are_compared_place_by_place(model):
    got = repeated_block_loss(model, block=3, n_blocks=5, seed=2)
    loss = got["loss"].to_numpy()
    assert loss.shape == (5,)
    want = loss[[3, 4]].mean() - loss[[0, 1]].mean()
    assert float(got["second_minus_first"]) == pytest.approx(want, abs=1e-10)


def test_the_direct_path_of_a_bigram_model_is_its_bigram(ngrams):
    model = random_hooked(13, d_model=12, d_head=4, normalization_type=None, attn_only=True)
    bigram = ngrams.probabilities(torch.arange(11)[:, None], 2)[:, 0].log()
    model.embed.W_E.data = torch.eye(11, 12, dtype=torch.double)
    model.unembed.W_U.data = torch.cat([bigram, bigram[:1]])
    model.unembed.b_U.data.zero_()
    got = direct_path_against_bigram(model, ngrams)
    assert float(abs(got["kl"]).max()) < 1e-10
    assert float(got["mean_kl_unigram"]) > 0.01
    assert float(got["share"].sum()) == pytest.approx(1)
    np.testing.assert_allclose(np.exp(direct_path(model)), bigram.exp(), atol=1e-12)


def test_tallies_add_up_and_cover_the_truth():
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(400, 3, generator=generator, dtype=torch.double)
    batches = [tally(values[i : i + 50], i) for i in range(0, 400, 50)]
    whole = batches[0]
    for part in batches[1:]:
        whole = whole + part
    torch.testing.assert_close(whole.mean, values.mean(0))
    low, high = whole.interval()
    # The percentile interval of a mean is about 1.96 standard errors either way.
    half = 1.96 * values.std(0) / 400**0.5
    assert ((high - low) / 2 / half - 1).abs().max() < 0.25
    covered = 0
    for seed in range(60):
        sample = torch.randn(60, 1, generator=torch.Generator().manual_seed(seed)).double()
        low, high = tally(sample, seed).interval()
        covered += int(low <= 0 <= high)
    assert 51 <= covered <= 60
    assert isinstance(tally(values[:1], 0), Tally)
    assert tally(values[:1], 0).interval().isnan().all()


def test_a_corpus_that_cannot_be_read_is_refused(model, ngrams):
    for wrong in (
        lambda: loss_by_position(model, TEXT[:6]),
        lambda: loss_by_position(model, TEXT, length=8),
        lambda: loss_by_position(model, TEXT, length=1),
        lambda: loss_by_position(model, TEXT[:10].view(10, 1)),
        lambda: loss_by_position(model, TEXT[:14].view(2, 7), length=3),
        lambda: loss_by_position(model, TEXT, batch_size=0),
        lambda: loss_by_position(model, "abc?abcabc"),
        lambda: loss_by_position(model, TEXT + 1),
        lambda: loss_by_position(model, TEXT.double()),
        lambda: loss_by_position(model, np.zeros(0, dtype=np.int64)),
        lambda: windows(model, TEXT, at_most=0),
        lambda: ngram_comparison(model, count_ngrams(TEXT % 5, 5), TEXT),
        lambda: direct_path_against_bigram(model, count_ngrams(TEXT, 11, order=1)),
        lambda: repeated_block_loss(model, block=4),
        lambda: repeated_block_loss(model, n_blocks=1),
    ):
        with pytest.raises(InputError):
            wrong()


def test_windows_are_spread_over_the_corpus(model):
    rows = windows(model, TEXT, at_most=3).rows
    assert rows.shape == (3, 7)
    np.testing.assert_array_equal(rows[0], TEXT[:7])
    np.testing.assert_array_equal(rows[-1], TEXT[287:294])
    assert len(windows(model, TEXT, at_most=99)) == 42


def test_the_interval_is_that_of_a_mean():
    """Over many quantities the bootstrap's bounds lie, on average, where theory puts them."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(500, 300, generator=generator, dtype=torch.double) + 2
    counted = tally(values, 0)
    torch.testing.assert_close(counted.mean, values.mean(0))
    reach = (counted.interval() - counted.mean) * 500**0.5 / values.std(0)
    assert reach.mean(1).tolist() == pytest.approx([-1.96, 1.96], rel=0.03)
    narrow = (counted.interval(0.5) - counted.mean) * 500**0.5 / values.std(0)
    assert narrow.mean(1).tolist() == pytest.approx([-0.674, 0.674], rel=0.06)
