"""Gradient estimates: right to first order, exact where the model is linear, and mended where
they are known to fail."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from hook_oracle import logits_with_hooks
from random_models import random_hooked

from interp.attribution import attribution_patching
from interp.edges import edge_attribution
from interp.engine import trace
from interp.errors import InputError
from interp.graph import receivers_of, senders_of
from interp.inputs import contrast
from interp.metrics import logit_difference, rank
from interp.patching import activation_patching
from interp.paths import path_patching
from interp.sites import SITE_KINDS, Site, kinds_of

PAIR = (["abcdefg", "kbcdebc"], ["abhdefg", "abcdebc"])


@pytest.fixture(scope="module")
def model():
    return random_hooked(40)


def linear_model():
    """No LayerNorm, no MLP, and queries of 0: attention is uniform whatever happens."""
    model = random_hooked(41, attn_only=True, normalization_type=None)
    for block in model.blocks:
        block.attn.W_Q.zero_()
        block.attn.b_Q.zero_()
    return model


def test_every_kind_is_right_to_first_order(model):
    """The estimate is the slope of the metric along the patch, here by a central difference."""
    pair = contrast(model, *PAIR)
    metric = logit_difference(model, "a", "b")
    source, base = trace(model, pair.source), trace(model, pair.base)
    step = 1e-5
    for kind in kinds_of(model.cfg):
        if kind == "attn_scores":
            continue
        has_layer = SITE_KINDS[kind].has_layer
        over = ("layer",) if has_layer else {}
        ours = attribution_patching(model, pair, metric, kind, over=over)
        for layer in range(2) if has_layer else [None]:
            site = Site(kind, layer)
            change = source[site] - base[site]
            ends = [
                logits_with_hooks(model, pair.base, {site: base[site] + sign * step * change})
                for sign in (1, -1)
            ]
            high, low = (end[:, -1, 0] - end[:, -1, 1] for end in ends)
            slope = (high - low) / (2 * step)
            mine = ours[:, layer] if has_layer else ours
            np.testing.assert_allclose(mine, slope, rtol=0, atol=1e-7, err_msg=f"{site}")


def test_axes_that_are_not_swept_add_up(model):
    pair = contrast(model, *PAIR)
    metric = logit_difference(model, "a", "b")
    fine = attribution_patching(model, pair, metric, "z", over=("layer", "head", "pos"))
    coarse = attribution_patching(model, pair, metric, "z")
    np.testing.assert_allclose(fine.sum("pos"), coarse, rtol=0, atol=1e-12)
    both = attribution_patching(model, pair, metric, ("z", "v"))
    values = attribution_patching(model, pair, metric, "v")
    np.testing.assert_allclose(both, coarse + values, rtol=0, atol=1e-12)
    part = attribution_patching(
        model, pair, metric, "z", over={"pos": [5, 3], "layer": [1], "head": None}
    )
    expected = fine.transpose("batch", "pos", "layer", "head")[:, [5, 3]][:, :, [1]]
    np.testing.assert_allclose(part, expected, rtol=0, atol=1e-12)
    window = attribution_patching(model, pair, metric, "z", over=("layer", "head"), window=2)
    np.testing.assert_allclose(window[:, 0], coarse.sum("layer"), rtol=0, atol=1e-12)


def test_exact_on_a_linear_model():
    model = linear_model()
    pair = contrast(model, *PAIR)
    metric = logit_difference(model, "a", "b")
    for kind in ("resid_pre", "attn_out", "v", "z"):
        over = ("layer", "pos")
        exact = activation_patching(model, pair, metric, kind, over=over)
        for method in ("atp", "ig"):
            ours = attribution_patching(model, pair, metric, kind, over=over, method=method)
            np.testing.assert_allclose(ours, exact.raw - exact.base, rtol=0, atol=1e-10)
    edges = path_patching(model, pair, metric).change
    for method in ("eap", "eap-ig"):
        ours = edge_attribution(model, pair, metric, method=method)
        np.testing.assert_allclose(ours, edges, rtol=0, atol=1e-10)


def test_integrated_gradients_of_the_whole_input_are_the_whole_change(model):
    pair = contrast(model, *PAIR)
    metric = logit_difference(model, "a", "b")
    exact = activation_patching(model, pair, metric, "embed")
    whole = exact.source - exact.base
    errors = []
    for steps in (5, 40, 320):
        nodes = attribution_patching(model, pair, metric, "embed", method="ig", steps=steps)
        edges = edge_attribution(model, pair, metric, method="eap-ig", steps=steps)
        np.testing.assert_allclose(
            edges.sel(sender="embed").sum("receiver"), nodes.sum("pos"), rtol=0, atol=1e-10
        )
        errors.append(float(np.abs(nodes.sum("pos") - whole).max()))
    assert errors[2] < errors[1] / 8 < errors[0]
    assert errors[2] < 1e-3


def test_edges_equal_gradients_at_transformer_lens_split_inputs(model):
    settings = {"use_split_qkv_input": True, "use_hook_mlp_in": True, "use_attn_result": True}
    split = random_hooked(40, **settings)
    pair = contrast(model, *PAIR)
    ours = edge_attribution(model, pair, logit_difference(model, "a", "b"))
    _, source = split.run_with_cache(pair.source)
    slopes, values = {}, {}
    split.requires_grad_(True)

    def keep(gradient, hook):
        slopes[hook.name] = gradient.clone()

    names = [name for name in split.hook_dict if name.endswith(("_input", "mlp_in", "resid_post"))]
    written = ("hook_result", "mlp_out", "embed")
    outs = [name for name in split.hook_dict if name.endswith(written)]
    with split.hooks(
        fwd_hooks=[(n, lambda v, hook: values.update({hook.name: v.detach()})) for n in outs],
        bwd_hooks=[(name, keep) for name in names],
    ):
        logits = split(pair.base)[:, -1]
        (logits[:, 0] - logits[:, 1]).sum().backward()
    for s, sender in enumerate(senders_of(model.cfg)):
        if sender.site.kind == "z":
            name = f"blocks.{sender.site.layer}.attn.hook_result"
            change = (source[name] - values[name])[:, :, sender.site.head]
        else:
            change = source[sender.site.hook_name] - values[sender.site.hook_name]
        for r, receiver in enumerate(receivers_of(model.cfg)):
            if not receiver.hears(sender):
                assert np.isnan(ours[:, s, r]).all()
                continue
            layer, site = receiver.stream.layer, receiver.site
            if site is None:
                slope = slopes[f"blocks.{layer}.hook_resid_post"]
            elif site.kind == "mlp_pre":
                slope = slopes[f"blocks.{layer}.hook_mlp_in"]
            else:
                slope = slopes[f"blocks.{layer}.hook_{site.kind}_input"][:, :, site.head]
            np.testing.assert_allclose(
                ours[:, s, r],
                (change * slope).sum((1, 2)),
                rtol=0,
                atol=1e-10,
                err_msg=f"{sender.name} -> {receiver.name}",
            )


def test_leaving_out_layers_equals_detaching_with_hooks(model):
    pair = contrast(model, *PAIR)
    ours = attribution_patching(
        model, pair, logit_difference(model, "a", "b"), "z", over=("layer", "pos"), method="atp*"
    )
    _, source = model.run_with_cache(pair.source)
    expected = torch.zeros(2, 2, 7, dtype=torch.float64)
    twin = random_hooked(40).requires_grad_(True)
    for dropped in range(2):
        slopes, values = {}, {}

        def keep(gradient, hook, slopes=slopes):
            slopes[hook.name] = gradient.clone()

        def hold(value, hook, values=values):
            values[hook.name] = value.detach()

        names = [f"blocks.{layer}.attn.hook_z" for layer in range(2)]
        ignore = [
            (f"blocks.{dropped}.{out}", lambda value, hook: value.detach())
            for out in ("hook_attn_out", "hook_mlp_out")
        ]
        with twin.hooks(
            fwd_hooks=[*ignore, *((name, hold) for name in names)],
            bwd_hooks=[(name, keep) for name in names],
        ):
            logits = twin(pair.base)[:, -1]
            (logits[:, 0] - logits[:, 1]).sum().backward()
        for layer, name in enumerate(names):
            if name in slopes:
                products = (source[name] - values[name]) * slopes[name]
                expected[:, layer] += products.sum((2, 3)).abs()
    np.testing.assert_allclose(ours, expected / (2 - 1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("over", [("layer", "head"), ("layer", "head", "pos")])
def test_a_saturated_softmax_blinds_gradients_and_the_correction_sees(over):
    model = zoo.saturated_model()
    metric = logit_difference(model, 1, 2)
    pair = contrast(model, [[0, 1, 2, 4]], [[0, 1, 2, 3]])
    exact = activation_patching(model, pair, metric, "q", over=over)
    change = (exact.raw - exact.base).to_numpy()
    estimate = attribution_patching(model, pair, metric, "q", over=over)
    corrected = attribution_patching(model, pair, metric, "q", over=over, method="atp*")
    assert np.abs(change).max() == pytest.approx(8)
    assert np.abs(estimate).max() < 1e-20
    np.testing.assert_allclose(corrected, np.abs(change), rtol=0, atol=1e-9)


@pytest.mark.parametrize("over", [("layer", "head"), ("layer", "head", "pos")])
@pytest.mark.parametrize("kind", ["q", "k"])
def test_the_softmax_correction_is_exact_when_the_rest_is_linear(kind, over):
    model = random_hooked(42, n_layers=1, attn_only=True, normalization_type=None)
    pair = contrast(model, ["abcdefg", "ggaabca"], ["hijkabc", "gbaacka"])
    metric = logit_difference(model, "a", "b")
    exact = activation_patching(model, pair, metric, kind, over=over)
    assert np.abs(exact.raw - exact.base).max() > 1e-3
    corrected = attribution_patching(model, pair, metric, kind, over=over, method="atp*")
    np.testing.assert_allclose(corrected, np.abs(exact.raw - exact.base), rtol=0, atol=1e-10)


def test_cancelling_paths_blind_gradients_and_leaving_out_a_layer_sees():
    model = zoo.gate_model("cancel")
    metric = logit_difference(model, 1, 0)
    pair = contrast(model, [[0, 0, 2]], [[1, 0, 2]])
    exact = activation_patching(model, pair, metric, "z")
    estimate = attribution_patching(model, pair, metric, "z")
    corrected = attribution_patching(model, pair, metric, "z", method="atp*")
    assert float(exact.raw[0, 0, 0] - exact.base[0]) == pytest.approx(-4)
    assert float(np.abs(estimate).max()) < 1e-12
    assert corrected[0].to_numpy().argmax() == 0
    assert float(corrected[0, 0, 0]) > 1


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m, p, d: attribution_patching(m, p, rank(m, "a"), "z"), "'rank' has no gradient"),
        (lambda m, p, d: attribution_patching(m, p, d, "z", method="at"), "Method 'at' was asked"),
        (lambda m, p, d: attribution_patching(m, p, d, "attn_scores"), "minus infinity at unseen"),
        (
            lambda m, p, d: attribution_patching(m, p, d, "z", method="ig", steps=0),
            "steps=0, but at least 1",
        ),
        (lambda m, p, d: edge_attribution(m, p, d, method="atp"), "'eap' and 'eap-ig' exist"),
    ],
)
def test_wrong_calls_are_refused(model, call, sentence):
    with pytest.raises(InputError, match=sentence):
        call(model, contrast(model, *PAIR), logit_difference(model, "a", "b"))
