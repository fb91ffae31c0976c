"""The lens reads what the model would say; the attribution adds up to what it said."""

from __future__ import annotations

import pytest
import torch
from agreement import CLOSE, QUESTIONS, VARIANTS, values, variant
from folding import folded
from random_models import random_hooked, random_ids

from interp import InputError, direct_logit_attribution, logit_lens
from interp.components import write_kinds, writes
from interp.engine import trace
from interp.norms import state_names


@pytest.fixture(params=VARIANTS, scope="module")
def model(request):
    return variant(request.param, 3)


@pytest.fixture(params=[1, 3], scope="module")
def ids(request):
    return random_ids(5, batch=request.param)


def test_each_state_is_read_by_the_models_own_last_layers(model, ids):
    _, cache = model.run_with_cache(ids)
    states, labels = cache.accumulated_resid(
        apply_ln=False, incl_mid=not model.cfg.attn_only, return_labels=True
    )
    lens = logit_lens(model, ids, logits=True)
    assert list(lens["state"].to_numpy()) == labels == state_names(model.cfg)
    for row, state in zip(values(lens["logits"]), states, strict=True):
        final = getattr(model, "ln_final", torch.nn.Identity())
        torch.testing.assert_close(row, model.unembed(final(state)), **CLOSE)
    torch.testing.assert_close(values(lens["logits"])[-1], model(ids), **CLOSE)
    assert float(abs(lens["kl_to_final"][-1]).max()) < 1e-12


