"""Pictures in three dimensions: what they promise to keep, they keep; what they lose, they say."""

from __future__ import annotations

import math

import pytest
import torch
from agreement import CLOSE
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_hooked, random_ids

from interp import InputError, sphere_path, sphere_view
from interp.sphere.angles import angle
from interp.sphere.laws import direction
from interp.sphere.projections import (
    ball,
    distortion,
    equal_volume,
    equidistant,
    lambert,
    principal_axes,
)


@st.composite
def points_on_spheres(draw, min_d: int = 2, max_d: int = 20):
    n, d = draw(st.integers(2, 40)), draw(st.integers(min_d, max_d))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return direction(torch.randn(n, d, generator=generator, dtype=torch.float64))


def pairwise(points: torch.Tensor) -> torch.Tensor:
    return (points[:, None] - points[None]).norm(dim=-1)


@given(points_on_spheres())
def test_the_ball_shortens_distances_and_never_stretches(points):
    picture = ball(points)
    assert (pairwise(picture.coordinates) <= pairwise(points) + 1e-12).all()
    assert (picture.captured <= 1 + 1e-12).all()
    torch.testing.assert_close(picture.captured, picture.coordinates.norm(dim=-1), **CLOSE)


@given(points_on_spheres(max_d=3))
def test_the_ball_is_exact_in_three_dimensions(points):
    lifted = points @ torch.linalg.qr(torch.randn(9, points.shape[1]).double()).Q.mT
    picture = ball(lifted)
    torch.testing.assert_close(picture.captured, torch.ones(len(points)).double(), **CLOSE)
    torch.testing.assert_close(pairwise(picture.coordinates), pairwise(points), **CLOSE)
    report = distortion(lifted, picture.coordinates, chords=True)
    assert report.stress < 1e-10


@given(points_on_spheres(min_d=3))
def test_axes_are_orthonormal_within_the_rank_and_nothing_beyond(points):
    axes = principal_axes(points, 4)
    gram = axes @ axes.mT
    kept = gram.diagonal().round()
    torch.testing.assert_close(gram, torch.diag(kept), **CLOSE)
    assert int(kept.sum()) == min(4, *points.shape)
    centred = points - points.mean(-1, keepdim=True)
    assert (principal_axes(centred, 3).sum(-1).abs() < 1e-7).all()
    assert torch.equal(axes, principal_axes(points, 4))


@given(points_on_spheres(min_d=3))
def test_pole_views_keep_distances_to_the_pole(points):
    pole = points[0]
    theta = angle(points, pole.expand_as(points))
    flat = equidistant(points, pole)
    chord = lambert(points, pole)
    shown = flat.captured > 1e-6  # a direction that is not shown at all has no place
    torch.testing.assert_close(flat.coordinates.norm(dim=-1)[shown], theta[shown], **CLOSE)
    torch.testing.assert_close(
        chord.coordinates.norm(dim=-1)[shown], (points - pole).norm(dim=-1)[shown], **CLOSE
    )
    assert float(flat.captured[0]) == 1
    assert float(flat.coordinates[0].norm()) == 0
    assert (flat.captured <= 1 + 1e-12).all()


def test_equal_volume_maps_the_3_sphere_evenly():
    generator = torch.Generator().manual_seed(0)
    points = direction(torch.randn(40_000, 4, generator=generator, dtype=torch.float64))
    picture = equal_volume(points)
    torch.testing.assert_close(picture.captured, torch.ones(40_000).double(), **CLOSE)
    cubes = picture.coordinates.norm(dim=-1).pow(3).sort().values / (1.5 * math.pi)
    uniform = torch.linspace(0, 1, 40_000, dtype=torch.float64)
    assert float((cubes - uniform).abs().max()) < 1.95 / 40_000**0.5  # Kolmogorov, p = 0.001
    assert float(picture.coordinates.norm(dim=-1).max()) <= (1.5 * math.pi) ** (1 / 3)


@given(points_on_spheres(min_d=4))
def test_distortion_reports_the_worst_pair(points):
    coordinates = ball(points).coordinates
    report = distortion(points, coordinates, chords=True)
    off = (pairwise(points) - pairwise(coordinates)).abs()
    i, j = report.worst_pair
    assert float(off[i, j]) == pytest.approx(float(off.max()), abs=1e-12)
    assert abs(report.worst_true - report.worst_drawn) == pytest.approx(float(off.max()))
    upper = torch.ones(len(points), len(points)).triu(1).bool()
    stress = (off[upper].square().sum() / pairwise(points)[upper].square().sum()).sqrt()
    assert report.stress == pytest.approx(float(stress))


def test_ranks_share_ties_and_correlations_are_the_textbooks():
    points = direction(torch.randn(30, 3, generator=torch.Generator().manual_seed(0)).double())
    angles = torch.stack([angle(p.expand_as(points), points) for p in points])
    upper = torch.ones(30, 30).triu(1).bool()
    report = distortion(points, points, chords=False)
    want = torch.corrcoef(torch.stack([pairwise(points)[upper], angles[upper]]))[0, 1]
    assert report.pearson == pytest.approx(float(want), abs=1e-9)
    assert report.spearman == pytest.approx(1)  # chords grow with angles


@pytest.mark.parametrize("mode", ["ball", "equidistant", "lambert", "equal_volume"])
def test_a_view_of_a_model(mode):
    model, ids = random_hooked(3), random_ids(1, batch=2)
    view = sphere_view(model, ids, mode=mode)
    assert view["coordinate"].dims == ("axis", "state", "batch", "pos")
    assert view["captured"].shape == (5, 2, 7)
    report = view.attrs["distortion"]
    assert set(report) >= {"stress", "pearson", "spearman", "worst_pair"}
    assert report["n_points"] == 70
    some = sphere_view(model, ids, mode=mode, at=["1_pre"])
    assert some["coordinate"].shape == (3, 1, 2, 7)


def test_a_pole_view_is_true_from_its_pole():
    model, ids = random_hooked(3), random_ids(1)
    view = sphere_view(model, ids, mode="equidistant", pole=("0_pre", 0, 6))
    radius = (view["coordinate"] ** 2).sum("axis") ** 0.5
    length = float(radius.sel(state="0_mid", batch=0, pos=6))
    hop = sphere_path(model, ids)["hop_angle"].sel(hop="0_attn_out", batch=0, pos=6)
    assert length == pytest.approx(float(hop))


def test_constant_rows_have_no_place():
    model = random_hooked(3)
    model.embed.W_E.fill_(1.0)
    model.pos_embed.W_pos.fill_(1.0)
    view = sphere_view(model, "abc")
    assert view["coordinate"].sel(state="0_pre").isnull().all()
    assert not view["coordinate"].sel(state="0_mid").isnull().any()


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "umap"},
        {"at": ["2_pre"]},
        {"at": []},
        {"mode": "ball", "pole": ("0_pre", 0, 0)},
        {"mode": "lambert", "pole": ("0_pre", 0, 3)},
    ],
)
def test_bad_requests_are_refused(wrong):
    with pytest.raises(InputError):
        sphere_view(random_hooked(), "abc", **wrong)
