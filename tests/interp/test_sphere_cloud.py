"""Clouds of states: growth with depth, effective dimension, queries, held and shaken scales."""

from __future__ import annotations

import math

import pytest
import torch
from agreement import CLOSE, values
from folding import folded
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_hooked, random_ids

from interp import (
    InputError,
    effective_dim,
    frozen_scale_loss,
    norm_growth,
    query_uniformity,
    scale_jitter,
)
from interp.engine import trace
from interp.sphere.dimension import dimensions_for, mean_cosine, moments, participation_ratio
from interp.sphere.growth import growth_rate
from interp.sphere.laws import direction
from interp.sphere.queries import asked_angle


@st.composite
def clouds(draw) -> torch.Tensor:
    n, d = draw(st.integers(2, 60)), draw(st.integers(2, 20))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    lean = draw(st.floats(0, 3))
    return direction(torch.randn(n, d, generator=generator).double() + lean)


@given(st.floats(0.2, 5), st.floats(-8, 8), st.integers(3, 30))
def test_geometric_norms_give_their_rate(rate, exponent, depth):
    norms = 10.0**exponent * rate ** torch.arange(depth, dtype=torch.float64)[:, None].expand(-1, 2)
    got, fit = growth_rate(norms)
    torch.testing.assert_close(got, torch.full((2,), rate, dtype=torch.float64), **CLOSE)
    if abs(rate - 1) > 1e-3:
        torch.testing.assert_close(fit, torch.ones(2).double(), **CLOSE)


def test_growth_does_not_see_the_units_and_leaves_position_0_out():
    model, ids = random_hooked(4, n_layers=3), random_ids(2, batch=2)
    growth = norm_growth(model, ids)
    run = trace(model, ids)
    norms = torch.stack([run["resid_pre", layer] for layer in range(3)] + [run["resid_post", 2]])
    norms = (norms - norms.mean(-1, keepdim=True)).norm(dim=-1)
    torch.testing.assert_close(values(growth["norm"])[::2], norms, **CLOSE)
    want, fit = growth_rate(norms)
    torch.testing.assert_close(values(growth["rate"]), want, **CLOSE)
    torch.testing.assert_close(values(growth["r_squared"]), fit, **CLOSE)
    again, _ = growth_rate(norms * 1e5)
    torch.testing.assert_close(again, want, **CLOSE)
    mean, _ = growth_rate(norms[:, :, 1:].log().mean((1, 2)).exp())
    assert float(growth["mean_rate"]) == pytest.approx(float(mean), abs=1e-12)
    with pytest.raises(InputError, match="at least two"):
        norm_growth(model, "a")


@given(clouds())
def test_participation_ratio_is_the_inverse_mean_squared_cosine(points):
    ratio = float(participation_ratio(moments(points)))
    cosines = points @ points.mT
    assert ratio == pytest.approx(1 / float(cosines.square().mean()), rel=1e-10)
    assert 1 - 1e-12 <= ratio <= min(points.shape) + 1e-9
    turned = points @ torch.linalg.qr(torch.randn(points.shape[1], points.shape[1]).double()).Q
    assert float(participation_ratio(moments(turned))) == pytest.approx(ratio, rel=1e-9)
    eigenvalues = torch.linalg.eigvalsh(points.mT @ points)
    want = eigenvalues.sum().square() / eigenvalues.square().sum()
    assert ratio == pytest.approx(float(want), rel=1e-9)


@given(clouds())
def test_mean_cosine_needs_no_pairs(points):
    n = len(points)
    cosines = points @ points.mT
    off = (cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1))
    assert float(mean_cosine(points)) == pytest.approx(float(off), abs=1e-10)


def test_dimensions_that_hold_a_share():
    points = torch.diag(torch.tensor([9.0, 3.0, 1.0, 1.0])).double().sqrt()
    for share, want in ((0.5, 1), (9 / 14, 1), (0.65, 2), (0.9, 3), (1.0, 4)):
        assert dimensions_for(moments(points), share) == want


def held_by(points: torch.Tensor, share: float) -> int:
    """How many singular values hold a share of the squared length, counted one by one."""
    power = torch.linalg.svdvals(points).square()
    return next(n for n in range(1, 99) if float(power[:n].sum() / power.sum()) >= share)


def test_effective_dim_of_a_model():
    model, ids = random_hooked(4), random_ids(2, batch=3)
    result = effective_dim(model, ids)
    _, cache = model.run_with_cache(ids)
    y = cache["blocks.1.ln2.hook_normalized"].flatten(0, 1)
    points = y / y.norm(dim=-1, keepdim=True)
    at = result.sel(state="1_mid")
    cosines = points @ points.mT
    assert float(at["participation_ratio"]) == pytest.approx(1 / float(cosines.square().mean()))
    assert float(result["participation_ratio"].max()) <= 15
    spread = torch.linalg.eigvalsh((points - points.mean(0)).T.cov(correction=0))
    want = float(spread.sum() ** 2 / spread.square().sum())
    assert float(at["participation_ratio_centred"]) == pytest.approx(want)
    assert float(at["dims_90"]) == int(held_by(points, 0.9))
    assert effective_dim(model, "a")["mean_cosine"].isnull().all()


