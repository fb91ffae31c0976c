"""Path patching equals the same edge patched through TransformerLens' split inputs, and finds
planted circuits."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import zoo
from random_models import random_hooked

from interp.engine import trace
from interp.errors import InputError
from interp.graph import edge_mask, receivers_of, senders_of
from interp.inputs import contrast
from interp.metrics import kl_divergence, logit_difference
from interp.patching import activation_patching
from interp.paths import edge_effects, path_patching

SHAPES = {
    "course": {},
    "three layers": {"n_layers": 3, "n_heads": 2, "d_head": 7, "d_model": 15},
    "attention only": {"attn_only": True},
    "folded LayerNorm": {"normalization_type": "LNPre", "act_fn": "relu"},
    "no LayerNorm": {"normalization_type": None},
}
SPLIT = {"use_split_qkv_input": True, "use_hook_mlp_in": True, "use_attn_result": True}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_edge_equals_split_inputs(shape):
    model = random_hooked(30, **shape)
    split = random_hooked(30, **shape, **SPLIT)
    pair = contrast(model, ["abcdefg", "kbcdebc"], ["abhdefg", "abcdebc"])
    ours = path_patching(model, pair, logit_difference(model, "a", "b"))
    _, source = split.run_with_cache(pair.source)
    _, base = split.run_with_cache(pair.base)
    senders, receivers = senders_of(model.cfg), receivers_of(model.cfg)

    def change(node):
        if node.site.kind == "z":
            name = f"blocks.{node.site.layer}.attn.hook_result"
            return (source[name] - base[name])[:, :, node.site.head]
        return source[node.site.hook_name] - base[node.site.hook_name]

    for r, receiver in enumerate(receivers):
        for s, sender in enumerate(senders):
            if not receiver.hears(sender):
                assert np.isnan(ours.raw[:, s, r]).all()
                continue
            delta, layer = change(sender), receiver.stream.layer

            def add(value, hook, delta=delta, site=receiver.site):
                value = value.clone()
                at = (
                    (slice(None), slice(None), site.head) if site and site.head is not None else ...
                )
                value[at] = value[at] + delta
                return value

            if receiver.site is None:
                name = f"blocks.{layer}.hook_resid_post"
            elif receiver.site.kind == "mlp_pre":
                name = f"blocks.{layer}.hook_mlp_in"
            else:
                name = f"blocks.{layer}.hook_{receiver.site.kind}_input"
            with torch.no_grad():
                logits = split.run_with_hooks(pair.base, fwd_hooks=[(name, add)])[:, -1]
            np.testing.assert_allclose(
                ours.raw[:, s, r],
                logits[:, 0] - logits[:, 1],
                rtol=0,
                atol=1e-10,
                err_msg=f"{sender.name} -> {receiver.name}",
            )


def test_number_of_edges_is_the_formula():
    for n_layers, n_heads, expected in [(4, 4, 479), (12, 12, 32491)]:
        model = random_hooked(n_layers=n_layers, n_heads=n_heads)
        # The formula counts the two embeddings as one sender.
        mask = edge_mask(senders_of(model.cfg)[1:], receivers_of(model.cfg))
        assert int(mask.sum()) == expected


@pytest.mark.parametrize("layer_norm", [False, True], ids=["no LayerNorm", "LayerNorm"])
def test_planted_nodes_are_found_and_inert_heads_are_exactly_zero(layer_norm):
    model = zoo.induction_model(layer_norm=layer_norm, distractors=not layer_norm)
    pair, _ = zoo.induction_contrasts()["first A"]
    result = activation_patching(model, pair, zoo.induction_metric(model), "z")
    fraction = result.fraction[0].to_numpy()
    np.testing.assert_allclose([fraction[0, 0], fraction[1, 1]], 1, atol=1e-9)
    fraction[0, 0] = fraction[1, 1] = 0
    np.testing.assert_allclose(fraction, 0, atol=1e-12 if layer_norm else 0)


@pytest.mark.parametrize("layer_norm", [False, True], ids=["no LayerNorm", "LayerNorm"])
def test_planted_edges_are_found_with_precision_and_recall_one(layer_norm):
    model = zoo.induction_model(layer_norm=layer_norm, distractors=not layer_norm)
    metric = zoo.induction_metric(model)
    found = set()
    for pair, truth in zoo.induction_contrasts().values():
        edges = _large(path_patching(model, pair, metric).change[0])
        assert edges == truth
        found |= edges
    if not layer_norm:
        # With LayerNorm, positions in a wrong order soften L0H0's attention, so that it writes a
        # shorter vector and moves the divisor of all that read after it: a real effect besides.
        found |= _position_edges(model, metric)
    expected = {edge for edge in zoo.INDUCTION_EDGES if not layer_norm or edge[0] != "pos_embed"}
    assert found == expected


def _large(change):
    table = change.to_dataframe()["change"].dropna()
    return set(table[table.abs() > 1e-6].index)


def _position_edges(model, metric):
    """Edges through which positions act: the source run has its positions in another order."""
    pair, _ = zoo.induction_contrasts()["B"]
    shuffled = copy.deepcopy(model)
    order = torch.tensor([4, 0, 6, 2, 7, 1, 3, 8, 5])
    shuffled.pos_embed.W_pos.data[:9] = model.pos_embed.W_pos[order]
    senders, receivers = senders_of(model.cfg), receivers_of(model.cfg)
    source, base = trace(shuffled, pair.base), trace(model, pair.base)
    effect = edge_effects(source, base, metric, senders, receivers)[0] - 10
    places = (effect.nan_to_num(0).abs() > 1e-6).nonzero().tolist()
    return {(senders[s].name, receivers[r].name) for s, r in places}


@pytest.mark.parametrize(
    ("gate", "noising", "denoising"),
    [("and", (True, True), (False, False)), ("or", (False, False), (True, True))],
)
def test_gates_show_themselves_in_one_direction(gate, noising, denoising):
    model = zoo.gate_model(gate)
    metric = logit_difference(model, 1, 0)
    pair = contrast(model, [[0, 0, 2]], [[1, 1, 2]])
    for contrast_, expected in [(pair, noising), (pair.reversed(), denoising)]:
        result = activation_patching(model, contrast_, metric, "z", over=("head",))
        np.testing.assert_allclose(result.fraction[0], expected, atol=1e-9)


def test_a_backup_head_hides_what_both_carry():
    model = zoo.gate_model("backup")
    metric = logit_difference(model, 1, 0)
    pair = contrast(model, [[0, 0, 2]], [[1, 0, 2]])
    each = activation_patching(model, pair, metric, "z", over=("layer", "head"))
    both = activation_patching(model, pair, metric, "z", over=("layer",))
    np.testing.assert_allclose(each.fraction[0, 0], [0, 0], atol=1e-9)
    np.testing.assert_allclose(both.fraction[0, 0], 1, atol=1e-9)


def test_a_choice_of_nodes():
    model = random_hooked(31)
    pair = contrast(model, "abcdefg", "abhdefg")
    whole = path_patching(model, pair, kl_divergence())
    part = path_patching(
        model, pair, kl_divergence(), senders=["L0H1", "embed"], receivers=["1_mlp_in", "L0H0.q"]
    )
    assert part.sender.to_numpy().tolist() == ["L0H1", "embed"]
    expected = whole.raw.sel(sender=part.sender, receiver=part.receiver)
    np.testing.assert_allclose(part.raw, expected, rtol=0, atol=1e-12)
    with pytest.raises(InputError, match="'L9H0' was given, but the model has embed, pos_embed"):
        path_patching(model, pair, kl_divergence(), senders=["L9H0"])
