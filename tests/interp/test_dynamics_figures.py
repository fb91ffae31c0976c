"""Figures over log steps: every number where it belongs, whatever the steps are."""

from __future__ import annotations

import re

import numpy as np
import pytest
import xarray as xr
from random_series import RandomSeries

import interp
from interp import figures
from interp.figures.steps import step_places

STEPS = (0, 1, 2, 8, 11, 64)


@pytest.fixture(scope="module")
def measures():
    """Measures of one model, scaled by another number at each step and place."""
    one = interp.track_training(RandomSeries((0,)), cache=None)
    rng = np.random.default_rng(0)
    rows = [
        (one * 1.0)
        .map(lambda values: values * rng.uniform(0.2, 3.0, values.shape), keep_attrs=True)
        .assign_coords(step=[step], tokens_seen=("step", [7.0 * step]))
        for step in STEPS
    ]
    units = {name: values.attrs for name, values in one.data_vars.items()}
    whole = xr.concat(rows, "step", data_vars="all", coords="minimal", compat="override")
    for name, attrs in units.items():
        whole[name].attrs = attrs
    return whole.assign_attrs(one.attrs)


@pytest.fixture(scope="module")
def other(measures):
    first = measures.isel(step=slice(4))
    return (first**1.5).assign_attrs(run="another", skipped=[])


def test_places_are_log_steps_and_ascend():
    np.testing.assert_allclose(step_places(np.array([0, 1, 2, 8])), [-1, 0, 1, 3])
    np.testing.assert_allclose(step_places(np.array([0, 16, 64])), [3, 4, 6])
    np.testing.assert_allclose(step_places(np.array([0.0, 8.0, 16.0]), first=16.0), [3, 3.5, 4])
    np.testing.assert_allclose(step_places(np.array([0])), [0])
    every = step_places(np.linspace(0, 99, 1000), first=4.0)
    assert (np.diff(every) > 0).all()


def test_curves_hold_the_numbers_and_a_click_gives_the_step(measures, other):
    curves = interp.training_curves(measures, other)
    figure = figures.training_curves(curves, ["induction", "copying"], step=8, pinned=64)
    assert len(figure.data) == 4
    values = measures["induction"].max(("layer", "head")).to_numpy()
    np.testing.assert_allclose(figure.data[0].y, values)
    np.testing.assert_allclose(figure.data[0].x, step_places(np.array(STEPS)))
    assert [point[0] for point in figure.data[1].customdata] == list(STEPS[:4])
    assert [trace.showlegend for trace in figure.data] == [True, False, True, False]
    # One panel a unit, and a line at each marked step in each of them.
    assert {trace.yaxis for trace in figure.data} == {"y", "y2"}
    assert sorted(shape.x0 for shape in figure.layout.shapes) == [3, 3, 6, 6]


def test_half_way_steps_are_marked_on_the_curve(measures):
    curves = interp.training_curves(measures)
    points = interp.change_points(curves)
    names = [str(n) for n in points["track"].to_numpy() if int(points["n_runs"].sel(track=n))]
    figure = figures.training_curves(curves, names, points=points)
    diamonds = [t for t in figure.data if t.mode == "markers"]
    assert sorted(diamond.legendgroup for diamond in diamonds) == sorted(names)
    assert names
    for diamond in diamonds:
        point = points.sel(track=diamond.legendgroup).isel(run=0)
        assert diamond.y[0] == pytest.approx((float(point["start"]) + float(point["end"])) / 2)
        low, high = step_places(np.array([float(point["after"]), float(point["by"])]), first=1.0)
        assert low <= diamond.x[0] <= high


def test_where_a_curve_of_n_grams_is_lowest_is_marked(measures):
    dip = measures.assign(kl_model_ngram=(("step", "order"), [[9], [7], [2], [5], [6], [8]]))
    curves = interp.training_curves(dip)
    points, lowest = interp.change_points(curves), interp.lowest_points(curves)
    names = ["kl_uniform", "loss"]
    figure = figures.training_curves(curves, names, points=points, lowest=lowest)
    (triangle,) = [t for t in figure.data if t.mode == "markers" and "triangle" in t.marker.symbol]
    assert (triangle.legendgroup, triangle.x[0], triangle.y[0]) == ("kl_uniform", 1.0, 2.0)
    assert triangle.customdata[0][0] == 2


@pytest.mark.parametrize(
    ("name", "rows", "n_axes"),
    [("induction", ["L0H0", "L0H1"], 6), ("norm", ["embedding", "L0 attention"], 5),
     ("hop_angle", ["L0 attention", "L0 MLP"], 4), ("kappa", ["embedding"], 5)],
)  # fmt: skip
def test_maps_hold_the_numbers(measures, name, rows, n_axes):
    figure = figures.training_map(measures, name, step=8)
    (heatmap,) = figure.data
    expected = measures[name].to_numpy().reshape(len(STEPS), -1).T
    shown = np.array(heatmap.z)
    np.testing.assert_allclose(
        shown, np.log10(expected) if name == "kappa" else expected, rtol=1e-6
    )
    assert list(figure.layout.yaxis.ticktext)[: len(rows)] == rows
    assert shown.shape == (n_axes, len(STEPS))
    assert len(heatmap.x) == len(STEPS) + 1
    assert (np.diff(heatmap.x) > 0).all()
    assert heatmap.customdata[0, :, 0].astype(int).tolist() == list(STEPS)
    frame = figure.layout.shapes[0]
    assert frame.x0 < step_places(np.array([0, 1, 8]))[-1] < frame.x1


def test_the_timeline_shows_every_run_between_its_snapshots(measures, other):
    points = interp.change_points(interp.training_curves(measures, other))
    figure = figures.change_points(points)
    ticks = list(figure.layout.yaxis.ticktext)
    measured = points["start"].notnull().any("run")
    assert len(ticks) == int(measured.sum())
    markers = [trace for trace in figure.data if trace.mode == "markers"]
    found = np.isfinite(points["step"]).sum("track").to_numpy()
    assert [len(trace.x) for trace in markers] == found.tolist()
    medians = points["median"].dropna("track")
    first = str(medians.isel(track=int(medians.to_numpy().argmin()))["title"].item())
    assert ticks[0] == first
    text = next(trace for trace in figure.data if trace.mode == "text")
    assert len(text.y) == int(((points["n_runs"] == 0) & measured).sum())


def test_one_step_draws(measures):
    alone = measures.isel(step=[2])
    curves = interp.training_curves(alone)
    figures.training_curves(curves, ["loss"], step=2)
    figures.training_map(alone, "norm", step=2)
    figures.change_points(interp.change_points(curves))


def test_what_is_not_there_is_said(measures):
    curves = interp.training_curves(measures)
    with pytest.raises(interp.InputError, match="luck"):
        figures.training_curves(curves, ["luck"])
    with pytest.raises(interp.InputError, match="induction"):
        figures.training_map(measures, "loss")


def test_the_report_opens_alone_and_names_what_is_left_out(measures, other):
    skipped = measures.assign_attrs(skipped=[[3, "<b>gone</b>"]])
    page = figures.training_report(skipped, other)
    assert "step 3 is left out: &lt;b&gt;gone&lt;/b&gt;" in page
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page)
    # No chart has the button that would send it to another host.
    assert page.count('"showSendToCloud": false') == page.count("Plotly.newPlot(") > 0
    assert page.count("<h2>") >= 8
    assert "coincide" in page
    assert "cause" in page
    points = interp.change_points(interp.training_curves(measures, other))
    for title in points["title"].to_numpy():
        assert str(title).split("‖")[0] in page
