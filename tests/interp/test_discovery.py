"""Circuits: the whole is the base run, nothing is the source run, one cut edge is path patching,
and planted circuits are found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from random_models import random_hooked

from interp.discovery import CircuitRuns, circuit_curve, minimality, prune_edges
from interp.edges import edge_attribution
from interp.errors import InputError
from interp.inputs import contrast
from interp.metrics import kl_divergence, logit_difference
from interp.paths import path_patching

PAIR = (["abcdefg", "kbcdebc"], ["abhdefg", "abcdebc"])
SHAPES = {
    "course": {},
    "attention only": {"attn_only": True, "n_layers": 3},
    "no LayerNorm": {"normalization_type": None, "act_fn": "relu"},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_all_edges_none_and_all_but_one(shape):
    model = random_hooked(50, **shape)
    pair = contrast(model, *PAIR)
    metric = logit_difference(model, "a", "b")
    runs = CircuitRuns(model, pair, metric)
    none = torch.zeros_like(runs.edges)
    out = runs(torch.stack([runs.edges, none]))
    torch.testing.assert_close(out[0], runs.of_base, rtol=0, atol=1e-10)
    torch.testing.assert_close(out[1], runs.of_source, rtol=0, atol=1e-10)
    exact = path_patching(model, pair, metric).raw.to_numpy()
    places = runs.edges.nonzero()
    one_cut = runs.edges.repeat(len(places), 1, 1)
    one_cut[torch.arange(len(places)), places[:, 0], places[:, 1]] = False
    ours = runs(one_cut).T.numpy()
    np.testing.assert_allclose(ours, exact[:, places[:, 0], places[:, 1]], rtol=0, atol=1e-10)


@pytest.mark.parametrize("layer_norm", [False, True], ids=["no LayerNorm", "LayerNorm"])
@pytest.mark.parametrize("which", ["first A", "B", "last A"])
def test_planted_circuits_are_faithful_complete_minimal_and_found_by_pruning(layer_norm, which):
    model = zoo.induction_model(layer_norm=layer_norm)
    pair, truth = zoo.induction_contrasts()[which]
    metric = zoo.induction_metric(model)
    exact = path_patching(model, pair, metric).change
    curve = circuit_curve(model, pair, metric, exact, [0, 1, len(truth), 20])
    np.testing.assert_allclose(curve.faithfulness[[0, 2, 3]], [0, 1, 1], atol=1e-9)
    np.testing.assert_allclose(curve.completeness[[0, 2, 3]], [1, 0, 0], atol=1e-9)
    lost = minimality(model, pair, metric, sorted(truth))
    np.testing.assert_allclose(lost, 1, atol=1e-9)
    kept = prune_edges(model, pair, metric, threshold=0.1)
    table = kept.to_dataframe()[kept.name]
    assert set(table[table].index) == truth


def test_a_curve_ends_at_the_whole_model_and_knows_its_area():
    model = random_hooked(51)
    pair = contrast(model, *PAIR)
    metric = logit_difference(model, "a", "b")
    scores = edge_attribution(model, pair, metric)
    curve = circuit_curve(model, pair, metric, scores)
    assert curve.edges[-1] == int((~np.isnan(scores[0])).sum())
    assert float(curve.faithfulness[-1]) == pytest.approx(1)
    assert float(curve.completeness[-1]) == pytest.approx(0)
    assert np.isfinite(curve.attrs["area"])


def test_pruning_at_no_threshold_keeps_all_and_at_a_large_one_nothing():
    model = random_hooked(52, n_ctx=5)
    pair = contrast(model, "abcde", "abgde")
    seen = []
    kept = prune_edges(
        model, pair, kl_divergence("base"), threshold=0.0, progress=lambda *n: seen.append(n)
    )
    in_all = int(CircuitRuns(model, pair, kl_divergence("base")).edges.sum())
    assert seen[-1] == (in_all, in_all)
    assert int(kept.sum()) == in_all
    assert int(prune_edges(model, pair, kl_divergence("base"), threshold=1e9).sum()) == 0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m, p, d, s: circuit_curve(m, p, d, s, [999]), "but the model has \\d+ edges"),
        (lambda m, p, d, s: circuit_curve(m, p, d, s[:, 0]), "but sender and receiver are needed"),
        (lambda m, p, d, s: circuit_curve(m, p, d, s[:, :-1]), "for other senders or receivers"),
        (lambda m, p, d, s: minimality(m, p, d, [("L1H0", "L0H0.q")]), "L1H0 -> L0H0.q does not"),
        (
            lambda m, p, d, s: circuit_curve(m, p, logit_difference(m, "a", "b", pos=0), s),
            "nothing to be faithful to",
        ),
    ],
)
def test_wrong_calls_are_refused(call, sentence):
    model = random_hooked(53)
    pair = contrast(model, "abcdefg", "abhdefg")
    metric = logit_difference(model, "a", "b")
    scores = edge_attribution(model, pair, metric)
    with pytest.raises(InputError, match=sentence):
        call(model, pair, metric, scores)
