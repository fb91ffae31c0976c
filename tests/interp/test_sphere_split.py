"""An update is mean, radial and tangential; LayerNorm's answer follows from these three."""

from __future__ import annotations

import pytest
import torch
from agreement import CLOSE, values
from folding import folded
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_hooked, random_ids
from sphere_rows import EPS, Exact, rows

from interp import InputError, neuron_split, sphere_path, update_split
from interp.components import updates
from interp.engine import trace
from interp.norms import Norm, mean_removed
from interp.sphere.laws import row_norm
from interp.sphere.split import Frame


def layernorm(d: int, kind: str = "LN") -> Norm:
    one = torch.ones(d, dtype=torch.float64)
    return Norm(kind, EPS, one, 0 * one)


@st.composite
def states_and_updates(draw, min_d: int = 2):
    """States of any magnitude, with updates from a millionth of them to a thousand times."""
    x = draw(rows(min_d=min_d))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return x, noise * row_norm(mean_removed(x))[:, None] * 10.0 ** draw(st.floats(-6, 3))


@given(states_and_updates())
def test_pythagoras_and_the_angle_of_the_hop(pair):
    x, u = pair
    parts = Frame.at(x, layernorm(x.shape[-1])).split(u)
    torch.testing.assert_close(parts.squared, u.square().sum(-1), rtol=1e-10, atol=0)
    torch.testing.assert_close(parts.mean, u.sum(-1) / x.shape[-1] ** 0.5, **CLOSE)
    before, after = Exact(x).like("centred"), Exact(x, plus=u).like("centred")
    a, b = before / row_norm(before)[:, None], after / row_norm(after)[:, None]
    want = 2 * torch.atan2(row_norm(a - b), row_norm(a + b))
    torch.testing.assert_close(parts.hop, want, rtol=1e-8, atol=1e-12)


@given(states_and_updates())
def test_shares_killed_are_those_of_the_vectors(pair):
    x, u = pair
    parts = Frame.at(x, layernorm(x.shape[-1])).split(u)
    before, after, size = Exact(x), Exact(x, plus=u), u.square().sum(-1)
    moved = torch.from_numpy(((after.y - before.y) ** 2).sum(-1).astype("float64"))
    share = 1 - moved * before.like("s") ** 2 / size
    # The share is of order (s/s')^2 where the update shrinks the stream.
    scale = 1 + (before.like("s") / after.like("s")) ** 2
    assert ((parts.killed - share).abs() <= 1e-9 * scale).all()

    y = before.like("y")
    Ju = (mean_removed(u) - y * (y * u).sum(-1, keepdim=True) / x.shape[-1]) / before.like("s")[
        :, None
    ]
    linear = 1 - Ju.square().sum(-1) * before.like("s") ** 2 / size
    torch.testing.assert_close(parts.killed_linear, linear, rtol=0, atol=1e-10)


@given(rows(), st.floats(0.1, 10))
def test_what_is_killed_whole_and_what_all_but(x, c):
    frame = Frame.at(x, layernorm(x.shape[-1]))
    along_one = frame.split(torch.full_like(x, c))
    for share in (along_one.killed, along_one.killed_linear):
        torch.testing.assert_close(share, torch.ones(3).double(), **CLOSE)
    stretch = frame.split((c - 1) * mean_removed(x))
    assert (stretch.tangential <= 1e-9 * row_norm(x)).all()
    # x + u = c x leaves only the radial difference that epsilon makes.
    exact, scaled = Exact(x), Exact(mean_removed(x), plus=(c - 1) * mean_removed(x))
    radial = torch.from_numpy(((scaled.radius - exact.radius) ** 2).astype("float64"))
    left = radial * exact.like("s") ** 2 / ((c - 1) ** 2 * row_norm(mean_removed(x)) ** 2)
    if abs(c - 1) > 1e-3:
        torch.testing.assert_close(1 - stretch.killed, left, rtol=1e-6, atol=1e-9)


@given(states_and_updates(min_d=3))
def test_small_updates_are_linear(pair):
    x, u = pair
    u = 1e-6 * u / row_norm(u)[:, None] * row_norm(mean_removed(x))[:, None]
    parts = Frame.at(x, layernorm(x.shape[-1])).split(u)
    torch.testing.assert_close(parts.killed, parts.killed_linear, rtol=0, atol=1e-4)


def test_an_update_that_shrinks_the_stream_is_magnified():
    x = torch.tensor([[2.0, -2.0, 0.0, 0.0]], dtype=torch.float64)
    u = torch.tensor([[-1.9, 1.9, 0.5, -0.5]], dtype=torch.float64)
    assert float(Frame.at(x, layernorm(4)).split(u).killed) < 0


def test_rms_norm_loses_no_mean():
    x = torch.tensor([[2.0, 1.0, 0.5]], dtype=torch.float64)
    parts = Frame.at(x, layernorm(3, "RMS")).split(torch.ones_like(x))
    assert float(parts.mean) == 0
    assert float(parts.squared) == pytest.approx(3)


@pytest.fixture(params=["LN", "LNPre", "attention only"], scope="module")
def model(request):
    made = random_hooked(6, attn_only=request.param == "attention only")
    return folded(made) if request.param == "LNPre" else made


