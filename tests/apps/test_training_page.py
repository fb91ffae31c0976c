"""The Training page: what is kept beside a run, its seeds, pinned steps, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from explorer_pages import charts, sentences
from tiny_run import STEPS, write_run

import interp
from model import Snapshots

KEPT = "dynamics/training_measures.safetensors"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run that was measured, and one more seed of it."""
    folder = tmp_path_factory.mktemp("measured")
    run = write_run(folder / "a_run")
    found = interp.track_training(Snapshots(run))
    assert (run / KEPT).is_file()
    seed = run / "seeds" / "a_seed"
    other = found.assign(induction=found["induction"] * 0.5).assign_attrs(run="a_seed")
    interp.write_results(seed / KEPT, other.assign_attrs(skipped=[]))
    return folder


def test_a_run_that_was_not_measured_is_measured_on_random_blocks(runs, open_page):
    app = open_page("training")
    assert sentences(app) == []
    assert app.code[0].value.startswith("orrery dynamics ")
    assert app.code[0].value.endswith("a_tiny")
    assert "track_training(series, cache=None)" in app.code[-1].value
    assert not (runs / "a_tiny" / "dynamics").exists()
    line = charts(app)[0]["data"][0]
    assert [point[0] for point in line["customdata"]] == list(STEPS)


def test_what_is_kept_is_read_and_seeds_stand_side_by_side(measured, open_page):
    app = open_page("training", folder=measured, curves_of="heads", score="induction")
    assert sentences(app) == []
    assert not app.info
    assert "track_training" not in app.code[-1].value
    assert "seed_1 = read_results(" in app.code[-1].value
    lines = [t for t in charts(app)[0]["data"] if t.get("legendgroup") == "induction"]
    assert [t["showlegend"] for t in lines if "lines" in t["mode"]] == [True, False]


def test_two_steps_are_compared_the_earlier_first(measured, open_page):
    app = open_page("training", folder=measured, step=8, pinned=0, curves_of="heads")
    assert sentences(app) == []
    table = app.table[0].value
    assert list(table.columns)[-3:] == ["step 0", "step 8", "change"]
    kept = interp.read_results(measured / "a_run" / KEPT)["induction"].max(("layer", "head"))
    row = table[table.iloc[:, 0].astype(str).str.contains("induction head")].iloc[0]
    assert float(row["step 0"]) == pytest.approx(float(kept.sel(step=0)), rel=1e-3)
    assert float(row["step 8"]) == pytest.approx(float(kept.sel(step=8)), rel=1e-3)


def test_a_step_that_was_left_out_is_named(measured, open_page):
    path = measured / "a_run" / KEPT
    kept = path.read_bytes()
    try:
        skipped = interp.read_results(path).sel(step=[0, 8])
        interp.write_results(path, skipped.assign_attrs(skipped=[[32, "a <b>bad</b> file"]]))
        app = open_page("training", folder=measured, step=32)
        (told,) = sentences(app)
        assert "Step 32 is left out: a <b>bad</b> file" in told
        assert len(charts(app)) == 4
    finally:
        path.write_bytes(kept)


def test_numbers_of_other_weights_are_told(measured, open_page):
    path = measured / "a_run" / KEPT
    kept = path.read_bytes()
    try:
        altered = interp.read_results(path)
        interp.write_results(path, altered.assign(induction=altered["induction"] + 0.01))
        (told,) = sentences(open_page("training", folder=measured))
        assert "This check fails" in told
    finally:
        path.write_bytes(kept)


def test_long_measuring_waits_until_it_is_asked_for(tmp_path, open_page):
    write_run(tmp_path / "large", n_layers=3, n_heads=2, d_model=160, d_mlp=1000)
    app = open_page("training", folder=tmp_path)
    assert sentences(app) == []
    assert app.button(key="begin").label == "Measure every snapshot"
    assert not charts(app)
