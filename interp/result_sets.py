"""Several labelled results on one prompt as one Dataset."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from interp.results import coordinates, how_made, prompt_strings

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
    arrays = {
        name: values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        for name, (values, _, _) in variables.items()
    }
    sizes: dict[str, int] = {}
    for name, (_, dims, _) in variables.items():
        sizes |= zip(dims, arrays[name].shape, strict=True)
    strings = None if ids is None else prompt_strings(model, ids)
    fitting = {
        key: value
        for key, value in (coords or {}).items()
        if set(_dims_of_coordinate(key, value)) <= set(sizes)
    }
    return xr.Dataset(
        {
            name: (dims, arrays[name], {"units": units})
            for name, (_, dims, units) in variables.items()
        },
        coords=coordinates(sizes, strings, fitting),
        attrs=how_made(model, strings, settings),
    )


def _dims_of_coordinate(key: str, value: Any) -> tuple[str, ...]:
    """A coordinate is indexed by its own dimension unless it came as (dims, values)."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str | tuple):
        return (value[0],) if isinstance(value[0], str) else value[0]
    return (key,)
