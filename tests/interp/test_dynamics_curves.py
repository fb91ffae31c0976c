"""Change points of curves whose change points are known, and the curves of planted measures."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import interp
from interp.dynamics.change_points import crossing
from interp.dynamics.curves import TRACKS, training_curves

GRID = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 724, 1024, 1448, 2048, 4096])


def as_curves(*runs: dict[str, np.ndarray], steps: np.ndarray = GRID) -> xr.DataArray:
    """Curves as `training_curves` returns them, of values given by hand."""
    names = list(runs[0])
    values = np.array([[run[name] for name in names] for run in runs])
    return xr.DataArray(
        values,
        dims=("run", "track", "step"),
        coords={
            "run": [f"seed {i}" for i in range(len(runs))],
            "track": names,
            "step": steps,
            "tokens_seen": (("run", "step"), np.tile(10.0 * steps, (len(runs), 1))),
            "title": ("track", [TRACKS[name].title for name in names]),
            "units": ("track", [TRACKS[name].units for name in names]),
            "group": ("track", [TRACKS[name].group for name in names]),
        },
        name="curve",
    )


def hill(k: float, n: float) -> np.ndarray:
    """From 0 at step 0 towards 1, exactly 1/2 at step k: s^n / (s^n + k^n)."""
    powers = GRID.astype(float) ** n
    return powers / (powers + k**n)


@pytest.mark.parametrize("k", [20.0, 300.0, 1000.0])
def test_a_hill_curve_is_half_way_at_its_own_constant(k):
    # Its end is not yet 1, so the middle is a little early; a steep curve leaves nothing of that.
    found = crossing(GRID, hill(k, 8.0), 0.1)
    assert found.after <= k <= found.by
    assert found.crossings == 1
    fine = np.unique(np.geomspace(1, 4096, 4000).round())
    powers = fine**8.0
    step = crossing(fine, powers / (powers + k**8.0), 0.1).step
    assert step == pytest.approx(k, rel=2e-3)


@given(st.floats(0.5, 5.0), st.floats(-3.0, 3.0), st.integers(1, 14), st.booleans())
def test_a_straight_line_over_log_steps_is_half_way_at_the_geometric_mean(slope, start, n, falls):
    steps = GRID[n:].astype(float)
    if len(steps) < 2:
        return
    values = start + (-slope if falls else slope) * np.log2(steps)
    found = crossing(steps, values, 0.0)
    assert found.step == pytest.approx(float(np.sqrt(steps[0] * steps[-1])), rel=1e-9)


@given(st.floats(0.1, 9.0), st.floats(-5.0, 5.0), st.floats(2.0, 4000.0))
def test_scale_and_offset_of_a_curve_do_not_matter(scale, offset, k):
    plain = crossing(GRID, hill(k, 3.0), 0.0)
    moved = crossing(GRID, offset - scale * hill(k, 3.0), 0.0)
    np.testing.assert_allclose(moved, plain, rtol=1e-6)


@pytest.mark.parametrize(("jump", "expected"), [(3, (4, 8)), (11, (724, 1024)), (0, (0, 1))])
def test_a_jump_lies_between_the_snapshots_around_it(jump, expected):
    values = (np.arange(len(GRID)) > jump).astype(float)
    found = crossing(GRID, values, 0.1)
    assert (found.after, found.by) == (GRID[jump], GRID[jump + 1])
    assert (found.after, found.by) == expected or jump == 3
    low, high = GRID[jump], GRID[jump + 1]
    assert found.step == pytest.approx(np.sqrt(low * high) if low else 0.5 * high)


def test_gaps_are_passed_over():
    values = hill(100.0, 4.0)
    values[[0, 5, 7, 9, 15]] = np.nan
    there = np.isfinite(values)
    assert crossing(GRID, values, 0.1) == crossing(GRID[there], values[there], 0.1)


@pytest.mark.parametrize(
    "values",
    [
        np.full(len(GRID), 0.3),
        0.3 + 0.04 * hill(64.0, 4.0),
        np.full(len(GRID), np.nan),
        np.where(GRID == 64, 1.0, np.nan),
    ],
    ids=["flat", "less than the least change", "nothing known", "one step known"],
)
def test_no_change_is_claimed_where_there_is_none(values):
    assert np.isnan(crossing(GRID, values, 0.1)).all()
    found = interp.change_points(as_curves({"induction": values}))
    assert int(found["n_runs"][0]) == 0
    assert np.isnan(found["step"]).all()


def test_a_curve_that_comes_back_says_so():
    bump = hill(16.0, 4.0) - 0.9 * hill(200.0, 6.0) + 0.9 * hill(2000.0, 6.0)
    found = crossing(GRID, bump, 0.1)
    assert found.crossings == 3
    assert (found.after, found.by) == (8, 16)


def test_the_spread_over_seeds():
    seeds = [as_curves({"induction": hill(k, 8.0), "loss": 4 - 3 * hill(2 * k, 8.0)})
             for k in (60.0, 200.0, 90.0)]  # fmt: skip
    curves = xr.concat(
        [seed.assign_coords(run=[f"seed {i}"]) for i, seed in enumerate(seeds)], "run"
    )
    found = interp.change_points(curves)
    steps = found["step"].sel(track="induction").to_numpy()
    assert steps[0] < steps[2] < steps[1]
    here = found.sel(track="induction")
    assert float(here["median"]) == steps[2]
    assert (float(here["earliest"]), float(here["latest"])) == (steps[0], steps[1])
    assert int(here["n_runs"]) == 3
    np.testing.assert_allclose(here["start"], 0)
    order = interp.lead(found, "induction", "loss")
    np.testing.assert_allclose(
        order["lead"], found["step"].sel(track="loss") - found["step"].sel(track="induction")
    )
    assert (order["lead"] > 0).all()
    np.testing.assert_allclose(interp.lead(found, "loss", "induction")["lead"], -order["lead"])


def test_an_order_within_one_gap_of_the_grid_is_not_resolved():
    both = {"previous_token": hill(18.0, 9.0), "induction": hill(28.0, 9.0)}
    found = interp.lead(interp.change_points(as_curves(both)), "previous_token", "induction")
    assert float(found["lead"][0]) > 0
    assert not bool(found["resolved"][0])
    apart = {"previous_token": hill(18.0, 9.0), "induction": hill(50.0, 9.0)}
    found = interp.lead(interp.change_points(as_curves(apart)), "previous_token", "induction")
    assert bool(found["resolved"][0])


def test_the_lowest_point_of_a_parabola_over_log_steps():
    dip = (np.log2(np.maximum(GRID, 0.5)) - 5.0) ** 2
    falls = -np.log2(np.maximum(GRID, 0.5))
    curves = {"kl_unigram": dip, "loss": falls, "kl_uniform": -falls}
    found = interp.lowest_points(as_curves(curves))
    assert found["step"].sel(track="kl_unigram").item() == 32
    assert found["value"].sel(track="kl_unigram").item() == 0
    assert found["step"].sel(track="loss").item() == GRID[-1]
    assert found["step"].sel(track="kl_uniform").item() == 0
    np.testing.assert_array_equal(found["inside"], [[True, False, False]])
    np.testing.assert_array_equal(found["n_runs"], [1, 0, 0])
    dip[6] = np.nan
    gap = interp.lowest_points(as_curves({"kl_unigram": dip}))
    assert gap["step"].item() in (16, 64)


def measures(run: str, steps: list[int], induction: float) -> xr.Dataset:
    """Measures with a planted induction head L1H2 and a previous-token head L0H1."""
    rng, n = np.random.default_rng(len(run)), len(steps)
    by_head = rng.uniform(0.0, 0.1, (n, 2, 3))
    scores = {name: by_head.copy() for name in ("previous_token", "duplicate_token", "induction")}
    scores["induction"][:, 1, 2] = np.linspace(0.1, induction, n)
    # A head of the last layer attends to the previous token too, but cannot feed L1H2.
    scores["previous_token"][-1, 0, 1], scores["previous_token"][-1, 1, 0] = 0.5, 0.8
    k_composition = rng.uniform(0.0, 0.1, (n, 2, 3, 2, 3))
    k_composition[:, 0, 1, 1, 2] = 0.25 + 0.125 * np.arange(n)
    head, state = ("step", "layer", "head"), ("step", "state")
    kappa = 10.0 ** -np.arange(3.0, 6.0) * np.ones((n, 1))
    return xr.Dataset(
        {
            **{name: (head, values) for name, values in scores.items()},
            "copying": (head, by_head),
            "k_composition": (
                ("step", "source_layer", "source_head", "layer", "head"), k_composition
            ),
            "kappa": (state, kappa),
            "loss": ("step", np.arange(n) + 0.5),
            "kl_model_ngram": (("step", "order"), np.arange(2.0 * n).reshape(n, 2)),
        },
        coords={
            "step": steps, "tokens_seen": ("step", 10.0 * np.array(steps)), "order": [0, 1],
            "layer": [0, 1], "head": [0, 1, 2], "source_layer": [0, 1], "source_head": [0, 1, 2],
            "state": ["0_pre", "1_pre", "final_post"],
        },
        attrs={"run": run},
    )  # fmt: skip


def test_curves_are_read_off_the_measures():
    curves = training_curves(measures("one", [0, 4, 16], 0.9))
    assert curves.dims == ("run", "track", "step")
    of = curves.isel(run=0)
    np.testing.assert_allclose(of.sel(track="induction"), [0.1, 0.5, 0.9])
    np.testing.assert_allclose(of.sel(track="k_composition"), [0.25, 0.375, 0.5])
    np.testing.assert_allclose(of.sel(track="kappa_first"), -3)
    np.testing.assert_allclose(of.sel(track="kappa_last"), -5)
    np.testing.assert_allclose(of.sel(track="kl_unigram"), [1, 3, 5])
    assert np.isnan(of.sel(track=["kl_bigram", "val_loss", "edge_overlap"])).all()
    np.testing.assert_allclose(curves["tokens_seen"], [[0, 40, 160]])
    assert list(curves["track"].to_numpy()) == list(TRACKS)
    assert str(curves["units"].sel(track="kappa_last").item()) == "decades"


def test_runs_with_other_steps_are_laid_side_by_side():
    runs = [measures("a", [0, 4, 16], 0.9), measures("bc", [0, 8, 16], 0.7),
            measures("a", [0, 4, 16], 0.5)]  # fmt: skip
    curves = training_curves(*runs, names=["induction", "loss"])
    assert list(curves["run"].to_numpy()) == ["a (1)", "bc", "a (2)"]
    assert list(curves["step"].to_numpy()) == [0, 4, 8, 16]
    here = curves.sel(track="induction").to_numpy()
    np.testing.assert_allclose(here[0], [0.1, 0.5, np.nan, 0.9])
    np.testing.assert_allclose(here[1], [0.1, np.nan, 0.4, 0.7])
    np.testing.assert_allclose(
        curves["tokens_seen"],
        [[0, 40, np.nan, 160], [0, np.nan, 80, 160], [0, 40, np.nan, 160]],
    )


def test_unknown_curves_are_refused():
    one = measures("a", [0, 1], 0.5)
    with pytest.raises(interp.InputError, match="luck"):
        training_curves(one, names=["luck"])
    with pytest.raises(interp.InputError, match="0 runs"):
        training_curves()
    points = interp.change_points(training_curves(one, names=["loss"]))
    with pytest.raises(interp.InputError, match="induction"):
        interp.lead(points, "loss", "induction")