@given(st.integers(2, 20), st.integers(1, 6), st.integers(0, 2**31), st.floats(-6, 6))
def test_angle_of_a_query_is_that_of_its_reading_direction(d, d_head, seed, exponent):
    generator = torch.Generator().manual_seed(seed)
    reading = torch.randn(d, d_head, generator=generator).double()
    q = 10.0**exponent * torch.randn(5, d_head, generator=generator).double()
    r = q @ reading.mT
    along = r.mean(-1).abs() * d**0.5
    across = (r - r.mean(-1, keepdim=True)).norm(dim=-1)
    torch.testing.assert_close(asked_angle(q, reading), torch.atan2(across, along), **CLOSE)


def test_queries_do_not_need_their_part_along_1():
    """Centring what reads the keys changes no pattern, and the angles say what was wasted."""
    model, ids = random_hooked(4), random_ids(2, batch=3)
    result = query_uniformity(model, ids)
    assert float(result["angle"].min()) >= 0
    assert float(result["angle"].max()) <= math.pi / 2
    assert result["angle"].dims == ("layer", "head", "batch", "query_pos")
    _, before = model.run_with_cache(ids)
    for layer, block in enumerate(model.blocks):
        for head in range(3):
            r = before["q", layer][:, :, head] @ (block.ln1.w[:, None] * block.attn.W_K[head]).mT
            along = r.sum(-1).square() / 16 / r.square().sum(-1)
            torch.testing.assert_close(values(result["wasted"])[layer, head], along, **CLOSE)
        reading = block.ln1.w[:, None] * block.attn.W_K
        centred = reading - reading.mean(1, keepdim=True)
        block.attn.W_K.copy_(centred / block.ln1.w[:, None])
    _, after = model.run_with_cache(ids)
    for layer in range(2):
        torch.testing.assert_close(after["pattern", layer], before["pattern", layer], **CLOSE)
    assert float(query_uniformity(model, ids)["wasted"].max()) < 1e-12
    assert float(query_uniformity(folded(random_hooked(4)), ids)["wasted"].max()) < 1e-12


def test_a_scale_held_at_what_it_is_costs_nothing():
    """One prompt of two tokens: each mean is over the one value there is."""
    result = frozen_scale_loss(random_hooked(4), "ab")
    assert float(abs(result["delta_loss"]).max()) < 1e-12
    assert abs(float(result["joint_delta_loss"])) < 1e-12
    assert float(result["spread"].max()) == 0


def test_held_scales_are_those_of_hooks():
    model, ids = random_hooked(4), random_ids(2, batch=3)
    result = frozen_scale_loss(model, ids)
    loss, cache = model.run_with_cache(ids, return_type="loss")
    final = cache["ln_final.hook_scale"][:, 1:].numpy()
    assert float(result["spread"][-1]) == pytest.approx(float(final.std() / final.mean()))
    assert float(result["loss"]) == pytest.approx(float(loss), abs=1e-12)

    def hold(scale, hook):
        true = cache[hook.name]
        held = true[:, 1:].mean().expand_as(true).clone()
        held[:, 0] = true[:, 0].mean()
        return held

    names = [name for name in cache if name.endswith("hook_scale")]
    for name, delta in zip(names, values(result["delta_loss"]), strict=True):
        after = model.run_with_hooks(ids, return_type="loss", fwd_hooks=[(name, hold)])
        assert float(delta) == pytest.approx(float(after - loss), abs=1e-12)
    after = model.run_with_hooks(ids, return_type="loss", fwd_hooks=[(n, hold) for n in names])
    assert float(result["joint_delta_loss"]) == pytest.approx(float(after - loss), abs=1e-12)


def test_no_jitter_no_flips_and_much_jitter_some():
    model, ids = random_hooked(4), random_ids(2, batch=3)
    still = scale_jitter(model, ids, size=0.0)
    assert float(still["pattern_flips"].max()) == 0
    assert float(still["prediction_flips"]) == 0
    assert abs(float(still["delta_loss"])) < 1e-12
    shaken = scale_jitter(model, ids, size=0.9, repeats=8)
    assert 0 < float(shaken["pattern_flips"].mean()) < 1
    again = scale_jitter(model, ids, size=0.9, repeats=8)
    assert shaken.equals(again)
    assert not shaken.equals(scale_jitter(model, ids, size=0.9, repeats=8, seed=1))


def test_bad_requests_are_refused():
    model = random_hooked()
    for wrong in (
        lambda: frozen_scale_loss(model, "a"),
        lambda: scale_jitter(model, "a"),
        lambda: scale_jitter(model, "ab", size=1.0),
        lambda: scale_jitter(model, "ab", repeats=0),
        lambda: query_uniformity(random_hooked(normalization_type="RMS"), "ab"),
    ):
        with pytest.raises(InputError):
            wrong()
