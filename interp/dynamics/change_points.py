"""When things change: half-way crossings and lowest points, and their spread over seeds.

The *half-way step* of a curve is where it first crosses the middle between its first and its last
value. It is known no better than the snapshots allow: it lies somewhere `after` one and up to
(`by`) the next. Two curves that cross at the same step coincide; neither need cause the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float, Shaped

from interp.dynamics.curves import TRACKS
from interp.errors import InputError


class Crossing(NamedTuple):
    """Where a curve crosses the middle between its ends; NaN where it does not change."""

    step: float
    after: float
    by: float
    crossings: float


_NONE = Crossing(np.nan, np.nan, np.nan, np.nan)


def crossing(
    steps: Shaped[np.ndarray, " step"], values: Float[np.ndarray, " step"], least: float
) -> Crossing:
    """The half-way crossing of one curve; steps that are not known (NaN) are passed over.

    Between two snapshots the curve is taken as a straight line over log step (over step itself
    when the first of them is step 0).

    Args:
        steps: ascending.
        least: the smallest |last - first| that counts as a change.
    """
    known = np.isfinite(values)
    at, v = steps[known].astype(float), values[known].astype(float)
    if len(v) < 2 or abs(v[-1] - v[0]) < least or v[-1] == v[0]:
        return _NONE
    # 0 at the start, 1 at the end; the middle itself counts as crossed
    done = (v - v[0]) / (v[-1] - v[0])
    beyond = done >= 0.5
    turns = np.flatnonzero(beyond[1:] != beyond[:-1])
    i = int(turns[0])
    share = (0.5 - done[i]) / (done[i + 1] - done[i])
    low, high = at[i], at[i + 1]
    step = low * (high / low) ** share if low > 0 else share * high
    return Crossing(float(step), float(low), float(high), float(len(turns)))


def change_points(curves: xr.DataArray) -> xr.Dataset:
    """The half-way step of every curve of every run, and how far the runs agree.

    Args:
        curves: what `training_curves` returned. Those of n-grams, which fall and rise again, have
            no place here: see `lowest_points`.

    Returns:
        Over [run, track]: `step`, the half-way step; `after` and `by`, the snapshots it lies
        between; `crossings`, how often the curve crosses the middle (more than once: no single
        change); `start` and `end`, its first and last value. NaN, and no change is claimed, where
        the two differ by less than the curve's `least` (`interp.dynamics.curves.TRACKS`).
        Over [track]: `median`, `earliest` and `latest` of `step`, over the `n_runs` runs that
        have one.
    """
    curves = curves.sel(track=[np.isfinite(TRACKS[str(n)].least) for n in curves["track"].values])
    rows, n_steps = [], curves["step"].to_numpy()
    for name in curves["track"].to_numpy():
        for values in curves.sel(track=name).to_numpy():
            known = values[np.isfinite(values)]
            ends = (known[0], known[-1]) if len(known) else (np.nan, np.nan)
            rows.append([*crossing(n_steps, values, TRACKS[str(name)].least), *ends])
    table = np.array(rows).reshape(curves.sizes["track"], curves.sizes["run"], 6)
    names = (*Crossing._fields, "start", "end")
    found = xr.Dataset(
        {name: (("run", "track"), table[..., i].T) for i, name in enumerate(names)},
        coords=curves.drop_vars("tokens_seen").isel(step=0, drop=True).coords,
    )
    for name in ("step", "after", "by"):
        found[name].attrs["units"] = "updates"
    return _with_spread(found)


def lowest_points(curves: xr.DataArray) -> xr.Dataset:
    """The step at which every curve of every run is lowest.

    Returns:
        Over [run, track]: `step`; `value` there; `inside`, whether the curve is higher both
        before and after (otherwise it only falls or only rises). Over [track]: `median`,
        `earliest`, `latest`, `n_runs`, as in `change_points`, over the runs with a lowest point
        inside.
    """
    steps = curves["step"].to_numpy().astype(float)
    values = curves.transpose("run", "track", "step").to_numpy()
    known = np.isfinite(values)
    some = known.any(-1)
    at = np.where(known, values, np.inf).argmin(-1)
    first, last = known.argmax(-1), values.shape[-1] - 1 - known[..., ::-1].argmax(-1)
    dims = ("run", "track")
    lowest = np.take_along_axis(values, at[..., None], -1)[..., 0]
    found = xr.Dataset(
        {
            "step": (dims, np.where(some, steps[at], np.nan), {"units": "updates"}),
            "value": (dims, np.where(some, lowest, np.nan)),
            "inside": (dims, some & (at > first) & (at < last)),
        },
        coords=curves.drop_vars("tokens_seen").isel(step=0, drop=True).coords,
    )
    return _with_spread(found, found["step"].where(found["inside"]))


def lead(points: xr.Dataset, first: str, second: str) -> xr.Dataset:
    """By how many steps one curve crosses its middle before another, run by run.

    Args:
        points: what `change_points` returned.
        first, second: names of curves.

    Returns:
        Over [run]: `lead`, steps from the first's half-way step to the second's, negative when
        the second comes first; NaN when one of them does not change. `resolved`, whether
        snapshots lie between the two, so that the grid itself tells their order.

    Raises:
        InputError: a curve that is not among the points.
    """
    names = [str(name) for name in points["track"].to_numpy()]
    for name in (first, second):
        if name not in names:
            raise InputError(
                f"Curve {name!r} came, but the points are of {', '.join(names)}: choose two."
            )
    a, b = (points.sel(track=name, drop=True) for name in (first, second))
    return xr.Dataset(
        {
            "lead": (b["step"] - a["step"]).assign_attrs(units="updates"),
            "resolved": (a["by"] <= b["after"]) | (b["by"] <= a["after"]),
        }
    ).reset_coords(drop=True)


def _with_spread(found: xr.Dataset, step: xr.DataArray | None = None) -> xr.Dataset:
    step = found["step"] if step is None else step
    return found.assign(
        median=step.median("run"),
        earliest=step.min("run"),
        latest=step.max("run"),
        n_runs=step.notnull().sum("run"),
    )
