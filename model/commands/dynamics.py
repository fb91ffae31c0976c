"""Measure every snapshot of a run: when each mechanism forms.

Several runs (seeds of one recipe) give a spread. What is measured is kept beside each run, so
that a second call, or one that was stopped, does only what is missing. Writes a table, the
half-way steps and a report that opens without a network.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from ..snapshots import Snapshots

TABLE, POINTS, REPORT = "training.csv", "change_points.csv", "report.html"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="run directories, best of one recipe"
    )
    parser.add_argument("--text", metavar="FILE", help="read this text (default: the run's own)")
    parser.add_argument(
        "--windows", type=int, default=128, help="pieces of text to measure on (default: 128)"
    )
    parser.add_argument(
        "--tuned-steps", type=int, default=60, help="of fitting each tuned lens (default: 60)"
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="for the results (default: RUN/dynamics)"
    )
    parser.add_argument("--again", action="store_true", help="measure anew what is kept already")


def run(args: argparse.Namespace) -> int:
    # The command line is the one place where `model` and `interp` meet.
    import interp
    from interp.figures.report import training_report

    from ..errors import ModelError
    from ..files import write_text
    from ..memory import give_memory_back_at_once
    from ..snapshots import RESULTS, Snapshots
    from ..tables import console, table

    give_memory_back_at_once()
    try:
        series = [Snapshots(path) for path in args.runs]
        how = {"text": args.text, "n_windows": args.windows, "tuned_steps": args.tuned_steps}
        measures = [measured(each, **how, again=args.again) for each in series]
        curves = interp.training_curves(*measures)
        points = interp.change_points(curves)
        report = training_report(*measures)
    except interp.InputError as error:
        raise ModelError(str(error)) from error
    for each in measures:
        for step, why in each.attrs["skipped"]:
            sys.stderr.write(f"{each.attrs['run']}: step {step} is left out: {why}\n")
    out = args.out or series[0].run.path / RESULTS
    write_text(out / TABLE, _wide(curves).to_csv(index=False))
    found = points.to_dataframe().reset_index()
    write_text(out / POINTS, found.to_csv(index=False))
    write_text(out / REPORT, report)
    several = len(measures) > 1
    console().print(table("half-way steps", _summary(points, several)))
    sys.stdout.write(f"{out / TABLE}, {POINTS} and {REPORT} are written.\n")
    return 0


def measured(
    series: Snapshots,
    *,
    text: str | None = None,
    n_windows: int = 128,
    tuned_steps: int = 60,
    again: bool = False,
) -> xr.Dataset:
    """The default set at every snapshot, on the run's own text where it says what that is.

    Raises:
        ModelError: when the text cannot be read.
        InputError: whatever `interp.track_training` raises.
    """
    import torch

    import interp

    excerpts = series.excerpts(n_windows, text)
    counted = series.run.path / "ngrams.safetensors"
    ngrams = None
    if excerpts is not None and text is None and counted.is_file():
        ngrams = interp.NGrams.load(counted)
    elif excerpts is not None and excerpts.whole is not None:
        ids = torch.from_numpy(excerpts.whole.astype("int64"))
        ngrams = interp.count_ngrams(ids, series.run.config.d_vocab, order=3)
    if again:
        for folder in series.folders:
            (folder / "training_measures.safetensors").unlink(missing_ok=True)
    with interp.progress_bar(series.name) as progress:
        return interp.track_training(
            series,
            None if excerpts is None else excerpts.held_out,
            train=None if excerpts is None else excerpts.train,
            tuned_steps=tuned_steps,
            ngrams=ngrams,
            n_windows=n_windows,
            progress=progress,
        )


def _wide(curves: xr.DataArray) -> pd.DataFrame:
    """One row a run and step, one column a curve; steps that a run does not have are left out."""
    values = curves.drop_vars(["title", "units", "group", "tokens_seen"])
    rows = values.to_dataset("track").to_dataframe().dropna(how="all")
    seen = curves["tokens_seen"].drop_vars(["title", "units", "group"], errors="ignore")
    rows.insert(0, "tokens_seen", seen.to_series().reindex(rows.index))
    return rows.reset_index()


def _summary(points: xr.Dataset, several: bool) -> pd.DataFrame:
    """What the terminal shows: one row a curve that changes, the earliest first."""
    import pandas as pd

    rows = []
    for name in points.sortby("median")["track"].to_numpy():
        point = points.sel(track=name)
        if not int(point["n_runs"]):
            continue
        first = point.isel(run=0)
        row = {"curve": str(point["title"].item()), "half-way": f"{float(point['median']):.0f}"}
        if several:
            row["from"] = f"{float(point['earliest']):.0f}"
            row["to"] = f"{float(point['latest']):.0f}"
            row["runs"] = f"{int(point['n_runs'])} of {points.sizes['run']}"
        else:
            row["between"] = f"{float(first['after']):.0f} and {float(first['by']):.0f}"
            row["start"], row["end"] = f"{float(first['start']):.3g}", f"{float(first['end']):.3g}"
        rows.append(row)
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["curve", "half-way"])
