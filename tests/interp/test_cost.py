"""What sweeps cost, counted in floating-point operations instead of seconds."""

from __future__ import annotations

import pytest
import torch
from random_models import random_hooked
from torch.utils.flop_counter import FlopCounterMode

from interp.attribution import attribution_patching
from interp.edges import edge_attribution
from interp.inputs import Contrast
from interp.metrics import logit_difference
from interp.patching import activation_patching

L, H, T, D, M, V = 4, 4, 64, 128, 512, 65


@pytest.fixture(scope="module")
def model():
    return random_hooked(
        0,
        n_layers=L,
        n_heads=H,
        d_head=D // H,
        d_model=D,
        d_mlp=M,
        d_vocab=V,
        n_ctx=T,
        dtype=torch.float32,
    )


def pair_changed_at(pos: int) -> Contrast:
    base = torch.arange(T)[None] % V
    source = base.clone()
    source[0, pos] = (base[0, pos] + 7) % V
    return Contrast(source, base)


def flops(call) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.fixture(scope="module")
def one_forward(model):
    return flops(lambda: model(pair_changed_at(0).base))


def test_forward_costs_the_formula(one_forward):
    a, alpha, U = 8 * D**2 + 4 * D * M, 4 * D * T, 2 * D * V
    assert one_forward == L * T * (a + alpha) + T * U


def test_a_map_of_layers_and_positions_costs_a_tenth_of_full_forwards(model, one_forward):
    """Each row costs its suffix from its layer on, and the first layer has one row that differs."""
    metric = logit_difference(model, 1, 2)
    pair = pair_changed_at(0)
    sweep = flops(lambda: activation_patching(model, pair, metric, "resid_pre"))
    assert sweep < L * T * one_forward / 10


def test_a_changed_token_late_in_the_prompt_saves_what_comes_before(model):
    metric = logit_difference(model, 1, 2)
    early, late = (
        flops(lambda p=pos: activation_patching(model, pair_changed_at(p), metric, "resid_pre"))
        for pos in (0, 43)
    )
    assert late < early / 5


@pytest.mark.parametrize("kind", ["resid_mid", "k", "pattern"])
def test_source_and_base_share_what_comes_before_the_changed_token(model, one_forward, kind):
    """Two runs in full would be two forwards; the last layer's cells add next to nothing."""
    metric, over = logit_difference(model, 1, 2), {"layer": [L - 1]}
    pair = pair_changed_at(T - 4)
    sweep = flops(lambda: activation_patching(model, pair, metric, kind, over=over))
    assert one_forward / 2 < sweep < 1.1 * one_forward


def test_all_edges_cost_at_most_six_forwards(model, one_forward):
    metric = logit_difference(model, 1, 2)
    pair = pair_changed_at(21)
    assert flops(lambda: edge_attribution(model, pair, metric)) <= 6 * one_forward
    assert flops(lambda: attribution_patching(model, pair, metric, "z")) <= 6 * one_forward
