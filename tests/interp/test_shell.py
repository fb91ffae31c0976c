"""Models that the plain forward pass cannot express run through hooks on a private copy: the same
numbers, and the user's model untouched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hook_oracle import logits_with_hooks
from random_models import random_hooked, random_ids

from interp.engine import trace
from interp.errors import InputError
from interp.inputs import contrast
from interp.metrics import logit_difference
from interp.patching import activation_patching
from interp.paths import path_patching
from interp.replay import replay
from interp.sites import Site, sites_of
from interp.weights import obstacles

SHAPES = {
    "rotary": {"positional_embedding_type": "rotary", "d_head": 6, "rotary_dim": 4},
    "RMS": {"normalization_type": "RMS"},
    "gated MLP": {"gated_mlp": True, "act_fn": "silu"},
    "parallel": {"parallel_attn_mlp": True},
    "soft caps": {"output_logits_soft_cap": 2.0, "attn_scores_soft_cap": 1.5},
    "shared keys and values": {"n_heads": 4, "n_key_value_heads": 2},
    "shortformer": {"positional_embedding_type": "shortformer"},
    "no norm, rotary": {
        "positional_embedding_type": "rotary",
        "d_head": 6,
        "rotary_dim": 6,
        "normalization_type": None,
    },
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def model(request):
    model = random_hooked(90, **request.param)
    assert obstacles(model.cfg)
    return model


def test_only_the_sites_asked_for_are_kept(model):
    site = Site("z", 1)
    whole, some = trace(model, "abcd"), trace(model, "abcd", sites=[site])
    assert set(some.values) == {site}
    assert torch.equal(some[site], whole[site])
    assert torch.equal(some.logits, whole.logits)


def test_sites_and_sweeps_equal_transformer_lens(model):
    pair = contrast(model, ["abcdefg", "kbcdebc"], ["abhdefg", "abcdebc"])
    logits, cache = model.run_with_cache(pair.base)
    base = trace(model, pair.base)
    torch.testing.assert_close(base.logits, logits, rtol=0, atol=1e-10)
    sites = [site for site in sites_of(model.cfg) if site in base.values]
    assert {"resid_pre", "z", "pattern", "mlp_out"} <= {site.kind for site in sites}
    for site in sites:
        torch.testing.assert_close(base[site], cache[site.hook_name], rtol=0, atol=1e-10)
    source = trace(model, pair.source)
    for kind in ("resid_pre", "z", "mlp_out", "k"):
        ours = activation_patching(model, pair, logit_difference(model, "a", "b"), kind)
        for layer in range(2):
            at = Site(kind, layer, head=1) if kind in "zk" else Site(kind, layer, pos=4)
            theirs = logits_with_hooks(model, pair.base, {at: source[at]})[:, -1]
            mine = ours.raw.sel(layer=layer, **{"head": 1} if kind in "zk" else {"pos": 4})
            np.testing.assert_allclose(mine, theirs[:, 0] - theirs[:, 1], rtol=0, atol=1e-10)


def test_the_users_hooks_neither_run_nor_change(model):
    seen = []
    model.add_hook("blocks.0.hook_resid_pre", lambda value, hook: seen.append(1))
    base = trace(model, random_ids(1))
    replay(base, [{Site("z", 0): 0.0}])
    with pytest.raises(ZeroDivisionError):
        base.program.run(base.ids, lambda site, value: 1 / 0)
    assert not seen
    assert [len(p.fwd_hooks) for p in model.hook_dict.values()].count(1) == 1
    assert sum(len(p.fwd_hooks) for p in model.hook_dict.values()) == 1
    model(base.ids)
    assert seen == [1]


def test_analyses_that_need_plain_weights_say_so():
    model = random_hooked(91, gated_mlp=True, act_fn="silu")
    pair = contrast(model, "abcdefg", "abhdefg")
    with pytest.raises(InputError, match="but the model has gated_mlp=True: use activation_patch"):
        path_patching(model, pair, logit_difference(model, "a", "b"))
