"""Finer attributions add up to the coarser ones, and are what an intervention says they are."""

from __future__ import annotations

import pytest
import torch
from agreement import CLOSE, QUESTIONS, VARIANTS, values, variant
from random_models import random_hooked, random_ids

from interp import (
    InputError,
    accumulated_contributions,
    direct_logit_attribution,
    logit_lens,
    neuron_attribution,
    source_attribution,
)


@pytest.fixture(params=VARIANTS, scope="module")
def model(request):
    return variant(request.param, 7)


@pytest.fixture(params=[1, 3], scope="module")
def ids(request):
    return random_ids(8, batch=request.param)


@pytest.mark.parametrize(("target", "contrast", "pos"), QUESTIONS)
def test_neurons_and_their_bias_sum_to_the_mlp(model, ids, target, contrast, pos):
    if model.cfg.attn_only:
        with pytest.raises(InputError, match="no MLP"):
            neuron_attribution(model, ids, target)
        return
    fine = neuron_attribution(model, ids, target, contrast, pos=pos)
    coarse = direct_logit_attribution(model, ids, target, contrast, pos=pos)["part"]
    token = ("token",) if target is None else ()
    assert fine["part"].dims == ("layer", "neuron", "batch", "pos", *token)
    for layer in range(2):
        whole = fine["part"].sel(layer=layer).sum("neuron") + fine["bias"].sel(layer=layer)
        want = coarse.sel(component=f"{layer}_mlp_out")
        torch.testing.assert_close(values(whole), values(want), **CLOSE)


@pytest.mark.parametrize(("target", "contrast", "pos"), QUESTIONS)
def test_sources_sum_to_the_head(model, ids, target, contrast, pos):
    fine = source_attribution(model, ids, target, contrast, pos=pos)
    coarse = direct_logit_attribution(model, ids, target, contrast, pos=pos)["part"]
    token = ("token",) if target is None else ()
    assert fine.dims == ("layer", "head", "batch", "query_pos", "key_pos", *token)
    chosen = list(range(7)) if pos is None else [pos % 7]
    assert fine["query_pos"].to_numpy().tolist() == chosen
    for layer in range(2):
        for head in range(3):
            got = fine.sel(layer=layer, head=head).sum("key_pos")
            want = coarse.sel(component=f"L{layer}H{head}")
            torch.testing.assert_close(values(got), values(want), **CLOSE)


def _change(model, ids, hooks, target):
    """The change of a logit under hooks, with everything after the hooked writes held."""
    _, cache = model.run_with_cache(ids)
    n_layers = model.cfg.n_layers
    held = [
        f"blocks.{layer}.hook_{out}" for layer in range(n_layers) for out in ("attn_out", "mlp_out")
    ]
    frozen = [(name, lambda _, hook: cache[hook.name]) for name in held if name in cache]
    scale = "ln_final.hook_scale"
    if scale in cache:
        frozen.append((scale, lambda _, hook: cache[hook.name]))
    own = [frozen_hook for frozen_hook in frozen if frozen_hook[0] not in dict(hooks)]
    return (model(ids) - model.run_with_hooks(ids, fwd_hooks=[*own, *hooks]))[..., target]


def test_a_neurons_part_is_what_leaves_the_logit_with_it(model, ids):
    """Prediction = intervention, with hooks: downstream writes and the final scale are held."""
    if model.cfg.attn_only:
        return
    fine = neuron_attribution(model, ids, 4)["part"]
    _, cache = model.run_with_cache(ids)
    for layer, neuron in ((0, 5), (1, 22)):
        post = cache[f"blocks.{layer}.mlp.hook_post"][..., neuron, None]

        def without(out, hook, gone=post * model.W_out[layer, neuron]):
            return out - gone

        change = _change(model, ids, [(f"blocks.{layer}.hook_mlp_out", without)], 4)
        torch.testing.assert_close(values(fine.sel(layer=layer, neuron=neuron)), change, **CLOSE)


def test_a_sources_part_is_what_leaves_the_logit_with_its_value(ids):
    """The key's varying value is taken away in one head; all else stays as it was."""
    model = random_hooked(7)
    fine = source_attribution(model, ids, 4)
    for layer, head, key in ((0, 2, 0), (1, 1, 3)):
        attn, ln = model.blocks[layer].attn, model.blocks[layer].ln1
        _, cache = model.run_with_cache(ids)
        y = cache[f"blocks.{layer}.ln1.hook_normalized"][:, key] * ln.w
        lost = cache[f"blocks.{layer}.attn.hook_pattern"][:, head, :, key, None]
        lost = lost * (y @ attn.W_V[head] @ attn.W_O[head])[:, None]

        def without(out, hook, gone=lost):
            return out - gone

        change = _change(model, ids, [(f"blocks.{layer}.hook_attn_out", without)], 4)
        got = values(fine.sel(layer=layer, head=head, key_pos=key))
        torch.testing.assert_close(got, change, **CLOSE)


@pytest.mark.parametrize(("target", "contrast", "pos"), QUESTIONS)
def test_accumulated_contributions_end_at_the_logit_and_step_by_parts(
    model, ids, target, contrast, pos
):
    accumulated = accumulated_contributions(model, ids, target, contrast, pos=pos)
    parts = direct_logit_attribution(model, ids, target, contrast, pos=pos)
    torch.testing.assert_close(values(accumulated[-1]), values(parts["logit"]), **CLOSE)
    steps = values(accumulated.diff("state"))
    layered = parts["part"].where(parts["layer"] >= 0, drop=True)
    sublayer = layered["layer"] * (1 if model.cfg.attn_only else 2) + (layered["kind"] == "mlp")
    want = values(layered.groupby(sublayer).sum())
    torch.testing.assert_close(steps, want, **CLOSE)
    start = parts["part"].sel(component=["embed", "pos_embed", "bias"]).sum("component")
    torch.testing.assert_close(values(accumulated[0]), values(start), **CLOSE)


def test_accumulated_contributions_are_not_the_lens():
    model, ids = random_hooked(7), random_ids(8)
    lens = logit_lens(model, ids, logits=True)["logits"][..., 4]
    gap = abs(accumulated_contributions(model, ids, 4).to_numpy() - lens.to_numpy())
    assert gap[:-1].max() > 0.1
    assert gap[-1].max() < 1e-10


@pytest.mark.parametrize(
    "analysis", [neuron_attribution, source_attribution, accumulated_contributions]
)
def test_bad_requests_are_refused(analysis):
    model = random_hooked()
    for wrong in (
        {"target": 11},
        {"target": 4, "pos": 3},
        {"target": 4, "contrast": "ab"},
        {"target": None, "contrast": 4},
    ):
        with pytest.raises(InputError):
            analysis(model, "abc", **wrong)
