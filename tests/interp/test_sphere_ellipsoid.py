"""Gain and bias turn the sphere into an ellipsoid: L8 to L11."""

from __future__ import annotations

import pytest
import torch
from agreement import CLOSE
from folding import folded
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_hooked, random_ids
from sphere_rows import EPS

from interp import InputError, gain_ellipsoid, sphere_radius
from interp.engine import trace
from interp.norms import Norm
from interp.sphere.ellipsoid import ellipsoid


@st.composite
def gained(draw, *, zeros: int = 0) -> Norm:
    """A LayerNorm with gains of either sign and of sizes from 1/30 to 30, and a bias."""
    d = draw(st.integers(max(3, zeros + 2), 20))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    gain = (torch.rand(d, generator=generator).double() * 6.8 - 3.4).exp()
    gain = gain * torch.randint(0, 2, (d,), generator=generator).double().mul(2).sub(1)
    gain[:zeros] = 0.0
    return Norm("LN", EPS, gain, torch.randn(d, generator=generator).double())


def states(norm: Norm, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(50, len(norm.gain), generator=generator).double()


@given(gained())
def test_outputs_lie_in_the_hyperplane_normal_to_one_over_gain(norm):
    """L8."""
    shape, out = ellipsoid(norm), norm(states(norm))
    off = ((out - shape.centre) @ shape.normal) / norm.gain.abs().max()
    torch.testing.assert_close(off, torch.zeros_like(off), **CLOSE)
    same = shape.normal * norm.gain
    torch.testing.assert_close(same, same[:1].expand_as(same), rtol=1e-9, atol=0)


@given(gained(), st.floats(-3, 1))
def test_depth_in_the_ellipsoid_is_rho_exactly(norm, exponent):
    """L10: the quadratic form of the output is rho^2, at any epsilon regime."""
    x = states(norm, 10.0**exponent)
    rho = norm.normalised(x).norm(dim=-1) / x.shape[-1] ** 0.5
    depth = ellipsoid(norm).depth(norm(x))
    torch.testing.assert_close(depth, rho, rtol=1e-9, atol=0)


@given(gained())
def test_semi_axes(norm):
    """L9: interlacing, sum and product of squares, the secular equation, Riechers' eigenvalues."""
    gain, d = norm.gain, len(norm.gain)
    s = ellipsoid(norm).semi_axes / d**0.5
    sizes = gain.abs().sort(descending=True).values
    assert (s <= sizes[:-1] * (1 + 1e-10)).all()
    assert (s >= sizes[1:] * (1 - 1e-10)).all()
    close = {"rtol": 1e-10, "atol": 0}
    torch.testing.assert_close(s.square().sum(), (1 - 1 / d) * gain.square().sum(), **close)
    log_product = gain.square().log().sum() + gain.square().reciprocal().mean().log()
    torch.testing.assert_close(s.square().log().sum(), log_product, rtol=1e-9, atol=1e-9)
    terms = 1 / (gain.square()[None] - s.square()[:, None])
    apart = terms.abs().amax(1) * gain.square().max() < 1e8
    torch.testing.assert_close(
        (terms.sum(1) / terms.abs().sum(1))[apart],
        torch.zeros(int(apart.sum())).double(),
        rtol=0,
        atol=1e-6,
    )
    # sqrt(d / lambda), lambda of 1/gain^2 projected into the hyperplane normal to 1/gain.
    unit = (1 / gain) / (1 / gain).norm()
    project = torch.eye(d).double() - unit[:, None] * unit
    values = torch.linalg.eigvalsh(project @ torch.diag(gain**-2.0) @ project)[1:]
    torch.testing.assert_close(
        (1 / values).sqrt().sort().values, s.sort().values, rtol=1e-7, atol=0
    )


@given(gained())
def test_axes_are_orthonormal_and_end_on_the_ellipsoid(norm):
    shape = ellipsoid(norm)
    gram = shape.axes @ shape.axes.mT
    torch.testing.assert_close(gram, torch.eye(len(gram)).double(), **CLOSE)
    ends = shape.centre + shape.semi_axes[:, None] * shape.axes
    back = (ends - norm.bias) / norm.gain
    torch.testing.assert_close(
        back.norm(dim=-1),
        torch.full((len(ends),), len(norm.gain) ** 0.5).double(),
        rtol=1e-6,
        atol=0,
    )


@given(gained(zeros=1))
def test_one_zero_gain_turns_the_plane_and_flattens_nothing(norm):
    """L11: the image has the zero coordinate fixed at its bias, and keeps d-1 dimensions."""
    shape = ellipsoid(norm)
    assert torch.equal(shape.normal, torch.eye(len(norm.gain)).double()[0])
    assert float(shape.semi_axes[-1] / shape.semi_axes[0]) > 1e-8
    x = states(norm)
    rho = norm.normalised(x).norm(dim=-1) / x.shape[-1] ** 0.5
    torch.testing.assert_close(shape.depth(norm(x)), rho, rtol=1e-6, atol=0)


@given(gained(zeros=3))
def test_each_further_zero_gain_flattens_an_axis(norm):
    shape = ellipsoid(norm)
    flat = shape.semi_axes < 1e-10 * shape.semi_axes[0]
    assert int(flat.sum()) == 2
    assert shape.depth(norm(states(norm))).isnan().all()


def test_the_models_outputs_lie_at_rho_in_their_ellipsoids():
    model, ids = random_hooked(7), random_ids(1, batch=2)
    result, radius = gain_ellipsoid(model), sphere_radius(model, ids)
    run = trace(model, ids)
    for i, (name, module) in enumerate(
        [("ln1", model.blocks[0].ln1), ("ln2", model.blocks[0].ln2)]
    ):
        out = run[f"{name}_normalized", 0] * module.w + module.b
        norm = Norm("LN", model.cfg.eps, module.w, module.b)
        rho = torch.tensor(radius["rho"][i].to_numpy())
        torch.testing.assert_close(ellipsoid(norm).depth(out), rho, **CLOSE)
        assert float(result["smallest_gain"][i]) == float(module.w.abs().min())
        torch.testing.assert_close(torch.tensor(result["centre"][i].to_numpy()), module.b)
        want = ellipsoid(norm).semi_axes
        torch.testing.assert_close(torch.tensor(result["semi_axis"][i].to_numpy()), want)


def test_a_folded_models_ellipsoids_are_spheres():
    result = gain_ellipsoid(folded(random_hooked(7)))
    assert float(abs(result["semi_axis"] - 4.0).max()) < 1e-12
    assert float(abs(result["condition"] - 1).max()) < 1e-12
    assert float(result["tilt"].max()) < 1e-12
    assert float(abs(result["centre"]).max()) == 0


def test_rms_and_no_norm_have_no_hyperplane():
    with pytest.raises(InputError, match="subtracts no mean"):
        gain_ellipsoid(random_hooked(normalization_type="RMS"))
    with pytest.raises(InputError, match="no normalisation"):
        gain_ellipsoid(random_hooked(normalization_type=None))
