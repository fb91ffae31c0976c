"""The path of each token over the sphere, one hop for each sublayer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr

from interp.engine import Trace
from interp.inputs import Input
from interp.norms import hop_names, state_names
from interp.result_sets import labelled_set
from interp.sphere.angles import angle_between_units, curvature, turn
from interp.sphere.states import stream_states

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def sphere_path(model: HookedTransformer, input: Input | Trace) -> xr.Dataset:
    """How the directions x^ move from state to state, and how tokens follow each other.

    Only the direction of the stream counts: nothing changes under x -> c x + t 1.

    Returns:
        `hop_angle` [hop, batch, pos], the great-circle angle each sublayer moves the token;
        `length` [batch, pos], their sum; `chord_angle` [batch, pos], first state to last;
        `directness` [batch, pos], chord_angle / length, 1 along one great circle;
        `turn_angle` [turn, batch, pos], the change of course at each inner state, 0 straight on;
        `curvature` [state, batch, inner_pos], the angle between successive steps from token to
        token (Hosseini & Fedorenko 2023, 2311.04930, on x^), at positions 1 to n-2.
        All angles in radians. NaN where a direction is undefined (constant rows, hops of length
        0, equal neighbours).

    Raises:
        InputError: unreadable input; a model without normalisation.

    Cost: one forward pass and a few passes over the stream; memory of three times the stream.
    """
    run = stream_states(model, input)
    points: list[torch.Tensor] = []
    hops, turns, bends = [], [], []
    first = None
    for state in run:
        points = [*points[-2:], state.direction]
        first = points[0] if first is None else first
        bends.append(curvature(points[-1]))
        if len(points) > 1:
            hops.append(angle_between_units(points[-2], points[-1]))
        if len(points) > 2:
            turns.append(turn(*points))
    assert first is not None
    hop_angle = torch.stack(hops)
    length = hop_angle.sum(0)
    chord_angle = angle_between_units(first, points[-1])
    n_pos, names = run.ids.shape[1], state_names(model.cfg)
    each = ("batch", "pos")
    return labelled_set(
        model,
        {
            "hop_angle": (hop_angle, ("hop", *each), "radians"),
            "length": (length, each, "radians"),
            "chord_angle": (chord_angle, each, "radians"),
            "directness": (chord_angle / length, each, "1"),
            "turn_angle": (_stacked(turns, length), ("turn", *each), "radians"),
            "curvature": (torch.stack(bends), ("state", "batch", "inner_pos"), "radians"),
        },
        ids=run.ids,
        coords={
            "hop": hop_names(model.cfg),
            "turn": names[1:-1],
            "state": names,
            "inner_pos": list(range(1, max(n_pos - 1, 1))),
        },
    )


def _stacked(rows: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Rows on a new first axis, which may be empty (one hop has no turn)."""
    return torch.stack(rows) if rows else like.new_zeros(0, *like.shape)
