"""Hulls, reachable tokens and confidence ceilings: certified, and checked by other means."""

from __future__ import annotations

import itertools

import pytest
import torch
from agreement import CLOSE
from folding import folded
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_hooked, random_ids

from interp import InputError, confidence_ceiling, key_selectability, token_reachable
from interp.engine import trace
from interp.norms import Norm
from interp.readout import readout
from interp.sphere.ceiling import log_odds_ceiling
from interp.sphere.hull import selection_margins
from interp.sphere.selection import READINGS, self_selected


@st.composite
def clouds(draw, max_d: int = 6) -> torch.Tensor:
    shape = (draw(st.integers(1, 4)), draw(st.integers(2, 25)), draw(st.integers(1, max_d)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return 10.0 ** draw(st.floats(-8, 8)) * torch.randn(shape, generator=generator).double()


def on_the_hull(points: torch.Tensor) -> list[bool]:
    """Vertices of a plane cloud, by walking round it with cross products."""
    hull, n = set(), len(points)
    for i, j in itertools.permutations(range(n), 2):
        side = points[j] - points[i]
        off = points - points[i]
        cross = side[0] * off[:, 1] - side[1] * off[:, 0]
        if (cross[[k for k in range(n) if k not in (i, j)]] < 0).all():
            hull |= {i, j}
    return [i in hull for i in range(n)]


@given(clouds(max_d=1))
def test_on_a_line_only_the_ends_can_win(x):
    for cloud, selectable in zip(x, selection_margins(x).selectable, strict=True):
        ends = {int(cloud.argmin()), int(cloud.argmax())}
        assert set(selectable.nonzero()[:, 0].tolist()) == ends


@given(st.integers(3, 15), st.integers(0, 2**31))
def test_in_the_plane_exactly_the_hull_can_win(n, seed):
    points = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed)).double()
    margins = selection_margins(points[None])
    assert margins.selectable[0].tolist() == on_the_hull(points)
    assert not margins.undecided.any()


@settings(max_examples=12)
@given(clouds())
def test_bounds_are_certificates(x):
    """Decided, in order, and unmoved by scale and shift."""
    margins = selection_margins(x)
    assert not margins.undecided.any()
    assert (margins.lower <= margins.upper * (1 + 1e-6) + 1e-12 * margins.spread).all()
    again = selection_margins(1e4 * x + x.abs().amax())
    assert torch.equal(again.selectable, margins.selectable)


@settings(max_examples=12)
@given(clouds())
def test_the_mean_of_others_and_a_copy_cannot_win(x):
    inside = torch.cat([x, x.mean(1, keepdim=True)], 1)
    assert selection_margins(inside).unselectable[:, -1].all()
    twice = torch.cat([x, x[:, :1]], 1)
    margins = selection_margins(twice)
    assert margins.unselectable[:, [0, -1]].all()


@settings(max_examples=12)
@given(clouds())
def test_on_a_sphere_every_point_wins(x):
    """Brody et al., theorem 1: equal radii."""
    sphere = x / x.norm(dim=-1, keepdim=True)
    if x.shape[-1] > 1:
        near = torch.stack([torch.pdist(cloud).min() for cloud in sphere]).min()
        if near > 1e-2:
            assert selection_margins(sphere).selectable.all()
            assert (self_selected(sphere) == 1).all()


@settings(max_examples=12)
@given(clouds())
def test_self_selection_is_enough(x):
    inner = x @ x.mT
    own = inner.diagonal(dim1=1, dim2=2)
    lead = own - inner.masked_fill(torch.eye(x.shape[1]).bool(), -torch.inf).amax(-1)
    margins = selection_margins(x)
    assert torch.equal(self_selected(x) == 1, lead > 0)
    assert margins.selectable[lead > 1e-5 * own.sqrt() * margins.spread].all()


def test_layernorm_lets_every_key_select_itself():
    """Raw Gaussian keys hide behind longer ones; on the sphere, and on its ellipsoid, none do."""
    keys = torch.randn(200, 64, 8, generator=torch.Generator().manual_seed(0)).double()
    assert float(self_selected(keys).mean()) < 0.75
    one = torch.ones(8).double()
    deep = Norm("LN", 0.0, one, 0 * one).normalised(keys)
    assert float(self_selected(deep).mean()) == 1
    gain = torch.tensor([0.3, -2.0, 1.0, 4.0, 0.7, -0.9, 1.5, 0.2]).double()
    out = deep * gain + 3.0
    query = (out - 3.0) / gain**2
    scores = query @ out.mT
    assert (scores.argmax(-1) == torch.arange(64)).all()


