"""LayerNorm's derivative against autograd, and its spectrum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from random_models import random_hooked, random_ids
from sphere_rows import EPS, constant_rows, rows

from interp import layernorm_gains
from interp.norms import Norm, mean_removed
from interp.sphere.jacobian import Jacobian
from interp.sphere.laws import direction


def norm_of(x: torch.Tensor, kind: str = "LN") -> Norm:
    d = x.shape[-1]
    return Norm(kind, EPS, x.new_ones(d), x.new_zeros(d))


def dense(x: torch.Tensor, kind: str) -> torch.Tensor:
    """The derivative of each row by autograd, [rows, d, d]."""
    norm = norm_of(x, kind)
    return torch.stack([torch.autograd.functional.jacobian(norm.normalised, row) for row in x])


@pytest.mark.parametrize("kind", ["LN", "RMS"])
@given(x=rows())
def test_matvec_is_autograds(kind, x):
    """L6, relative to the largest eigenvalue 1/s."""
    J, want = Jacobian.at(x, norm_of(x, kind)), dense(x, kind)
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    got = torch.stack([J @ eye[i].expand_as(x) for i in range(len(eye))], -1)
    assert ((got - want).abs() * J.s[..., None] < 1e-10).all()
    trace = want.diagonal(dim1=1, dim2=2).sum(-1)
    assert ((J.trace - trace).abs() * J.s[..., 0] < 1e-10 * x.shape[-1]).all()


@given(rows(min_d=3))
def test_spectrum(x):
    """L6: 0 on 1, eps/s^3 on x^, 1/s on the other d-2; symmetric; norm 1/s; Euler's identity."""
    J = Jacobian.at(x, norm_of(x))
    s = J.s[..., 0]
    close = {"rtol": 1e-10, "atol": 1e-10}
    assert ((J @ torch.ones_like(x)).abs() * J.s < 1e-9).all()
    heading = direction(mean_removed(x))
    torch.testing.assert_close((J @ heading) * J.s, J.radial[:, None] * J.s * heading, **close)
    torch.testing.assert_close(
        (J @ x) * J.s**2, EPS * J.y * J.s.new_ones(()), rtol=1e-9, atol=1e-9 * float(s.max() ** 2)
    )
    for row, matrix in zip(range(len(x)), dense(x, "LN"), strict=True):
        values = torch.linalg.eigvalsh(matrix) * s[row]
        want = torch.ones(x.shape[-1], dtype=x.dtype)
        want[0], want[1] = 0.0, J.radial[row] * s[row]
        torch.testing.assert_close(values, want.sort().values, **close)
        assert float(torch.linalg.matrix_norm(matrix, 2) * s[row]) == pytest.approx(1)


@given(constant_rows())
def test_at_a_constant_state_every_direction_passes_alike(x):
    """The radial and the tangential gain meet at 1/sqrt(eps): no direction is special there."""
    J = Jacobian.at(x, norm_of(x))
    torch.testing.assert_close(J.radial, J.tangential, rtol=1e-9, atol=0)
    v = torch.arange(x.shape[-1], dtype=x.dtype).expand_as(x)
    torch.testing.assert_close(J @ v, mean_removed(v) / EPS**0.5, rtol=1e-9, atol=1e-9)


def test_gains_of_a_model_are_those_of_its_scales():
    model, ids = random_hooked(5), random_ids(1, batch=3)
    gains = layernorm_gains(model, ids)
    _, cache = model.run_with_cache(ids)
    s = torch.stack([v[..., 0] for k, v in cache.items() if k.endswith("hook_scale")])
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(torch.tensor(gains["tangential"].to_numpy()), 1 / s, **close)
    torch.testing.assert_close(torch.tensor(gains["radial"].to_numpy()), 1e-5 / s**3, **close)
    want = 14 / s + 1e-5 / s**3
    torch.testing.assert_close(torch.tensor(gains["trace"].to_numpy()), want, **close)
    assert gains.attrs["n_tangential"] == 14
