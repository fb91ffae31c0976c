"""Radius and path of real states; angles that keep their digits."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import xarray as xr
from agreement import CLOSE, values
from folding import folded
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_hooked, random_ids
from sphere_rows import Exact, rows

import interp.sphere
from interp import (
    InputError,
    ablation_effect,
    direct_effect,
    effective_dim,
    eps_regime,
    key_selectability,
    layernorm_gains,
    norm_growth,
    query_uniformity,
    sphere_path,
    sphere_radius,
    sphere_view,
    trace,
    update_split,
)
from interp.norms import mean_removed, state_names
from interp.sphere.angles import angle, curvature, tangent_towards, turn
from interp.sphere.laws import direction


def in_plane(theta: torch.Tensor, d: int, seed: int) -> torch.Tensor:
    """Unit vectors at angles theta along one great circle of a random plane."""
    basis = torch.randn(d, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    frame = torch.linalg.qr(basis).Q
    return torch.stack([theta.cos(), theta.sin()], -1) @ frame.mT


@given(st.floats(-15, 0.49), st.booleans(), st.integers(2, 33), st.integers(0, 2**31))
def test_angles_keep_their_digits_near_0_and_pi(exponent, far, d, seed):
    """An arccos gives up at 1e-8: cos(1e-9) is 1."""
    small = min(10.0**exponent, math.pi)
    pair = in_plane(torch.tensor([0.0, small], dtype=torch.float64), d, seed)
    a, b = pair[0], -pair[1] if far else pair[1]
    got = float(angle(3 * a, b / 7))
    want = math.pi - small if far else small
    assert got == pytest.approx(want, rel=1e-10, abs=3e-16 * 10)
    assert float(angle(b, a)) == pytest.approx(got, abs=1e-15)


def test_no_analysis_of_angles_uses_arccos():
    folder = Path(interp.sphere.__file__).parent
    for file in folder.glob("*.py"):
        code = "".join(line.split("#")[0] for line in file.open())
        assert "acos(" not in code
        assert "arccos(" not in code


@given(rows(min_d=3, n=5))
def test_angles_do_not_see_scale_or_mean(x):
    p = direction(mean_removed(x))
    moved = direction(mean_removed(7.3 * x + 0.1 * x.abs().amax()))
    torch.testing.assert_close(
        angle(p[:1], p[1:2]), angle(moved[:1], moved[1:2]), atol=1e-7, rtol=0
    )


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6), st.integers(0, 2**31))
def test_one_great_circle_goes_straight_on(steps, seed):
    theta = torch.tensor([0.0, *steps], dtype=torch.float64).cumsum(0)
    points = in_plane(theta, 9, seed)
    hops = angle(points[:-1], points[1:])
    torch.testing.assert_close(hops, torch.tensor(steps, dtype=torch.float64), **CLOSE)
    turns = turn(points[:-2], points[1:-1], points[2:])
    torch.testing.assert_close(turns, torch.zeros_like(turns), **CLOSE)
    back = turn(points[:1], points[1:2], points[:1])
    torch.testing.assert_close(back, torch.full_like(back, math.pi), **CLOSE)


@given(rows(min_d=4, n=3))
def test_turns_are_symmetric_under_reversal_and_rotation(x):
    a, b, c = direction(x)
    assert float(turn(a, b, c)) == pytest.approx(float(turn(c, b, a)), abs=1e-10, nan_ok=True)
    rotation = torch.linalg.qr(torch.randn(len(a), len(a), dtype=torch.float64)).Q
    turned = turn(a @ rotation, b @ rotation, c @ rotation)
    if float(angle(a, b)) > 1e-3 and float(angle(b, c)) > 1e-3:
        assert float(turned) == pytest.approx(float(turn(a, b, c)), abs=1e-8, nan_ok=True)


@given(st.floats(-9, 0.4), st.integers(3, 33), st.integers(0, 2**31))
def test_tangents_are_unit_and_orthogonal_however_short_the_way(exponent, d, seed):
    here, there = in_plane(torch.tensor([0.0, 10.0**exponent], dtype=torch.float64), d, seed)
    for end in (there, -there):
        tangent = tangent_towards(here, end)
        assert float(tangent.norm()) == pytest.approx(1, abs=1e-12)
        assert abs(float(tangent @ here)) < 1e-7
    assert float(angle(tangent_towards(here, there), -tangent_towards(here, -there))) < 1e-6
    assert tangent_towards(here, here).isnan().all()


def test_curvature_of_a_line_a_square_and_a_return():
    line = torch.arange(5.0)[:, None] * torch.tensor([[1.0, 2.0, 3.0]])
    torch.testing.assert_close(curvature(line), torch.zeros(3), atol=1e-3, rtol=0)
    square = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    torch.testing.assert_close(curvature(square), torch.full((2,), math.pi / 2))
    there_and_back = torch.tensor([[0.0, 0], [1, 1], [0, 0]])
    torch.testing.assert_close(curvature(there_and_back), torch.tensor([math.pi]))
    assert curvature(line[:2]).shape == (0,)


MODELS = {
    "LN": lambda: random_hooked(2),
    "LNPre": lambda: folded(random_hooked(2)),
    "attention only": lambda: random_hooked(2, attn_only=True),
    "d=2": lambda: random_hooked(2, d_model=2),
    "float32": lambda: random_hooked(2, dtype=torch.float32),
    "RMS": lambda: random_hooked(2, normalization_type="RMS"),
}


@pytest.fixture(params=MODELS, scope="module")
def model(request):
    return MODELS[request.param]()


def test_every_layernorm_reads_at_the_predicted_radius(model):
    ids = random_ids(1, batch=3)
    result = sphere_radius(model, ids)
    _, cache = model.run_with_cache(ids)
    names = [name for name in cache if name.endswith("hook_normalized")]
    assert len(names) == result.sizes["state"] == len(state_names(model.cfg))
    root = model.cfg.d_model**0.5
    tolerance = 1e-5 * root if model.cfg.dtype == torch.float32 else 1e-10
    for name, radius, predicted in zip(
        names, values(result["radius"]), values(result["predicted"]), strict=True
    ):
        want = cache[name].norm(dim=-1)
        torch.testing.assert_close(radius, want, rtol=0, atol=tolerance)
        torch.testing.assert_close(predicted, want, rtol=0, atol=tolerance)
    if model.cfg.normalization_type != "RMS":
        assert float(abs(result["mean"]).max()) < tolerance
    assert float(result["deficit"].min()) > 0
    assert float(abs(result["radius"] + result["deficit"] - root).max()) < tolerance
    assert result.attrs["sphere"] == root


def test_radius_measures_are_of_the_streams_own_statistics():
    model, ids = random_hooked(2), random_ids(1, batch=2)
    result = sphere_radius(model, ids)
    _, cache = model.run_with_cache(ids)
    exact = Exact(cache["blocks.1.hook_resid_mid"].flatten(0, 1))
    at = result.sel(state="1_mid")
    sigma = exact.like("variance").sqrt().reshape(2, 7)
    torch.testing.assert_close(values(at["sigma"]), sigma, **CLOSE)
    torch.testing.assert_close(values(at["kappa"]), model.cfg.eps / sigma**2, **CLOSE)
    torch.testing.assert_close(1 / values(at["rho"]) ** 2 - 1, values(at["kappa"]), **CLOSE)


def test_eps_regime_is_read_off_kappa():
    ids = random_ids(1, batch=3)
    for factor, want in ((1.0, "ok"), (0.1, "caution"), (1e-3, "inside")):
        model = random_hooked(2)
        for weights in (model.embed.W_E, model.pos_embed.W_pos):
            weights.mul_(factor)
        regime = eps_regime(model, ids)
        first = sphere_radius(model, ids)["kappa"].sel(state="0_pre")
        assert str(regime["regime"].sel(state="0_pre").item()) == want
        assert float(regime["kappa"].sel(state="0_pre", quantile=0)) == float(first.min())
        assert float(regime["kappa"].sel(state="0_pre", quantile=1)) == float(first.max())


def test_paths_are_those_of_the_directions(model):
    ids = random_ids(4, batch=3)
    path = sphere_path(model, ids)
    _, cache = model.run_with_cache(ids)
    points = [
        torch.nn.functional.normalize(value.double(), dim=-1)
        for name, value in cache.items()
        if name.endswith("hook_normalized")
    ]
    loose = {"rtol": 0, "atol": 1e-3 if model.cfg.dtype == torch.float32 else 1e-6}
    want = torch.stack([torch.acos((a * b).sum(-1).clamp(-1, 1)) for a, b in pairwise(points)])
    torch.testing.assert_close(values(path["hop_angle"]).double(), want, **loose)
    torch.testing.assert_close(values(path["length"]).double(), want.sum(0), **loose)
    chord = torch.acos((points[0] * points[-1]).sum(-1).clamp(-1, 1))
    torch.testing.assert_close(values(path["chord_angle"]).double(), chord, **loose)
    slack = 1e-5 if model.cfg.dtype == torch.float32 else 1e-10
    assert float((path["chord_angle"] - path["length"]).max()) < slack
    assert float(path["directness"].max()) < 1 + slack
    assert path.sizes["turn"] == path.sizes["hop"] - 1
    assert path["inner_pos"].to_numpy().tolist() == [1, 2, 3, 4, 5]


def test_a_path_does_not_see_the_scale_of_the_stream_nor_its_mean():
    """x -> c x + t 1 at every state at once: all writers scaled, and shifted along 1."""
    model, ids = random_hooked(2), random_ids(4, batch=2)
    before = sphere_path(model, ids)
    for block in model.blocks:
        for W in (block.attn.W_O, block.attn.b_O, block.mlp.W_out, block.mlp.b_out):
            W.mul_(1e3)
    model.embed.W_E.mul_(1e3).add_(5.0)
    model.pos_embed.W_pos.mul_(1e3)
    after = sphere_path(model, ids)
    for name in before:
        gap = float(abs(after[name] - before[name]).max())
        assert gap < 1e-4, name  # epsilon matters a little less at a thousand times the scale


def test_short_prompts_have_short_paths():
    model = random_hooked(2, n_layers=1, attn_only=True)
    path = sphere_path(model, "a")
    assert path.sizes == {"hop": 1, "batch": 1, "pos": 1, "turn": 0, "state": 2, "inner_pos": 0}
    assert path["directness"].item() == pytest.approx(1)


def test_a_constant_embedding_has_a_radius_but_no_direction():
    model = random_hooked(2)
    model.embed.W_E.fill_(3.0)
    model.pos_embed.W_pos.fill_(-1.0)
    radius = sphere_radius(model, "abc").sel(state="0_pre")
    assert float(radius["radius"].max()) < 1e-12
    assert float(radius["predicted"].max()) < 1e-9
    assert sphere_path(model, "abc")["hop_angle"].sel(hop="0_attn_out").isnull().all()


def assert_same(one: xr.Dataset, other: xr.Dataset) -> None:
    """Up to rounding: a trace that keeps patterns attends in other steps than one that does not."""
    xr.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    numbers = {"distortion"}  # measured too, so rounded too
    for key in (one.attrs | other.attrs).keys() - numbers:
        assert one.attrs[key] == other.attrs[key]


def test_one_trace_serves_every_question():
    model, ids = random_hooked(2), random_ids(4, batch=2)
    run = trace(model, ids)
    for analysis in (
        sphere_radius,
        eps_regime,
        sphere_path,
        update_split,
        sphere_view,
        layernorm_gains,
        norm_growth,
        effective_dim,
        query_uniformity,
        key_selectability,
    ):
        assert_same(analysis(model, run), analysis(model, ids))
    assert_same(direct_effect(model, run, 3), direct_effect(model, ids, 3))
    assert_same(ablation_effect(model, run, 3), ablation_effect(model, ids, 3))
    with pytest.raises(InputError, match="trace of model"):
        sphere_radius(random_hooked(3), run)


def test_an_rms_models_own_hooks_are_neither_seen_nor_touched():
    model, ids = random_hooked(2, normalization_type="RMS"), random_ids(1)
    before = sphere_radius(model, ids)
    model.add_hook("blocks.0.hook_attn_out", lambda value, hook: value * 0)
    assert sphere_radius(model, ids).equals(before)
    assert len(model.hook_dict["blocks.0.hook_attn_out"].fwd_hooks) == 1


def test_a_model_without_normalisation_has_no_sphere():
    model = random_hooked(normalization_type=None)
    for analysis in (sphere_radius, eps_regime, sphere_path):
        with pytest.raises(InputError, match="no normalisation"):
            analysis(model, "abc")
