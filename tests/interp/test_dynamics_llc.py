"""The local learning coefficient where it is known: minima whose coefficient is a theorem."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_models import random_hooked
from torch import Tensor

import interp
from interp.dynamics.llc import local_learning_coefficient, sgld

N_BETA = 1000.0
N_CHAINS = 2000


def coefficient(loss, d: int, step_size: float, steps: int = 1500) -> tuple[float, float]:
    """n beta (E[L] - L(0)) and its standard error, over independent chains run side by side."""
    w = torch.zeros(N_CHAINS, d, dtype=torch.double, requires_grad=True)
    seen: list[Tensor] = []

    def total() -> Tensor:
        each = loss(w)
        seen.append(each.detach())
        return each.sum()

    generator = torch.Generator().manual_seed(d)
    sgld([w], total, n_beta=N_BETA, step_size=step_size, localisation=0.0, steps=steps,
         generator=generator)  # fmt: skip
    late = N_BETA * torch.stack(seen[steps // 2 :]).mean(0)
    return float(late.mean()), float(late.std() / N_CHAINS**0.5)


@pytest.mark.parametrize("d", [1, 5])
def test_a_regular_minimum_has_half_its_dimension(d):
    curvature = torch.linspace(0.5, 2.0, d, dtype=torch.double)
    found, error = coefficient(lambda w: (curvature * w.square()).sum(-1), d, 2e-5)
    assert found == pytest.approx(d / 2, rel=0.04)
    assert error < 0.02 * d


@pytest.mark.parametrize("k", [2, 3])
def test_a_flatter_minimum_has_less(k):
    found, _ = coefficient(lambda w: w[:, 0] ** (2 * k), 1, 1e-3 if k == 2 else 2e-3)
    assert found == pytest.approx(1 / (2 * k), rel=0.05)


def test_a_crossing_of_two_valleys_has_one_half():
    # (w1 w2)^2 with a weak pull home: 1/2 as n beta grows, less log terms that fade slowly.
    w = torch.zeros(N_CHAINS, 2, dtype=torch.double, requires_grad=True)
    seen: list[Tensor] = []

    def total() -> Tensor:
        each = (w[:, 0] * w[:, 1]).square()
        seen.append(each.detach())
        return each.sum()

    sgld([w], total, n_beta=1e6, step_size=1e-5, localisation=1.0, steps=3000,
         generator=torch.Generator().manual_seed(2))  # fmt: skip
    found = 1e6 * float(torch.stack(seen[1500:]).mean())
    # The same expectation by numerical integration of the density that the chain samples.
    x = torch.logspace(-7, 1, 2000, dtype=torch.double)
    a, b = x[:, None], x[None, :]
    energy = 1e6 * (a * b).square()
    weight = (-energy - (a.square() + b.square()) / 2).exp() * a * b
    exact = float((energy * weight).sum() / weight.sum())
    assert found == pytest.approx(exact, rel=0.15)
    assert 0.3 < exact < 0.5


def test_on_a_model_chains_start_at_the_weights_and_leave_them_alone():
    model = random_hooked()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = np.random.default_rng(0).integers(0, 11, (40, 7))
    settings = {"steps": 6, "burn_in": 2, "chains": 3, "batch_size": 5, "step_size": 1e-7}
    found = local_learning_coefficient(model, rows, **settings)
    assert found["llc"].shape == (3,)
    np.testing.assert_array_equal(found["loss"][:, 0], 0)
    assert len(set(found["llc"].to_numpy())) == 3
    expected = 40 / np.log(40) * found["loss"][:, 2:].mean("draw")
    np.testing.assert_allclose(found["llc"], expected)
    assert float(found["spread"]) == pytest.approx(float(found["llc"].std(ddof=1)))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    again = local_learning_coefficient(model, rows, **settings)
    assert again.identical(found)


@pytest.mark.parametrize(
    "wrong", [{"chains": 0}, {"burn_in": 9, "steps": 9}, {"step_size": 0.0}, {"step_size": 1e3}]
)
def test_what_cannot_be_sampled_is_said(wrong):
    rows = np.random.default_rng(0).integers(0, 11, (9, 7))
    settings = {"steps": 40, "burn_in": 2, "chains": 1} | wrong
    with pytest.raises(interp.InputError):
        local_learning_coefficient(random_hooked(), rows, **settings)
