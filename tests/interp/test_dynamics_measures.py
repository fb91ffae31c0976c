"""The default set: each number against the model's own forward pass or a call made apart."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from random_models import random_hooked
from random_series import RandomSeries

import interp
from interp.dynamics import edges as edges_module
from interp.dynamics.edges import edge_overlap, edge_strengths
from interp.dynamics.fingerprint import fingerprint
from interp.inputs import Contrast
from interp.metrics import log_prob

STEPS = (0, 2, 8)
rng = np.random.default_rng(7)
HELD_OUT = rng.integers(0, 11, (13, 7))
TRAIN = rng.integers(0, 11, (17, 7))
NGRAMS = interp.count_ngrams(torch.from_numpy(rng.integers(0, 11, 300)), 11, order=2)


@pytest.fixture(scope="module")
def series() -> RandomSeries:
    return RandomSeries(STEPS)


@pytest.fixture(scope="module")
def material(series):
    return interp.training_material(
        series.alone(8), HELD_OUT, train=TRAIN, tuned_steps=3, ngrams=NGRAMS
    )


@pytest.fixture(scope="module")
def found(series, material):
    return interp.training_measures(series.alone(2), material)


def test_losses_and_divergences_from_the_plain_forward_pass(series, found):
    ids = torch.from_numpy(HELD_OUT)
    log_q = series.alone(2)(ids).log_softmax(-1)
    log_p = series.alone(8)(ids).log_softmax(-1)
    loss = torch.nn.functional.cross_entropy(log_q[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert float(found["loss"]) == pytest.approx(float(loss), abs=1e-10)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    assert float(found["kl_to_final"]) == pytest.approx(float(kl), abs=1e-10)
    uniform = torch.full_like(log_q[:, :-1], -math.log(11))
    to = torch.nn.functional.kl_div(uniform, log_q[:, :-1], reduction="none", log_target=True)
    away = torch.nn.functional.kl_div(log_q[:, :-1], uniform, reduction="none", log_target=True)
    assert found["order"].to_numpy().tolist() == [0, 1, 2]
    assert float(found["kl_model_ngram"][0]) == pytest.approx(float(to.sum(-1).mean()), abs=1e-10)
    assert float(found["kl_ngram_model"][0]) == pytest.approx(float(away.sum(-1).mean()), abs=1e-10)
    bigram = NGRAMS.probabilities(ids[:, :-1], 2).log()
    kl = (log_q[:, :-1].exp() * (log_q[:, :-1] - bigram)).sum(-1).mean()
    assert float(found["kl_model_ngram"][2]) == pytest.approx(float(kl), abs=1e-10)


def test_the_stream_from_transformer_lens_cache(series, found):
    model = series.alone(2)
    _, cache = model.run_with_cache(torch.from_numpy(HELD_OUT))
    states = cache.accumulated_resid(layer=None, incl_mid=True)
    centred = states - states.mean(-1, keepdim=True)
    np.testing.assert_allclose(found["norm"], centred.norm(dim=-1).mean((1, 2)), rtol=1e-10)
    cosine = states.sum(-1).abs() / states.norm(dim=-1) / 16**0.5
    np.testing.assert_allclose(found["cosine_to_ones"], cosine.mean((1, 2)), atol=1e-10)
    kappa = model.cfg.eps / centred.square().mean(-1).flatten(1).quantile(0.5, dim=1)
    np.testing.assert_allclose(found["kappa"], kappa, rtol=0.2)
    assert found["state"].to_numpy().tolist()[-1] == "final_post"


def test_scores_are_those_of_the_analyses(series, found):
    model = series.alone(2)
    blocks = interp.induction_scores(model)
    np.testing.assert_array_equal(found["induction"], blocks["value"].sel(score="induction"))
    np.testing.assert_array_equal(
        found["induction_control"], blocks["control"].sel(score="induction")
    )
    patterns = interp.attention_patterns(model, torch.from_numpy(HELD_OUT)).to_numpy()
    before = patterns[..., range(1, 7), range(6)].mean((0, -1))
    np.testing.assert_allclose(found["previous_token"], before, atol=1e-10)
    np.testing.assert_array_equal(found["copying"], interp.copying_scores(model)["copying"])
    pair = found["k_composition"].sel(source_layer=0, source_head=2, layer=1, head=1)
    excess = interp.composition_scores(model)["excess"].sel(kind="K")
    assert float(pair) == float(excess.sel(source_layer=0, source_head=2, layer=1, head=1))


def test_lenses(series, material, found):
    lens = interp.logit_lens(series.alone(2), torch.from_numpy(HELD_OUT))
    np.testing.assert_allclose(found["lens_kl"], lens["kl_to_final"].mean(("batch", "pos")))
    assert float(found["lens_depth"]) == pytest.approx(float(lens["depth"].mean()))
    assert (found["tuned_lens_kl"][:-1] != found["lens_kl"][:-1]).all()
    assert float(found["tuned_lens_kl"][-1]) == pytest.approx(0, abs=1e-10)
    unfitted = dataclasses.replace(material, train=None)
    without = interp.training_measures(series.alone(2), unfitted)
    assert np.isnan(without["tuned_lens_kl"]).all()
    assert np.isnan(without["tuned_lens_depth"])


def test_edges_are_the_attribution_of_all_prompts_together(series, monkeypatch):
    model, ids = series.alone(2), torch.from_numpy(HELD_OUT)
    found = edge_strengths(model, ids)
    pair = Contrast(source=ids[:, :-1], base=ids.roll(-1, 0)[:, :-1])
    together = interp.edge_attribution(model, pair, log_prob(model, ids[:, -1].tolist()))
    np.testing.assert_allclose(found, abs(together.mean("batch", skipna=False)), atol=1e-10)
    monkeypatch.setattr(edges_module, "N_PROMPTS", 4)
    few = edge_strengths(model, ids)
    chosen = ids[::3][:4]
    np.testing.assert_allclose(few, edge_strengths(model, chosen), atol=1e-12)


def test_overlap_with_itself_is_whole_and_with_another_is_not(series, found):
    ids = torch.from_numpy(HELD_OUT)
    a, b = (edge_strengths(series.alone(step), ids) for step in (2, 8))
    assert edge_overlap(a, a) == edge_overlap(b, b) == 1
    n_edges = int(np.isfinite(a).sum())
    top = [set(np.argsort(-np.nan_to_num(e.to_numpy().ravel(), nan=-1))[: round(n_edges / 10)])
           for e in (a, b)]  # fmt: skip
    assert edge_overlap(a, b) == len(top[0] & top[1]) / len(top[0])
    assert float(found["edge_overlap"]) == edge_overlap(a, b)
    noise = [a.copy(data=np.where(np.isfinite(a), np.random.default_rng(i).random(a.shape), np.nan))
             for i in range(60)]  # fmt: skip
    chance = np.mean([edge_overlap(x, y) for x, y in zip(noise[::2], noise[1::2], strict=True)])
    assert chance == pytest.approx(0.1, abs=0.06)


@pytest.mark.parametrize("attn_only", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_through_training_each_step_is_the_single_model(attn_only):
    steps = (0, 8)
    series = RandomSeries(steps, seed=3, attn_only=attn_only)
    whole = interp.track_training(
        series, HELD_OUT, train=TRAIN, tuned_steps=2, ngrams=NGRAMS, cache=None
    )
    material = interp.training_material(
        series.alone(8), HELD_OUT, train=TRAIN, tuned_steps=2, ngrams=NGRAMS
    )
    for step in steps:
        alone = interp.training_measures(series.alone(step), material)
        for name, expected in alone.data_vars.items():
            np.testing.assert_array_equal(whole[name].sel(step=step), expected, err_msg=str(name))
    assert float(whole["kl_to_final"].sel(step=8)) == pytest.approx(0, abs=1e-12)
    assert float(whole["edge_overlap"].sel(step=8)) == 1
    assert whole["hop"].size == (2 if attn_only else 4)


def test_without_a_text_random_blocks_are_read(series):
    whole = interp.track_training(series, cache=None, steps=(2, 8))
    assert whole.attrs["settings"]["is_text"] is False
    assert whole["order"].to_numpy().tolist() == [0]
    assert np.isfinite(whole["loss"]).all()


def test_the_last_step_that_can_be_read_is_the_final_model():
    series = RandomSeries(STEPS)
    series.damaged = {8}
    whole = interp.track_training(series, HELD_OUT, cache=None)
    assert whole.attrs["settings"]["final"] == series.checkpoint(2)
    assert float(whole["kl_to_final"].sel(step=2)) == pytest.approx(0, abs=1e-12)
    assert [step for step, _ in whole.attrs["skipped"]] == [8]


def test_material_is_known_by_what_it_was_made_of(series, material):
    def made(final: int = 8, held_out: np.ndarray = HELD_OUT, **settings) -> str:
        given = {"train": TRAIN, "tuned_steps": 3, "ngrams": NGRAMS} | settings
        return fingerprint(interp.training_material(series.alone(final), held_out, **given))

    rounded = dataclasses.replace(
        material.final, log_probs=material.final.log_probs + 1e-7, edges=material.final.edges * 2
    )
    assert made() == fingerprint(dataclasses.replace(material, final=rounded))
    others = [made(2), made(8, HELD_OUT[:, ::-1]), made(train=TRAIN[:5]), made(tuned_steps=4),
              made(ngrams=None), made(n_windows=12)]  # fmt: skip
    assert len({made(), *others}) == 7


def test_what_cannot_be_measured_is_said(series):
    model = random_hooked()
    with pytest.raises(interp.InputError, match="checkpoint hash"):
        interp.training_material(model, HELD_OUT)
    wrong = interp.count_ngrams(torch.arange(9), 9, order=1)
    with pytest.raises(interp.InputError, match="9 tokens"):
        interp.training_material(series.alone(8), HELD_OUT, ngrams=wrong)
