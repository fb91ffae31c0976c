"""Several labelled results on one prompt as one Dataset."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from interp.results import labelled

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

Variable: TypeAlias = tuple[Tensor | np.ndarray, Sequence[str], str]


def labelled_set(
    model: HookedTransformer,
    variables: Mapping[str, Variable],
    *,
    ids: Int[Tensor, "batch pos"] | None = None,
    coords: Mapping[str, Any] | None = None,
    **settings: Hashable,
) -> xr.Dataset:
    """A Dataset whose variables are labelled as `labelled` does, the prompt only once.

    Args:
        variables: for each name its values, its axis names and its unit.
        ids, coords, settings: as in `labelled`; a coordinate reaches the variables that have its
            dimension.
    """
    given = dict(coords or {})
    dims_of = {name: tuple(dims) for name, (_, dims, _) in variables.items()}
    arrays = {
        name: labelled(
            model,
            values,
            dims,
            name=name,
            units=units,
            coords={
                key: value
                for key, value in given.items()
                if set(_dims_of_coordinate(key, value)) <= set(dims_of[name])
            },
        )
        for name, (values, dims, units) in variables.items()
    }
    for array in arrays.values():
        array.attrs = {"units": array.attrs["units"]}
    result = xr.Dataset(arrays)
    kept = ids[:, np.asarray(given["pos"])] if ids is not None and "pos" in given else ids
    frame = labelled(
        model,
        np.zeros(0) if kept is None else kept,
        ("_",) if kept is None else ("batch", "pos"),
        name="frame",
        units="token id",
        ids=ids,
        coords={"pos": given["pos"]} if ids is not None and "pos" in given else None,
        **settings,
    )
    if "pos" in result.dims and ids is not None:
        result = result.assign_coords(tokens=frame["tokens"])
    frame.attrs.pop("units")
    return result.assign_attrs(frame.attrs)


def _dims_of_coordinate(key: str, value: Any) -> tuple[str, ...]:
    """A coordinate is indexed by its own dimension unless it came as (dims, values)."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str | tuple):
        return (value[0],) if isinstance(value[0], str) else value[0]
    return (key,)
