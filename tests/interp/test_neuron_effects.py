"""A neuron's parts sum to its MLP's, and what removal does is what hooks make of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_models import random_hooked, random_ids

from interp import (
    InputError,
    neuron_ablation,
    neuron_activation,
    neuron_attribution,
    neuron_vocabulary,
    top_neurons,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(params=[{}, {"normalization_type": None}], scope="module")
def model(request):
    return random_hooked(29, **request.param)


def test_activations_are_the_models_own(model):
    ids = random_ids(8, batch=2)
    _, cache = model.run_with_cache(ids)
    got = torch.tensor(neuron_activation(model, ids, 1, 20).to_numpy())
    torch.testing.assert_close(got, cache["post", 1][..., 20], **CLOSE)


def test_the_top_neurons_are_the_largest_parts(model):
    got = top_neurons(model, "abcabd", "a", "c", pos=4, top=7, words=3)
    parts = neuron_attribution(model, "abcabd", "a", "c", pos=4)["part"].to_numpy()[:, :, 0, 0]
    want = np.sort(np.abs(parts).ravel())[::-1][:7]
    np.testing.assert_allclose(np.abs(got["part"]), want, atol=1e-12)
    assert float(got["whole"]) == pytest.approx(parts.sum(), abs=1e-10)
    for rank in range(7):
        one = got.isel(rank=rank)
        layer, neuron = int(one["layer"]), int(one["neuron"])
        assert float(one["part"]) == pytest.approx(parts[layer, neuron], abs=1e-12)
        fired = neuron_activation(model, "abcabd", layer, neuron)[0, 4]
        assert float(one["activation"]) == pytest.approx(float(fired), abs=1e-12)
        words = neuron_vocabulary(model, layer, neuron, top=3).isel(neuron=0)
        for side in ("promoted", "suppressed"):
            np.testing.assert_array_equal(one[side], words[side])
            np.testing.assert_array_equal(one[f"{side}_tokens"], words[f"{side}_tokens"])


@pytest.mark.parametrize("to", [0.0, 0.7])
@pytest.mark.parametrize("pos", [3, -1])
def test_ablation_is_the_same_edit_made_with_hooks(model, to, pos):
    ids, layer, neuron = random_ids(9, batch=2), 0, 13

    def hold(post, hook):
        post = post.clone()
        post[..., neuron] = to
        return post

    base = model(ids)[:, pos]
    held = model.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.mlp.hook_post", hold)])[:, pos]
    got = neuron_ablation(model, ids, layer, neuron, "b", "e", pos=pos, to=to)
    tensor = {name: torch.tensor(got[name].to_numpy()) for name in got.data_vars}
    torch.testing.assert_close(tensor["probability"], base.softmax(-1), **CLOSE)
    torch.testing.assert_close(tensor["ablated"], held.softmax(-1), **CLOSE)
    torch.testing.assert_close(tensor["base"], base[:, 1] - base[:, 4], **CLOSE)
    torch.testing.assert_close(tensor["held"], held[:, 1] - held[:, 4], **CLOSE)
    torch.testing.assert_close(tensor["total"], tensor["base"] - tensor["held"], **CLOSE)
    terms = tensor["frozen"] + tensor["rescale"] + tensor["downstream"]
    torch.testing.assert_close(terms, tensor["total"], **CLOSE)
    assert float(tensor["downstream"].abs().max()) > 1e-6


def test_the_direct_part_is_attributions_and_the_last_layer_has_nothing_downstream(model):
    got = neuron_ablation(model, "abcabd", 1, 5, "a", "c", pos=4)
    parts = neuron_attribution(model, "abcabd", "a", "c", pos=4)["part"]
    want = float(parts.sel(layer=1, neuron=5)[0, 0])
    assert float(got["frozen"][0]) == pytest.approx(want, abs=1e-10)
    assert float(got["downstream"][0]) == pytest.approx(0, abs=1e-10)
    elsewhere = neuron_ablation(model, "abcabd", 1, 5, "a", "c", pos=4, to=0.7)
    assert float(elsewhere["downstream"][0]) == pytest.approx(0, abs=1e-10)
    if model.cfg.normalization_type is None:
        assert float(got["rescale"][0]) == pytest.approx(0, abs=1e-10)
    else:
        assert abs(float(got["rescale"][0])) > 1e-6


def test_a_neuron_held_where_it_is_does_nothing(model):
    at = float(neuron_activation(model, "a", 1, 7)[0, 0])
    got = neuron_ablation(model, "a", 1, 7, "a", to=at)
    assert float(got["total"][0]) == pytest.approx(0, abs=1e-10)


def test_bad_requests_are_refused(model):
    plain = random_hooked(attn_only=True)
    for wrong in (
        lambda: neuron_activation(plain, "abc", 0, 0),
        lambda: neuron_activation(model, "abc", 0, 23),
        lambda: top_neurons(plain, "abc", "a"),
        lambda: top_neurons(model, "abc", "a", top=0),
        lambda: top_neurons(model, ["abc", "abd"], "a"),
        lambda: top_neurons(model, "abc", "a", pos=3),
        lambda: neuron_ablation(plain, "abc", 0, 0, "a"),
        lambda: neuron_ablation(model, "abc", 2, 0, "a"),
        lambda: neuron_ablation(model, "abc", 0, 0, "zz"),
        lambda: neuron_ablation(model, "abc", 0, 0, "a", pos=3),
    ):
        with pytest.raises(InputError):
            wrong()
