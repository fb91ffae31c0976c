"""Muon against the singular value decomposition, and its batching against one matrix at a time."""

from __future__ import annotations

import math

import pytest
import torch

from model.muon import Muon, orthogonalise


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(5, 7, 13), (5, 13, 7), (2, 11, 11)])
def test_orthogonalise_keeps_the_singular_vectors_and_levels_the_values(shape):
    matrices = random(*shape)
    u, s, vh = torch.linalg.svd(orthogonalise(matrices), full_matrices=False)
    u_before, _, vh_before = torch.linalg.svd(matrices, full_matrices=False)
    assert (s > 0.3).all()
    assert (s < 1.3).all()
    polar, polar_before = u @ vh, u_before @ vh_before
    torch.testing.assert_close(polar, polar_before, rtol=0, atol=1e-9)


def test_orthogonalise_does_not_mind_scale_or_rotation():
    matrices = random(3, 7, 13)
    rotation = torch.linalg.qr(random(7, 7, seed=1)).Q
    expected = rotation @ orthogonalise(matrices)
    torch.testing.assert_close(orthogonalise(1e-5 * rotation @ matrices), expected)
    torch.testing.assert_close(orthogonalise(matrices.mT), orthogonalise(matrices).mT)


def test_orthogonalise_leaves_zero_at_zero():
    assert orthogonalise(torch.zeros(2, 5, 7)).abs().max() == 0


def step_by_hand(weight, gradients, *, lr, momentum, decay):
    """Two Muon steps of one matrix, written from the definition."""
    average = torch.zeros_like(weight)
    for gradient in gradients:
        average = momentum * average + (1 - momentum) * gradient
        ahead = momentum * average + (1 - momentum) * gradient
        step = orthogonalise(ahead[None])[0]
        weight = (1 - lr * decay) * weight - lr * 0.2 * math.sqrt(max(weight.shape)) * step
    return weight


def test_step_is_the_definition_with_shapes_batched_and_stacks_split():
    settings = {"lr": 0.03, "momentum": 0.9}
    shapes = [(7, 13), (7, 13), (13, 7), (21, 13)]  # the last stacks three of (7, 13)
    parameters = [torch.nn.Parameter(random(*shape, seed=i)) for i, shape in enumerate(shapes)]
    before = [p.detach().clone() for p in parameters]
    groups = [{"params": parameters[:3]}, {"params": parameters[3:], "n_stacked": 3}]
    muon = Muon(groups, weight_decay=0.1, **settings)
    gradients = [
        [random(*shape, seed=10 * k + i) for k in (1, 2)] for i, shape in enumerate(shapes)
    ]
    for k in range(2):
        for parameter, pair in zip(parameters, gradients, strict=True):
            parameter.grad = pair[k]
        muon.step()
    for i in range(3):
        expected = step_by_hand(before[i], gradients[i], decay=0.1, **settings)
        torch.testing.assert_close(parameters[i].detach(), expected)
    expected = torch.cat(
        [
            step_by_hand(before[3][rows], [g[rows] for g in gradients[3]], decay=0.1, **settings)
            for rows in (slice(0, 7), slice(7, 14), slice(14, 21))
        ]
    )
    torch.testing.assert_close(parameters[3].detach(), expected)


def test_a_step_has_the_size_of_adamws():
    parameter = torch.nn.Parameter(torch.zeros(32, 48))
    parameter.grad = random(32, 48).float()
    Muon([parameter], lr=0.01).step()
    rms = parameter.detach().square().mean().sqrt()
    # 32 singular values near 1 in 32 x 48 entries, times 0.2 sqrt(48)
    assert 0.7 < rms / (0.01 * 0.2) < 1.3
