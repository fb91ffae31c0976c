"""What LayerNorm does to lengths, in float64 at 1e-10 and in float32 at 1e-5 sqrt(d)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sphere_rows import EPS, Exact, constant_rows, rows

from interp.norms import Norm, mean_removed
from interp.sphere.laws import (
    before_layernorm,
    chord,
    direction,
    kappa_of,
    predicted_radius,
    radius_deficit,
    rescaling_distance,
    row_norm,
    sigma_from_rho,
)

RELATIVE = 1e-10


def layernorm(x: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    d, like = x.shape[-1], x
    return Norm("LN", eps, like.new_ones(d), like.new_zeros(d))(x)


def close(a: torch.Tensor, b: torch.Tensor, rtol: float = RELATIVE, atol: float = 0.0) -> None:
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@given(rows())
def test_radius_is_the_exact_formula_and_below_the_sphere(x):
    """L1."""
    exact, d = Exact(x), x.shape[-1]
    kappa = kappa_of(mean_removed(x), EPS)
    close(predicted_radius(kappa, d), exact.like("radius"))
    close(row_norm(layernorm(x)), exact.like("radius"))
    close(layernorm(x).sum(-1) / exact.like("radius"), torch.zeros(3).double(), atol=1e-10)
    close(kappa, EPS / exact.like("variance"))
    assert (radius_deficit(kappa, d) > 0).all()
    rho = predicted_radius(kappa, d) / d**0.5
    close(1 / rho.square() - 1, kappa, atol=1e-14)


@given(rows(dtype=torch.float32))
def test_radius_in_float32(x):
    d = x.shape[-1]
    want = Exact(x).like("radius")
    for radius in (row_norm(layernorm(x)), predicted_radius(kappa_of(mean_removed(x), EPS), d)):
        close(radius.double(), want, rtol=0, atol=1e-5 * d**0.5)


@given(rows())
def test_deficit_keeps_its_digits(x):
    """L2, where sqrt(d) - radius in float64 would have lost them all."""
    exact, d = Exact(x), x.shape[-1]
    kappa = np.longdouble(EPS) / exact.variance
    # 1 - (1+k)^(-1/2) in extended precision cancels too: use expm1 and log1p there.
    want = -np.expm1(-np.log1p(kappa) / 2) * np.sqrt(np.longdouble(d))
    got = radius_deficit(kappa_of(mean_removed(x), EPS), d)
    close(got, torch.from_numpy(want.astype(np.float64)))
    first_order = d**0.5 * kappa / 2
    small = kappa < 1e-2
    assert (abs(first_order[small] / want[small] - 1) <= 0.76 * kappa[small] + 1e-9).all()


@given(rows(), st.floats(-6, 6))
def test_rescaling_is_purely_radial(x, exponent):
    """L3."""
    c = 10.0**exponent
    before, after = Exact(x), Exact(x * c)
    close(direction(mean_removed(x * c)), direction(mean_removed(x)), atol=1e-10)
    close(direction(layernorm(x * c)), direction(layernorm(x)), atol=1e-10)
    moved = np.sqrt(((after.y - before.y) ** 2).sum(-1)).astype(np.float64)
    # The two radii share their leading digits when kappa is tiny: the reference has 64 bits.
    close(rescaling_distance(x, c, EPS), torch.from_numpy(moved), atol=1e-13)


@given(rows())
def test_layernorm_is_one_to_one_on_mean_free_vectors(x):
    """L4, L5: only the mean is lost. Digits go as 1 - rho^2 does, so sigma stays below 10."""
    x = mean_removed(x / row_norm(mean_removed(x)).amax())
    back = before_layernorm(layernorm(x), EPS)
    sigma = row_norm(x) / x.shape[-1] ** 0.5
    worst = (torch.finfo(torch.float64).eps * 100 * (1 + sigma.square() / EPS)).amax().item()
    close(back, x, rtol=0, atol=max(worst, 1e-10))
    rho = row_norm(layernorm(x)) / x.shape[-1] ** 0.5
    close(sigma_from_rho(rho, EPS), sigma, rtol=max(worst, 1e-10))


def test_float32_output_forgets_a_large_sigma():
    """L5: the published irreversibility is one of rounding; measured medians, in powers of ten."""
    generator = torch.Generator().manual_seed(0)
    for sigma, low, high in (
        (0.01, 1e-8, 1e-5),
        (0.1, 1e-6, 1e-3),
        (1.0, 1e-4, 1e-1),
        (10, 1e-2, 2),
    ):
        x = torch.randn(400, 128, generator=generator) * sigma
        rho = row_norm(layernorm(x)).double() / 128**0.5
        true = row_norm(mean_removed(x.double())) / 128**0.5
        error = (sigma_from_rho(rho.clamp(max=1 - 1e-9), EPS) / true - 1).abs().median()
        assert low < error < high


@given(constant_rows())
def test_constant_rows_go_to_the_centre(x):
    close(layernorm(x), torch.zeros_like(x), atol=1e-10)
    kappa = kappa_of(mean_removed(x), EPS)
    assert (predicted_radius(kappa, x.shape[-1]) < 1e-9).all()
    close(radius_deficit(kappa, x.shape[-1]), torch.full((3,), x.shape[-1] ** 0.5, dtype=x.dtype))


@given(constant_rows(dtype=torch.float32))
def test_constant_rows_in_float32_go_to_the_centre(x):
    close(layernorm(x), torch.zeros_like(x), atol=1e-5)


@given(rows(), st.floats(-8, 2), st.integers(0, 2**31))
def test_the_chord_of_an_update(x, exponent, seed):
    """L7, for updates from a hundred millionth of x to a hundred times x."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).double()
    update = noise * row_norm(mean_removed(x))[..., None] * 10.0**exponent
    after = Exact(x, plus=update)
    want = torch.from_numpy((after.y - Exact(x).y).astype(np.float64))
    got = chord(x, update, EPS)
    size = row_norm(update) / after.like("s")
    assert (row_norm(got - want) <= RELATIVE * size).all()
    close(got, layernorm(x + update) - layernorm(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_length_and_direction_survive_extreme_rows(dtype):
    tiny, huge = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=dtype)
    close(row_norm(x), torch.tensor([5.0, 0.0], dtype=dtype))
    for scale in (tiny, huge / 8):
        close(row_norm(x * scale)[0] / scale, torch.tensor(5.0, dtype=dtype), rtol=1e-6)
        close(direction(x * scale)[0], torch.tensor([0.6, 0.8], dtype=dtype), rtol=1e-6)
    assert direction(x)[1].isnan().all()