def test_the_parts_of_an_attention_are_its_whole(model):
    ids = random_ids(2, batch=3)
    split = update_split(model, ids)
    for layer in range(model.cfg.n_layers):
        whole = split.sel(component=f"{layer}_attn_out")
        own = (split["layer"] == layer) & split["kind"].isin(["head", "attn_bias"])
        parts = split.isel(component=own.to_numpy().nonzero()[0])
        assert parts.sizes["component"] == model.cfg.n_heads + 1
        for name in ("mean", "radial", "along"):
            gap = float(abs(parts[name].sum("component") - whole[name]).max())
            assert gap < 1e-10, name
        assert float(abs(whole["along"] - whole["tangential"]).max()) < 1e-10


def test_tangential_vectors_of_the_parts_sum_to_the_sublayers(model):
    run, frames, sums = trace(model, random_ids(2, batch=3)), {}, {}
    for update in updates(run):
        if update.kind == "mlp":
            continue
        frame = frames.setdefault(update.state, Frame.at(run.stream[update.state], layernorm(16)))
        sign = 1 if update.kind == "attn" else -1
        sums[update.state] = sums.get(update.state, 0) + sign * frame.tangent(update.value)
    for total in sums.values():
        torch.testing.assert_close(total, torch.zeros_like(total), **CLOSE)


def test_whole_updates_make_the_hops_of_the_path(model):
    ids = random_ids(2, batch=3)
    split, path = update_split(model, ids), sphere_path(model, ids)
    hops = split["hop"].sel(component=path["hop"].to_numpy())
    torch.testing.assert_close(values(hops), values(path["hop_angle"]), **CLOSE)


@pytest.mark.parametrize("pos", [None, -2])
@pytest.mark.parametrize("as_it_is", [True, False])
def test_the_neurons_of_an_mlp_are_its_whole(as_it_is, pos):
    model = random_hooked(6) if as_it_is else folded(random_hooked(6))
    ids = random_ids(2, batch=3)
    whole = update_split(model, ids)
    for layer in range(2):
        split = neuron_split(model, ids, layer, pos=pos)
        assert split.sizes["component"] == 24
        want = whole.sel(component=f"{layer}_mlp_out")
        want = want if pos is None else want.isel(pos=[pos])
        for name, of_whole in (("mean", "mean"), ("radial", "radial"), ("along", "tangential")):
            gap = abs(split[name].sum("component") - want[of_whole]).max()
            assert float(gap) < 1e-10, name


def test_a_neurons_split_is_that_of_its_write():
    model, ids = random_hooked(6), random_ids(2, batch=3)
    run, layer = trace(model, ids), 1
    split = neuron_split(model, ids, layer)
    frame = Frame.at(run["resid_mid", layer], layernorm(16))
    mlp = model.blocks[layer].mlp
    for neuron in (0, 7, 22):
        write = run["mlp_post", layer][..., neuron, None] * mlp.W_out[neuron]
        got, parts = split.sel(component=f"L1N{neuron}"), frame.split(write)
        for name in ("mean", "radial", "tangential", "hop", "killed_linear", "killed"):
            torch.testing.assert_close(values(got[name]), getattr(parts, name), **CLOSE)
    parts = frame.split(mlp.b_out.expand_as(run["resid_mid", layer]))
    got = split.sel(component="1_mlp_bias")
    torch.testing.assert_close(values(got["killed"]), parts.killed, **CLOSE)
    assert set(split["state"].to_numpy()) == {"1_mid"}


def test_neurons_that_are_not_there_are_refused():
    for wrong in (
        lambda: neuron_split(random_hooked(), "abc", 2),
        lambda: neuron_split(random_hooked(), "abc", 0, pos=3),
        lambda: neuron_split(random_hooked(attn_only=True), "abc", 0),
        lambda: neuron_split(random_hooked(normalization_type=None), "abc", 0),
    ):
        with pytest.raises(InputError):
            wrong()


def test_centred_writers_leave_no_mean_to_kill():
    model, ids = random_hooked(6), random_ids(2)
    assert float(abs(update_split(model, ids)["mean"]).min()) > 0
    centred = update_split(folded(model), ids)
    assert float(abs(centred["mean"]).max()) < 1e-12
    kept = update_split(folded(model, centre_writers=False), ids)
    for name in ("tangential", "radial"):
        torch.testing.assert_close(
            values(centred[name]), values(update_split(model, ids)[name]), **CLOSE
        )
        torch.testing.assert_close(values(kept[name]), values(centred[name]), **CLOSE)


def test_float32_agrees(model):
    ids = random_ids(2)
    single = random_hooked(6, attn_only=model.cfg.attn_only, dtype=torch.float32)
    double = random_hooked(6, attn_only=model.cfg.attn_only)
    for name, array in update_split(double, ids).items():
        got = values(update_split(single, ids)[name]).double()
        assert float((got - values(array)).abs().max()) < 1e-4, name


def test_a_model_without_normalisation_is_refused():
    with pytest.raises(InputError, match="no normalisation"):
        update_split(random_hooked(normalization_type=None), "abc")
