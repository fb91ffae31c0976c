from __future__ import annotations

import time

import pytest
import tiny_training as tiny
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model.gpt import GPT, next_token_loss
from model.throughput import flops_per_token, matmul_rate, model_flops_utilisation


@pytest.mark.parametrize("changes", [{}, {"d_mlp": 0}, {"n_layers": 3}])
def test_flops_are_those_that_torch_counts(changes):
    config = tiny.config(dropout=0.0, **changes)
    gpt, ids = GPT(config), torch.randint(12, (5, 7))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        next_token_loss(gpt(ids), ids).backward()
    # torch counts the whole square of scores, of which a causal model needs half
    square = 2 * config.n_layers * config.n_ctx * config.d_model * 6 // 2
    expected = 35 * (flops_per_token(config) + square)
    assert counter.get_total_flops() == expected


def test_utilisation_is_one_at_the_rate_of_the_machine():
    config = tiny.config()
    rate = matmul_rate(torch.device("cpu"), size=64)
    assert rate > 1e6
    assert model_flops_utilisation(config, rate / flops_per_token(config), rate) == pytest.approx(1)


def test_the_rate_is_of_the_fastest_product(monkeypatch):
    ticks = iter([0.0, 5.0, 10.0, 12.0] + [float(20 + i) for i in range(0, 80, 8)])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert matmul_rate(torch.device("cpu"), size=10) == pytest.approx(2 * 10**3 / 2.0)