def test_lens_measures_are_what_torch_says_of_its_logits(model, ids):
    lens = logit_lens(model, ids, target=4, top=3, logits=True)
    logits = values(lens["logits"])
    mine = torch.distributions.Categorical(logits=logits)
    final = torch.distributions.Categorical(logits=logits[-1:].expand_as(logits))
    kl = torch.distributions.kl_divergence(final, mine)
    torch.testing.assert_close(values(lens["entropy"]), mine.entropy(), **CLOSE)
    torch.testing.assert_close(values(lens["kl_to_final"]), kl, **CLOSE)
    torch.testing.assert_close(values(lens["probability"]), mine.probs[..., 4], **CLOSE)
    order = logits.argsort(-1, descending=True)
    assert torch.equal(values(lens["rank"]), (order == 4).int().argmax(-1))
    assert torch.equal(values(lens["top_ids"]), order[..., :3])
    for row, state in zip(values(lens["cross_entropy"]), logits, strict=True):
        assert row[:, -1].isnan().all()
        want = torch.nn.functional.cross_entropy(
            state[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        torch.testing.assert_close(row[:, :-1].flatten(), want, **CLOSE)


def test_lens_follows_the_final_prediction_and_says_when_it_settles(model, ids):
    lens = logit_lens(model, ids, top=1)
    best = values(lens["top_ids"])[..., 0]
    assert torch.equal(values(lens["followed"]), best[-1])
    for row in range(len(ids)):
        for pos in range(ids.shape[1]):
            path = best[:, row, pos].tolist()
            first = min(i for i in range(len(path)) if len(set(path[i:])) == 1)
            assert int(lens["depth"][row, pos]) == first


@pytest.mark.parametrize(("target", "contrast", "pos"), QUESTIONS)
def test_parts_sum_to_the_logit(model, ids, target, contrast, pos):
    parts = direct_logit_attribution(model, ids, target, contrast, pos=pos)
    logits = model(ids)
    want = logits if target is None else logits[..., target]
    if contrast is not None:
        want = want - logits[..., contrast]
    want = want if pos is None else want[:, [pos]]
    torch.testing.assert_close(values(parts["logit"]), want, **CLOSE)
    torch.testing.assert_close(values(parts["part"].sum("component")), want, **CLOSE)
    assert float(abs(parts["remainder"]).max()) < 1e-10
    assert (parts["pos"] == (list(range(7)) if pos is None else [pos % 7])).all()


def test_a_part_is_what_leaves_the_logit_with_its_component(model, ids):
    """Prediction = intervention: the write is taken out with hooks, the scale held."""
    parts = direct_logit_attribution(model, ids, 4)
    _, cache = model.run_with_cache(ids)
    run, last = trace(model, ids), f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    for write in writes(run):

        def remove(x, hook, gone=write.value):
            return x - gone

        def hold(scale, hook):
            return cache[hook.name]

        hooks = [(last, remove)]
        if model.cfg.normalization_type is not None:
            hooks.append(("ln_final.hook_scale", hold))
        change = model(ids) - model.run_with_hooks(ids, fwd_hooks=hooks)
        want = values(parts["part"].sel(component=write.label))
        torch.testing.assert_close(change[..., 4], want, **CLOSE)


def test_writes_sum_to_the_stream_and_are_the_models(model, ids):
    run = trace(model, ids)
    made = list(writes(run))
    torch.testing.assert_close(sum(write.value for write in made), run.stream[-1], **CLOSE)
    assert [(w.label, w.kind, -1 if w.layer is None else w.layer) for w in made] == write_kinds(
        model
    )
    by_label = {write.label: write.value for write in made}
    for layer in range(model.cfg.n_layers):
        heads = sum(by_label[f"L{layer}H{head}"] for head in range(model.cfg.n_heads))
        want = run["attn_out", layer] - by_label[f"{layer}_attn_bias"]
        torch.testing.assert_close(heads, want, **CLOSE)


def test_a_heads_write_has_no_constant_part(ids):
    """Whatever a head attends to, value bias and LayerNorm bias arrive: they are the bias's."""
    model = random_hooked(3)
    _, cache = model.run_with_cache(ids)
    by_label = {write.label: write.value for write in writes(trace(model, ids))}
    for layer, block in enumerate(model.blocks):
        y = cache[f"blocks.{layer}.ln1.hook_normalized"] * block.ln1.w
        for head in range(model.cfg.n_heads):
            pattern = cache[f"blocks.{layer}.attn.hook_pattern"][:, head]
            want = pattern @ (y @ block.attn.W_V[head]) @ block.attn.W_O[head]
            torch.testing.assert_close(by_label[f"L{layer}H{head}"], want, **CLOSE)


@pytest.mark.parametrize("centre_writers", [False, True])
def test_attribution_does_not_depend_on_folding(ids, centre_writers):
    model = random_hooked(3)
    plain = direct_logit_attribution(model, ids, 4, 7)
    twin = folded(model, centre_writers=centre_writers)
    torch.testing.assert_close(twin(ids), model(ids), **CLOSE)
    again = direct_logit_attribution(twin, ids, 4, 7)
    torch.testing.assert_close(values(again["part"]), values(plain["part"]), **CLOSE)


def test_results_carry_labels(model):
    parts = direct_logit_attribution(model, "abcab", "e", "f", pos=3)
    assert parts["part"].dims == ("component", "batch", "pos")
    assert parts["tokens"].to_numpy().tolist() == ["a"]
    assert parts["part"].attrs["units"] == "logits"
    assert parts.attrs["settings"] == {"target": "e", "contrast": "f"}
    assert parts.attrs["prompt"] == "abcab"
    assert parts["component"].to_numpy()[0] == "embed"
    assert parts["component"].to_numpy()[-1] == "bias"
    assert parts.sel(component="L1H2")["layer"] == 1
    assert logit_lens(model, "abcab").attrs["prompt"] == "abcab"


def test_bad_requests_are_refused():
    model = random_hooked()
    for wrong in (
        lambda: logit_lens(model, "abc", top=0),
        lambda: logit_lens(model, "abc", top=12),
        lambda: logit_lens(model, "abc", target="ab"),
        lambda: direct_logit_attribution(model, "abc", 11),
        lambda: direct_logit_attribution(model, "abc", None, 3),
        lambda: direct_logit_attribution(model, "abc", 2, pos=3),
        lambda: direct_logit_attribution(model, "abc", 2, pos=-4),
    ):
        with pytest.raises(InputError):
            wrong()