def test_a_cloud_of_one_has_nothing_to_lose_to():
    assert selection_margins(torch.zeros(2, 1, 3)).selectable.all()


def test_keys_of_a_model():
    model, ids = random_hooked(2, d_head=2), random_ids(1, batch=2)
    result = key_selectability(model, ids)
    assert result["selectable"].dims == ("reading", "layer", "head", "batch")
    assert list(result["reading"].to_numpy()) == list(READINGS)
    assert float(result["undecided"].max()) == 0
    assert float(abs(result["selectable"] + result["unselectable"] - 1).max()) < 1e-6
    run = trace(model, ids)
    for layer, head, row in itertools.product(range(2), range(3), range(2)):
        keys = run["k", layer][row, :, head]
        want = sum(on_the_hull(keys)) / 7
        got = result["selectable"].sel(reading="layernorm", layer=layer, head=head, batch=row)
        assert float(got) == pytest.approx(want, abs=1e-6)


def test_the_readings_are_what_they_are_called():
    """Each by hand, on the keys of every head."""
    model, ids = random_hooked(2, d_head=2, n_ctx=14), random_ids(1, batch=2, n_pos=14)
    model.pos_embed.W_pos += torch.linspace(-3, 3, 14)[:, None]
    result, run = key_selectability(model, ids)["selectable"], trace(model, ids)
    for layer, head in itertools.product(range(2), range(3)):
        x, block = run["resid_pre", layer], model.blocks[layer]
        mean, length = x.mean(-1, keepdim=True), x.square().mean(-1, keepdim=True)
        by_hand = {
            "projected": x - mean,
            "scaled": x / (length + model.cfg.eps).sqrt(),
            "raw": x,
        }
        for reading, read in by_hand.items():
            keys = read * block.ln1.w @ block.attn.W_K[head]
            want = [sum(on_the_hull(row)) / 14 for row in keys]
            got = result.sel(reading=reading, layer=layer, head=head)
            assert got.to_numpy() == pytest.approx(want, abs=1e-6), reading
    told_apart = [result.sel(reading=name) != result.sel(reading="raw") for name in by_hand]
    assert [bool(apart.any()) for apart in told_apart] == [True, True, False]


def test_with_more_directions_than_tokens_all_are_reachable():
    model = random_hooked(2, d_vocab=11, d_model=16)
    result = token_reachable(model)
    assert result["reachable"].all()
    assert int(result["affine_rank"]) == 10
    assert list(result["tokens"].to_numpy()) == list("abcdefghijk")


def test_a_token_inside_the_hull_is_found():
    model = random_hooked(2, d_model=4, d_vocab=30, n_heads=1)
    model.unembed.W_U[:, 7] = model.unembed.W_U.mean(1)
    result = token_reachable(model)
    assert bool(result["unreachable"][7])
    assert (result["reachable"] ^ result["unreachable"]).all()
    # A reachable token is reached: by some state among very many, for those with some margin.
    directions = torch.randn(200_000, 4, generator=torch.Generator().manual_seed(0)).double()
    best = set((directions @ readout(model).A).argmax(-1).tolist())
    reachable = set(result["reachable"].to_numpy().nonzero()[0].tolist())
    assert best <= reachable
    wide = {i for i in reachable if float(result["margin"][i] / result["norm"][i]) > 0.1}
    assert wide <= best
    ceiling = confidence_ceiling(model, [7])
    assert bool(ceiling["interior"][0])


