"""The unembedding as the sphere sees it, and what writes where it cannot see."""

from __future__ import annotations

import math

import pytest
import torch
from agreement import CLOSE, values
from folding import folded
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_hooked, random_ids

from interp import InputError, null_writers, unembed_cosines, unembed_geometry
from interp.engine import trace
from interp.norms import Norm
from interp.readout import readout
from interp.sphere.angles import angle
from interp.sphere.unembedding import least_read


@pytest.mark.parametrize("fold", [False, True])
def test_a_logit_is_length_times_length_times_cosine(fold):
    model, ids = random_hooked(5), random_ids(1, batch=3)
    model = folded(model) if fold else model
    geometry, y = unembed_geometry(model), trace(model, ids)["ln_final_normalized"]
    A = readout(model).A
    for token in range(11):
        cosine = angle(y, A[:, token].expand_as(y)).cos()
        want = geometry["norm"].to_numpy()[token] * y.norm(dim=-1) * cosine
        logit = model(ids)[..., token] - geometry["c0"].to_numpy()[token]
        torch.testing.assert_close(want, logit, **CLOSE)
    assert float((geometry["reach"] - 4 * geometry["norm"]).max()) == 0


def test_cosines_are_a_gram_matrix_of_unit_vectors():
    cosines = values(unembed_cosines(random_hooked(5)))
    torch.testing.assert_close(cosines.diagonal(), torch.ones(11).double(), **CLOSE)
    assert float(torch.linalg.eigvalsh(cosines).min()) > -1e-12
    some = unembed_cosines(random_hooked(5), [3, 7])
    torch.testing.assert_close(values(some), cosines[[3, 7]][:, [3, 7]], **CLOSE)
    assert some["token"].to_numpy().tolist() == [3, 7]


def test_adding_1_to_a_tokens_gained_column_changes_nothing():
    model = random_hooked(5)
    before, cosines = unembed_geometry(model), values(unembed_cosines(model))
    model.unembed.W_U[:, 4] += 2.5 / model.ln_final.w
    model.unembed.b_U[4] -= float((2.5 * model.ln_final.b / model.ln_final.w).sum())
    after = unembed_geometry(model)
    for name in ("norm", "c0", "singular_value"):
        torch.testing.assert_close(values(after[name]), values(before[name]), **CLOSE)
    torch.testing.assert_close(values(unembed_cosines(model)), cosines, **CLOSE)


@pytest.mark.parametrize("kind", ["LN", "RMS"])
@given(d=st.integers(2, 16), n=st.integers(1, 20), seed=st.integers(0, 2**31))
def test_least_read_directions_are_a_basis_in_order_of_how_they_are_read(kind, d, n, seed):
    generator = torch.Generator().manual_seed(seed)
    one = torch.ones(d).double()
    norm = Norm(kind, 1e-5, one, 0 * one)
    A = norm.centred(torch.randn(n, d, generator=generator).double()).mT
    axes, read = least_read(A, norm.basis())
    m = d - (kind == "LN")
    torch.testing.assert_close(axes.mT @ axes, torch.eye(m).double(), **CLOSE)
    if kind == "LN":
        assert float(axes.sum(0).abs().max()) < 1e-10
    torch.testing.assert_close((A.mT @ axes).norm(dim=0), read, **CLOSE)
    assert (read.diff() >= -1e-12).all()
    assert int((read < 1e-9).sum()) >= m - n
    w = torch.randn(7, d, generator=generator).double()
    torch.testing.assert_close(
        (w @ axes).square().sum(-1), norm.centred(w).square().sum(-1), **CLOSE
    )


def test_what_is_written_into_the_exact_null_space_moves_no_logit_but_by_the_scale():
    """11 tokens in 16 dimensions leave 15 - 11 that no logit reads."""
    model, ids = random_hooked(5), random_ids(1, batch=2)
    result = null_writers(model)
    assert int(result["exact_null_dim"]) == int(result["null_dim"]) == 4
    read = readout(model)
    axes, _ = least_read(read.A, read.norm.basis())
    model.blocks[1].mlp.W_out[5] = axes[:, 2] * 3
    planted = null_writers(model)
    assert float(planted["null_share"][1, 5]) == pytest.approx(1)
    assert float(planted["norm"][1, 5]) == pytest.approx(3)
    assert float(planted["null_share"].sum()) < 46
    x = trace(model, ids).stream[-1]
    s = read.norm.scale(x)
    moved = read(x + axes[:, 2] * 3) - read.c0
    without = read.norm.scale(x + axes[:, 2] * 3)
    torch.testing.assert_close(moved, (s / without) * (read(x) - read.c0), **CLOSE)


def test_shares_over_all_directions_are_one():
    assert float(abs(null_writers(random_hooked(5), 15)["null_share"] - 1).max()) < 1e-10
    approximate = null_writers(random_hooked(5, d_vocab=40))
    assert int(approximate["exact_null_dim"]) == 0
    assert int(approximate["null_dim"]) == 1


def test_bad_requests_are_refused():
    for wrong in (
        lambda: null_writers(random_hooked(attn_only=True)),
        lambda: null_writers(random_hooked(), 16),
        lambda: null_writers(random_hooked(), 0),
        lambda: unembed_cosines(random_hooked(), [11]),
        lambda: unembed_geometry(random_hooked(normalization_type=None)),
    ):
        with pytest.raises(InputError):
            wrong()
    assert math.isfinite(float(unembed_geometry(random_hooked())["norm"].sum()))
