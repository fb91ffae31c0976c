"""`trace` holds what HookedTransformer's own cache holds, at every site, for every shape."""

from __future__ import annotations

import pytest
import torch
from random_models import random_hooked, random_ids

from interp.engine import trace
from interp.errors import InputError
from interp.sites import Site, sites_of

SHAPES = {
    "course": {},
    "three layers, wide heads": {"n_layers": 3, "n_heads": 2, "d_head": 7, "d_model": 15},
    "attention only": {"attn_only": True},
    "folded LayerNorm": {"normalization_type": "LNPre"},
    "no LayerNorm": {"normalization_type": None},
    "no LayerNorm, attention only": {"normalization_type": None, "attn_only": True},
    "tanh GELU": {"act_fn": "gelu_new"},
    "relu, other eps": {"act_fn": "relu", "eps": 0.3},
    "scores scaled by layer": {"scale_attn_by_inverse_layer_idx": True},
    "scores not scaled": {"use_attn_scale": False},
    "other output vocabulary": {"d_vocab_out": 13},
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def model(request):
    return random_hooked(3, **request.param)


def test_every_site_equals_transformer_lens_cache(model):
    ids = random_ids(1, batch=3)
    logits, cache = model.run_with_cache(ids)
    traced = trace(model, ids)
    for site in sites_of(model.cfg):
        torch.testing.assert_close(
            traced[site], cache[site.hook_name], rtol=0, atol=1e-10, msg=str(site)
        )
    torch.testing.assert_close(traced.logits, logits, rtol=0, atol=1e-10)


def test_attention_in_one_kernel_equals_attention_spelled_out(model):
    ids = random_ids(1, batch=3)
    whole = trace(model, ids)
    between = ("attn_scores", "pattern")
    sites = [site for site in sites_of(model.cfg) if site.kind not in between]
    some = trace(model, ids, sites=sites)
    assert set(some.values) == set(sites)
    for site in sites:
        torch.testing.assert_close(some[site], whole[site], rtol=0, atol=1e-10, msg=str(site))
    torch.testing.assert_close(some.logits, whole.logits, rtol=0, atol=1e-10)


def test_a_pattern_of_one_layer_is_kept_beside_other_layers_in_one_kernel(model):
    ids = random_ids(1, batch=3)
    whole, site = trace(model, ids), Site("pattern", 1)
    some = trace(model, ids, sites=[site])
    assert set(some.values) == {site}
    torch.testing.assert_close(some[site], whole[site], rtol=0, atol=1e-10)
    torch.testing.assert_close(some.logits, whole.logits, rtol=0, atol=1e-10)


def test_stream_is_transformer_lens_accumulated_resid(model):
    ids = random_ids(2, batch=3)
    _, cache = model.run_with_cache(ids)
    expected, _ = cache.accumulated_resid(incl_mid=not model.cfg.attn_only, return_labels=True)
    torch.testing.assert_close(trace(model, ids).stream, expected, rtol=0, atol=1e-10)


def test_gradients_equal_transformer_lens_backward_hooks(model):
    ids = random_ids(4, batch=3)
    traced = trace(model, ids, grad=True)
    sites = [site for site in sites_of(model.cfg) if site.kind != "pos_embed"]
    ours = torch.autograd.grad(
        traced.logits[:, -1, 2].sum(), [traced[site] for site in sites], allow_unused=True
    )
    theirs: dict[str, torch.Tensor] = {}

    def keep(gradient, hook):
        theirs[hook.name] = gradient.clone()

    for parameter in model.parameters():
        parameter.requires_grad_(True)
    try:
        with model.hooks(bwd_hooks=[(site.hook_name, keep) for site in sites]):
            model(ids)[:, -1, 2].sum().backward()
    finally:
        model.requires_grad_(False)
        model.zero_grad()
    for site, gradient in zip(sites, ours, strict=True):
        if gradient is not None:
            torch.testing.assert_close(
                gradient, theirs[site.hook_name], rtol=0, atol=1e-10, msg=str(site)
            )
    assert not trace(model, ids).logits.requires_grad


@pytest.mark.parametrize("change", ["in place", "through .data", "new parameter"])
def test_a_changed_weight_is_seen_at_once(change):
    model = random_hooked(5)
    ids = random_ids(5)
    before = trace(model, ids).logits
    W = model.blocks[1].attn.W_Q
    with torch.no_grad():
        if change == "in place":
            W.mul_(1.5)
        elif change == "through .data":
            W.data.mul_(1.5)
        else:
            model.blocks[1].attn.W_Q = torch.nn.Parameter(W * 1.5, requires_grad=False)
    after = trace(model, ids).logits
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(after, model(ids), rtol=0, atol=1e-10)


def test_a_trace_keeps_only_what_was_asked_for():
    model = random_hooked(6)
    traced = trace(model, "abc", sites=[Site("z", 1)])
    assert set(traced.values) == {Site("z", 1)}
    with pytest.raises(InputError, match="did not keep 'q'"):
        traced["q", 1]


def test_a_site_with_indices_is_that_part():
    traced = trace(random_hooked(7), random_ids(7, batch=3))
    assert torch.equal(traced[Site("z", 1, head=2, pos=4)], traced["z", 1][:, 4, 2])
    assert torch.equal(
        traced[Site("pattern", 0, head=1, pos=5, key_pos=3)], traced["pattern", 0][:, 1, 5, 3]
    )
    assert torch.equal(traced[Site("mlp_pre", 0, neuron=9)], traced["mlp_pre", 0][:, :, 9])


@pytest.mark.parametrize(
    ("site", "sentence"),
    [
        (Site("z", 2), "layer=2, but the model has 2 layers"),
        (Site("z", 1, head=3), "head=3, but only 0 to 2"),
        (Site("resid_pre", 0, pos=3), "pos=3, but only 0 to 2"),
        (Site("mlp_pre", 0, neuron=23), "neuron=23, but only 0 to 22"),
    ],
)
def test_sites_outside_the_model_are_refused(site, sentence):
    with pytest.raises(InputError, match=sentence):
        trace(random_hooked(8), "abc", sites=[site])
