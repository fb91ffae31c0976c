"""Any analysis at every snapshot of a run, one model in memory, nothing done twice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import xarray as xr

from interp.dynamics.fingerprint import fingerprint, function_name
from interp.dynamics.store import read_results, write_results
from interp.errors import InputError
from interp.replay import Progress

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

Analysis = Callable[..., xr.DataArray | xr.Dataset]


@runtime_checkable
class Series(Protocol):
    """A run's models one after the other; `model.Snapshots` is one.

    `checkpoint` and `load` raise a ValueError that says in one sentence what is wrong with a step
    that is missing or damaged.
    """

    @property
    def name(self) -> str: ...

    @property
    def steps(self) -> Sequence[int]:
        """Every step that there should be."""
        ...

    @property
    def folders(self) -> Sequence[Path]:
        """Where results may be kept, the preferred one first."""
        ...

    def checkpoint(self, step: int) -> str:
        """The hash of the weights at a step."""
        ...

    def recorded(self, step: int) -> Mapping[str, float]:
        """What was noted at a step while it was trained, such as `tokens_seen`."""
        ...

    def load(self, step: int) -> HookedTransformer:
        """The model at a step, which may be the same object each time."""
        ...


def through_training(
    series: Series,
    analysis: Analysis,
    *arguments: Any,
    steps: Sequence[int] | None = None,
    cache: str | Path | Literal["beside"] | None = "beside",
    progress: Progress | None = None,
    **settings: Any,
) -> xr.Dataset:
    """`analysis(model, *arguments, **settings)` at every step, as one result.

    Args:
        series: the run, such as `model.Snapshots("checkpoints/induction")`.
        analysis: anything that takes a model and returns a DataArray or Dataset, with the same
            axes at every step.
        steps: some steps, in any order; all by default.
        cache: the file that keeps what is done, written anew after each step, so that a call that
            was stopped goes on where it was. By default it is named after the analysis, in the
            first of `series.folders` that can be written. One file holds one choice of arguments
            and settings: another choice replaces it. What it holds of a step is used when the
            hash of the weights, the choice and the version of this package are the same. None
            keeps nothing.
        progress: called with the steps done and the steps in all; see `progress_bar`.

    Returns:
        What the analysis returns, every variable with `step` as its first axis, steps ascending
        (a DataArray comes as a Dataset of one variable). Coordinates along step: `tokens_seen`
        and `checkpoint`; what else the run recorded are variables of that name, unless the analysis
        has one of that name. attrs["run"]; attrs["skipped"], a list of [step, why] for steps that
        are missing or damaged.

    Raises:
        InputError: no step that can be read, a step that the run does not have, an analysis whose
            axes differ between steps, or settings that cannot be known again (see `fingerprint`).
        Whatever the analysis raises.

    Cost: that of the analysis and one read of the weights for each step that is not in the cache;
    memory of one model.
    """
    chosen = _chosen(series, steps)
    files, key = list[Path](), ""
    if cache is not None:
        key = fingerprint(function_name(analysis), version("orrery"), arguments, settings)
        files = [Path(cache)] if cache != "beside" else _files(series, analysis.__name__)
    kept = _kept(files, key)
    rows: dict[int, xr.Dataset] = {}
    skipped: list[tuple[int, str]] = []
    for done, step in enumerate(chosen):
        model: HookedTransformer | None = None
        try:
            checkpoint = series.checkpoint(step)
            known = step in kept and str(kept[step]["checkpoint"].item()) == checkpoint
            if not known:
                model = series.load(step)
        except ValueError as error:
            skipped.append((step, str(error)))
        else:
            if model is None:
                rows[step] = kept[step]
            else:
                rows[step] = _row(analysis(model, *arguments, **settings), step, checkpoint, series)
                _keep(files, _together({**kept, **rows}, series, [], key))
        if progress is not None:
            progress(done + 1, len(chosen))
    if not rows:
        raise InputError(
            f"{series.name!r} has none of the steps asked for ({skipped[0][1]}): restore its files."
        )
    return _together(rows, series, skipped, key)


def last_model(series: Series) -> HookedTransformer:
    """The model at the last step that can be read.

    Raises:
        InputError: there is none.
    """
    why = "it has no steps"
    for step in sorted(series.steps, reverse=True):
        try:
            return series.load(step)
        except ValueError as error:
            why = str(error)
    raise InputError(f"{series.name!r} has no step that can be read ({why}): restore its files.")


def _chosen(series: Series, steps: Sequence[int] | None) -> list[int]:
    there = sorted(series.steps)
    if steps is None:
        return there
    unknown = [step for step in steps if step not in there]
    if unknown or not len(steps):
        raise InputError(
            f"Step {unknown[0] if unknown else '(none)'} was asked for, but {series.name!r} has "
            f"{', '.join(map(str, there))}: choose among these."
        )
    return sorted(set(steps))


def _files(series: Series, name: str) -> list[Path]:
    return [folder / f"{name}.safetensors" for folder in series.folders]


def _kept(files: Sequence[Path], key: str) -> dict[int, xr.Dataset]:
    """The steps that the files hold under this key; of two files the first one's."""
    kept: dict[int, xr.Dataset] = {}
    for file in reversed(files):
        # What cannot be read is made again.
        with contextlib.suppress(InputError):
            held = read_results(file)
            if held.attrs.get("key") == key:
                kept |= {int(step): held.sel(step=[step]) for step in held["step"].to_numpy()}
    return kept


