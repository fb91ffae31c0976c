"""The token paths of one run as a picture in three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
import xarray as xr

from interp.engine import Trace
from interp.errors import InputError
from interp.inputs import Input
from interp.norms import state_names
from interp.result_sets import labelled_set
from interp.sphere.projections import ball, distortion, equal_volume, equidistant, lambert
from interp.sphere.states import stream_states

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

VIEWS = ("ball", "equidistant", "lambert", "equal_volume")


def sphere_view(
    model: HookedTransformer,
    input: Input | Trace,
    *,
    mode: str = "ball",
    at: Sequence[str] | None = None,
    pole: tuple[str, int, int] | None = None,
) -> xr.Dataset:
    """The directions x^ of states and tokens in three dimensions, and how far that lies.

    Args:
        mode: "ball" (default) projects orthogonally into the unit ball; "equidistant" and
            "lambert" keep the angle or the chord to a pole exactly, and nothing else;
            "equal_volume" maps the 3-sphere of the four principal axes.
        at: the states to show, by name ("0_pre", "0_mid" ...); all by default. One projection
            serves them all, so that paths are paths.
        pole: (state, batch, pos) of the point in the middle of an equidistant or lambert view;
            the last position of the first prompt at the last shown state by default.

    Returns:
        `coordinate` [axis, state, batch, pos]; `captured` [state, batch, pos], the share of each
        point's length (or direction from the pole) that is shown: 1 is faithful;
        attrs["distortion"], a dict of stress, pearson, spearman, worst_pair (indices into the
        flattened [state, batch, pos]), worst_true, worst_drawn and n_points.
        NaN for constant rows, which have no direction.

    Raises:
        InputError: unreadable input, no normalisation, an unknown mode, state or pole, or a pole
            with a view that has none.

    Cost: one forward pass, an eigendecomposition in d_model dimensions, and all pairs of up to
    256 points.
    """
    if mode not in VIEWS:
        raise InputError(f"View {mode!r} came, but there are {', '.join(VIEWS)}: choose one.")
    if pole is not None and mode in ("ball", "equal_volume"):
        raise InputError(
            f"A pole came with the view {mode!r}, but only equidistant and lambert have one: "
            "leave it out."
        )
    names = state_names(model.cfg)
    shown = names if at is None else list(at)
    unknown = [name for name in shown if name not in names]
    if unknown or not shown:
        raise InputError(
            f"States {', '.join(map(repr, unknown or shown)) or 'none'} came, but the model has "
            f"{', '.join(names)}: choose among these."
        )
    run = stream_states(model, input)
    directions = {
        name: state.direction for name, state in zip(names, run, strict=True) if name in shown
    }
    points = torch.stack([directions[name] for name in shown])
    flat = points.flatten(0, 2)
    defined = ~flat[:, 0].isnan()  # a row without a direction is NaN throughout
    pointing = flat if bool(defined.all()) else flat[defined]
    if mode in ("ball", "equal_volume"):
        picture = ball(pointing) if mode == "ball" else equal_volume(pointing)
    else:
        middle = _pole(directions, (shown[-1], 0, run.ids.shape[1] - 1) if pole is None else pole)
        picture = (equidistant if mode == "equidistant" else lambert)(pointing, middle)
    coordinates = flat.new_full((len(flat), 3), torch.nan)
    captured = flat.new_full((len(flat),), torch.nan)
    coordinates[defined], captured[defined] = picture.coordinates, picture.captured
    report = distortion(pointing, picture.coordinates, chords=mode in ("ball", "lambert"))
    dims = ("state", "batch", "pos")
    shape = points.shape[:3]
    result = labelled_set(
        model,
        {
            "coordinate": (
                coordinates.mT.unflatten(1, shape),
                ("axis", *dims),
                "radians" if mode == "equidistant" else "1",
            ),
            "captured": (captured.unflatten(0, shape), dims, "1"),
        },
        ids=run.ids,
        coords={"state": shown, "axis": ["x", "y", "z"]},
        mode=mode,
        pole=pole,
    )
    return result.assign_attrs(distortion=asdict(report))


def _pole(directions: dict[str, torch.Tensor], pole: tuple[str, int, int]) -> torch.Tensor:
    state, row, pos = pole
    batch, n_pos = next(iter(directions.values())).shape[:2]
    if state not in directions or not 0 <= row < batch or not 0 <= pos < n_pos:
        raise InputError(
            f"The pole {pole!r} came, but the view holds states {', '.join(directions)}, "
            f"{batch} prompts and {n_pos} positions: choose (state, batch, pos) among these."
        )
    return directions[state][row, pos]