@settings(max_examples=12)
@given(st.integers(1, 6), st.integers(2, 12), st.floats(-2, 1.5), st.integers(0, 2**31))
def test_ceilings_meet_the_kkt_conditions_and_beat_every_point(d, n, exponent, seed):
    generator = torch.Generator().manual_seed(seed)
    A = 10.0**exponent * torch.randn(d, n, generator=generator).double()
    c0, radius = torch.randn(n, generator=generator).double(), d**0.5
    found = log_odds_ceiling(A, c0, torch.arange(n), radius)
    assert (found.at.norm(dim=-1) <= radius * (1 + 1e-9)).all()
    assert (found.gap <= 1e-9 * (1 + found.log_odds.abs())).all()
    assert (found.residual < 1e-7).all()
    assert (found.multiplier >= 0).all()
    on_sphere = torch.randn(500, d, generator=generator).double()
    on_sphere = radius * on_sphere / on_sphere.norm(dim=-1, keepdim=True)
    points = torch.cat([on_sphere, on_sphere * torch.rand(500, 1, generator=generator)])
    log_probs = (points @ A + c0).log_softmax(-1)
    log_odds = log_probs - torch.log1p(-log_probs.exp().clamp(max=1 - 1e-15))
    slack = 1e-7 * (1 + found.log_odds.abs())
    seen = torch.where(log_probs > -1e-12, -torch.inf, log_odds)
    assert (seen.amax(0) <= found.log_odds + found.gap + slack).all()


def test_two_tokens_have_their_ceiling_in_closed_form():
    A = torch.tensor([[3.0, 1.0], [0.5, 2.0]], dtype=torch.float64)
    c0 = torch.tensor([0.3, -0.4], dtype=torch.float64)
    found = log_odds_ceiling(A, c0, torch.arange(2), 2**0.5)
    reach = 2**0.5 * float((A[:, 0] - A[:, 1]).norm())
    assert found.log_odds.tolist() == pytest.approx([reach + 0.7, reach - 0.7], abs=1e-10)


@pytest.mark.parametrize(("std", "median"), [(0.02, 0.167), (0.09, 0.999)])
def test_ceilings_of_random_unembeddings(std, median):
    """65 tokens in 128 dimensions: small weights cannot be sure of anything."""
    model = random_hooked(0, d_model=128, d_vocab=65, n_layers=1, n_heads=1)
    generator = torch.Generator().manual_seed(0)
    model.unembed.W_U.copy_(std * torch.randn(128, 65, generator=generator, dtype=torch.float64))
    model.unembed.b_U.zero_()
    model.ln_final.w.fill_(1.0)
    model.ln_final.b.zero_()
    result = confidence_ceiling(model, list(range(9)))
    assert float(result["probability"].median()) == pytest.approx(median, rel=0.1)
    assert float(result["residual"].max()) < 1e-9
    assert float(result["gap"].max()) < 1e-10


def test_no_prompt_beats_its_tokens_ceiling_folded_or_not():
    model, ids = random_hooked(2), random_ids(3, batch=20)
    result = confidence_ceiling(model)
    ceiling = torch.tensor(result["probability"].to_numpy())
    assert (model(ids).softmax(-1).amax((0, 1)) < ceiling).all()
    read = readout(model)
    at = torch.tensor(result["direction"].to_numpy())
    attained = (at @ read.A + read.c0).softmax(-1).diagonal()
    torch.testing.assert_close(attained, ceiling, **CLOSE)
    assert float(at.sum(-1).abs().max()) < 1e-9
    assert float(at.norm(dim=-1).max()) <= 4 * (1 + 1e-9)
    logits = read(trace(model, ids).stream[-1])
    bound = 4 * read.A.norm(dim=0)
    assert ((logits - read.c0).abs() <= bound).all()
    again = confidence_ceiling(folded(model), batch_size=3)
    torch.testing.assert_close(
        torch.tensor(again["log_odds"].to_numpy()),
        torch.tensor(result["log_odds"].to_numpy()),
        rtol=1e-9,
        atol=1e-9,
    )
    some = confidence_ceiling(model, [4, 9])
    assert some["token"].to_numpy().tolist() == [4, 9]
    assert some["tokens"].to_numpy().tolist() == ["e", "j"]


def test_bad_requests_are_refused():
    for wrong in (
        lambda: confidence_ceiling(random_hooked(), [11]),
        lambda: confidence_ceiling(random_hooked(), []),
        lambda: key_selectability(random_hooked(normalization_type=None), "abc"),
        lambda: selection_margins(torch.zeros(1, 2, 3), tolerance=1e-8),
        lambda: token_reachable(random_hooked(normalization_type=None)),
    ):
        with pytest.raises(InputError):
            wrong()