def _keep(files: Sequence[Path], results: xr.Dataset) -> None:
    """Into the first file that can be written. Without any, the call still gives its results."""
    for file in files:
        with contextlib.suppress(OSError):
            write_results(file, results)
            return


def _row(
    result: xr.DataArray | xr.Dataset, step: int, checkpoint: str, series: Series
) -> xr.Dataset:
    """A result of one step, with that step as an axis of length 1."""
    if isinstance(result, xr.DataArray):
        result = result.to_dataset(name=result.name or "value")
    # A view would keep all that it is a part of for as long as the series takes.
    result = result.copy(deep=True).drop_attrs(deep=False).assign_attrs(_plain(result.attrs))
    result.attrs.pop("checkpoint", None)
    for variable in result.variables.values():
        variable.attrs = _plain({k: v for k, v in variable.attrs.items() if k != "checkpoint"})
    recorded = {k: v for k, v in series.recorded(step).items() if k not in result}
    tokens_seen = recorded.pop("tokens_seen", np.nan)
    row = result.expand_dims(step=[step])
    row = row.assign({name: ("step", [value]) for name, value in recorded.items()})
    return row.assign_coords(
        tokens_seen=("step", [tokens_seen]),
        checkpoint=("step", np.array([checkpoint], dtype=object)),
    )


def _plain(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as they come back from a file, so that kept and new results are the same."""
    return json.loads(json.dumps({str(k): v for k, v in attrs.items()}, default=repr))


def _together(
    rows: Mapping[int, xr.Dataset], series: Series, skipped: Sequence[tuple[int, str]], key: str
) -> xr.Dataset:
    parts = [rows[step] for step in sorted(rows)]
    names = {name for part in parts for name in part.data_vars}
    # What was recorded at some steps only, such as a loss, is unknown at the others.
    parts = [
        part.assign({n: ("step", [np.nan]) for n in sorted(names - set(part.data_vars), key=str)})
        for part in parts
    ]
    try:
        whole = xr.concat(
            parts, "step", data_vars="all", coords="minimal", compat="override", join="exact"
        )
    except ValueError as error:
        raise InputError(
            f"The analysis has other axes at some steps than at others ({error}): give one whose "
            "axes do not depend on the weights."
        ) from error
    attrs = {"run": series.name, "skipped": [list(each) for each in skipped], "key": key}
    return whole.assign_attrs(attrs)
