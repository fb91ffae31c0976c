"""Prediction = intervention: what the closed forms say, removing the component does."""

from __future__ import annotations

import pytest
import torch
from agreement import CLOSE, QUESTIONS, values
from folding import folded
from random_models import random_hooked, random_ids

from interp import (
    InputError,
    ablation_effect,
    direct_effect,
    direct_logit_attribution,
)
from interp.components import attention_bias, value_bias, writes
from interp.engine import trace
from interp.readout import readout
from interp.sphere.effects import LastState


@pytest.fixture(params=["LN", "folded", "attention only"], scope="module")
def model(request):
    made = random_hooked(8, attn_only=request.param == "attention only")
    return folded(made) if request.param == "folded" else made


@pytest.fixture(params=[1, 3], scope="module")
def ids(request):
    return random_ids(9, batch=request.param)


@pytest.mark.parametrize(("target", "contrast", "pos"), QUESTIONS)
def test_exact_effect_is_the_change_when_the_write_is_taken_out(model, ids, target, contrast, pos):
    effects = direct_effect(model, ids, target, contrast, pos=pos)
    for write in writes(trace(model, ids)):

        def remove(x, hook, gone=write.value):
            return x - gone

        last = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
        change = model(ids) - model.run_with_hooks(ids, fwd_hooks=[(last, remove)])
        want = change if target is None else change[..., target]
        want = want - (0 if contrast is None else change[..., contrast])
        want = want if pos is None else want[:, [pos]]
        got = effects.sel(component=write.label)
        torch.testing.assert_close(values(got["exact"]), want, **CLOSE)
        torch.testing.assert_close(values(got["frozen"] + got["rescale"]), want, **CLOSE)


def test_the_frozen_term_is_direct_logit_attribution(model, ids):
    effects = direct_effect(model, ids, 4, 7)
    parts = direct_logit_attribution(model, ids, 4, 7)["part"]
    frozen = values(effects["frozen"])
    torch.testing.assert_close(frozen, values(parts)[:-1], **CLOSE)
    assert list(effects["component"].to_numpy()) == list(parts["component"].to_numpy())[:-1]


def test_no_write_and_a_write_of_the_mean_do_nothing(model, ids):
    x = trace(model, ids).stream[-1]
    read = readout(model)
    for write in (torch.zeros_like(x), torch.ones_like(x)):
        for term in LastState(read, x).without(write):
            torch.testing.assert_close(term, torch.zeros_like(term), **CLOSE)


def test_tiny_writes_keep_the_digits_of_their_rescaling(model, ids):
    """The rescale term of a small write is linear in it; 1 - s/s' alone would be rounding."""
    x, read = trace(model, ids).stream[-1], readout(model)
    write = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).double()
    last = LastState(read, x)
    small, smaller = (last.without(write * size)[1] / size for size in (1e-10, 1e-11))
    torch.testing.assert_close(small, smaller, rtol=1e-6, atol=1e-8)


def ablated(model, ids, write) -> torch.Tensor:
    """Logits with a component's write removed at every position, by TransformerLens' hooks."""
    layer = write.layer
    if write.kind == "head":
        head = int(write.label.split("H")[1])

        def empty(z, hook):
            z = z.clone()
            z[:, :, head] = value_bias(model, layer)[head]
            return z

        return model.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", empty)])
    if write.kind == "attn_bias":

        def less(out, hook):
            return out - attention_bias(model, layer)

        return model.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.hook_attn_out", less)])
    name = f"blocks.{layer}.hook_mlp_out" if write.kind == "mlp" else f"hook_{write.label}"
    return model.run_with_hooks(ids, fwd_hooks=[(name, lambda value, hook: value * 0)])


@pytest.mark.parametrize("pos", [-1, 3])
def test_three_terms_are_the_total_effect_of_an_ablation(model, ids, pos):
    effects = ablation_effect(model, ids, 4, 7, pos=pos)
    run, read = trace(model, ids), readout(model, 4, 7)
    for write in writes(run):
        got = effects.sel(component=write.label)
        change = (model(ids) - ablated(model, ids, write))[:, pos]
        torch.testing.assert_close(values(got["total"]), change[:, 4] - change[:, 7], **CLOSE)
        three = got["frozen"] + got["rescale"] + got["downstream"]
        torch.testing.assert_close(values(three), change[:, 4] - change[:, 7], **CLOSE)
        # Downstream by itself: from the state without the write alone, to the ablated one.
        direct = read(run.stream[-1] - write.value)[:, pos, 0]
        after = ablated(model, ids, write)[:, pos]
        downstream = direct - (after[:, 4] - after[:, 7])
        torch.testing.assert_close(values(got["downstream"]), downstream, **CLOSE)


def test_all_tokens_at_once_are_each_token(model, ids):
    every = ablation_effect(model, ids, None)
    assert every["total"].dims == ("component", "batch", "token")
    for name in every.data_vars:
        one = ablation_effect(model, ids, 4)[name]
        torch.testing.assert_close(values(every[name])[..., 4], values(one), **CLOSE)


def test_the_last_mlp_has_nothing_downstream():
    model, ids = random_hooked(8), random_ids(9, batch=3)
    effects = ablation_effect(model, ids, 4)
    last = effects.sel(component="1_mlp_out")
    assert float(abs(last["downstream"]).max()) < 1e-10
    assert float(abs(effects.sel(component="embed")["downstream"]).min()) > 1e-6


def test_bad_requests_are_refused():
    with pytest.raises(InputError, match="no normalisation"):
        direct_effect(random_hooked(normalization_type=None), "abc", 3)
    with pytest.raises(InputError):
        direct_effect(random_hooked(), "abc", 3, pos=3)
    with pytest.raises(InputError):
        ablation_effect(random_hooked(), "abc", 11)
    with pytest.raises(InputError, match="contrast"):
        direct_effect(random_hooked(), "abc", None, 3)
