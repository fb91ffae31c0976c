"""`orrery dynamics`: a table, half-way steps and a report, from the snapshots of several runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tiny_run import CHARACTERS, write_run

import interp
from model import Snapshots, load
from model.checkpoint import snapshot_path
from model.cli import main

STEPS = (0, 4, 32)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two runs of the same shape; neither says what it was trained on."""
    return [write_run(tmp_path / name, steps=STEPS) for name in ("one", "two")]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    order = np.random.default_rng(0).integers(0, len(CHARACTERS), 3000)
    path = tmp_path / "text"
    path.write_text("".join(CHARACTERS[i] for i in order), encoding="utf-8")
    return path


def dynamics(*argv: object) -> int:
    return main(["dynamics", *map(str, argv)])


@pytest.mark.slow
def test_tables_and_report(runs, text, tmp_path, capsys):
    out = tmp_path / "out"
    assert dynamics(*runs, "--text", text, "--windows", 8, "--tuned-steps", 1, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "2 of 2" in printed
    table = pd.read_csv(out / "training.csv")
    assert table["run"].tolist() == ["one"] * 3 + ["two"] * 3
    assert table["step"].tolist() == [*STEPS, *STEPS]
    # The numbers are those of the single model, on the last tenth of the text.
    measures = interp.read_results(runs[0] / "dynamics" / "training_measures.safetensors")
    scores = interp.induction_scores(load(runs[0], 4))["value"].sel(score="induction")
    row = table[(table["run"] == "one") & (table["step"] == 4)].iloc[0]
    assert row["induction"] == pytest.approx(float(scores.max()), rel=1e-6)
    assert row["loss"] == pytest.approx(float(measures["loss"].sel(step=4)))
    assert measures["order"].size == 4
    points = pd.read_csv(out / "change_points.csv")
    assert {"run", "track", "step", "after", "by", "median"} <= set(points.columns)
    assert "<h1>Through training: one, two</h1>" in (out / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_a_second_call_measures_nothing(runs, tmp_path, capsys, monkeypatch):
    assert dynamics(runs[0]) == 0
    first = (runs[0] / "dynamics" / "training.csv").read_bytes()

    def broken(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr("interp.dynamics.measures._heads", broken)
    assert dynamics(runs[0]) == 0
    assert (runs[0] / "dynamics" / "training.csv").read_bytes() == first
    capsys.readouterr()
    assert dynamics(runs[0], "--again") == 1
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
