"""`orrery dynamics`: a table, half-way steps and a report, from the snapshots of several runs."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from tiny_run import CHARACTERS, write_run

import interp
from model import Snapshots, load
from model.checkpoint import snapshot_path
from model.cli import main

STEPS = {"one": (0, 4, 32), "two": (0, 4)}


def write_runs(folder: Path) -> list[Path]:
    """Two runs of the same shape; neither says what it was trained on."""
    return [write_run(folder / name, steps=steps) for name, steps in STEPS.items()]


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return write_runs(tmp_path)


class Measured(NamedTuple):
    runs: list[Path]
    how: Sequence[object]
    out: Path
    printed: str


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Both runs, measured on a text in one call."""
    folder = tmp_path_factory.mktemp("measured")
    order = np.random.default_rng(0).integers(0, len(CHARACTERS), 3000)
    text = folder / "text"
    text.write_text("".join(CHARACTERS[i] for i in order), encoding="utf-8")
    runs = write_runs(folder)
    how = ("--text", text, "--windows", 8, "--tuned-steps", 1)
    with redirect_stdout(io.StringIO()) as printed:
        assert dynamics(*runs, *how, "--out", folder / "out") == 0
    return Measured(runs, how, folder / "out", printed.getvalue())


def dynamics(*argv: object) -> int:
    return main(["dynamics", *map(str, argv)])


@pytest.mark.slow
def test_tables_and_report(measured: Measured) -> None:
    assert "2 of 2" in measured.printed
    table = pd.read_csv(measured.out / "training.csv")
    rows = [(run, step) for run, steps in STEPS.items() for step in steps]
    assert list(table[["run", "step"]].itertuples(index=False, name=None)) == rows
    # The numbers are those of the single model, on the last tenth of the text.
    run = measured.runs[0]
    measures = interp.read_results(run / "dynamics" / "training_measures.safetensors")
    scores = interp.induction_scores(load(run, 4))["value"].sel(score="induction")
    row = table[(table["run"] == "one") & (table["step"] == 4)].iloc[0]
    assert row["induction"] == pytest.approx(float(scores.max()), rel=1e-6)
    assert row["loss"] == pytest.approx(float(measures["loss"].sel(step=4)))
    assert measures["order"].size == 4
    points = pd.read_csv(measured.out / "change_points.csv")
    assert {"run", "track", "step", "after", "by", "median"} <= set(points.columns)
    report = (measured.out / "report.html").read_text("utf-8")
    assert "<h1>Through training: one, two</h1>" in report


@pytest.mark.slow
def test_a_second_call_measures_nothing(measured: Measured, tmp_path, capsys, monkeypatch):
    table = pd.read_csv(measured.out / "training.csv")
    run = shutil.copytree(measured.runs[1], tmp_path / "two")

    def broken(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr("interp.dynamics.measures._heads", broken)
    assert dynamics(run, *measured.how) == 0
    again = pd.read_csv(run / "dynamics" / "training.csv")
    of_two = table.query("run == 'two'").reset_index(drop=True)
    pd.testing.assert_frame_equal(again, of_two, check_exact=True)
    capsys.readouterr()
    assert dynamics(run, *measured.how, "--again") == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_damaged_and_a_missing_snapshot_are_named(runs, capsys):
    damaged = snapshot_path(runs[0], 4)
    damaged.write_bytes(damaged.read_bytes()[:-100])
    info = {"finished": True, "recipe": {"steps": 32, "snapshot_from": 4}}
    (runs[0] / "run.json").write_text(json.dumps(info))
    assert Snapshots(runs[0]).steps == (0, 4, 8, 16, 32)
    assert dynamics(runs[0]) == 0
    told = capsys.readouterr().err
    assert "one: step 4 is left out" in told
    assert "step-00000004.safetensors" in told
    assert "one: step 16 is left out" in told
    table = pd.read_csv(runs[0] / "dynamics" / "training.csv")
    assert table["step"].tolist() == [0, 32]


def test_bad_input_is_one_sentence(runs, tmp_path, capsys):
    short = tmp_path / "short"
    short.write_text("abc" * 9)
    for argv in ((tmp_path / "none",), (runs[0], "--text", short), (runs[0], "--windows", 0)):
        assert dynamics(*argv) == 2
        told = capsys.readouterr().err
        assert told.startswith("orrery: ")
        assert told.count("\n") == 1
