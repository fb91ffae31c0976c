"""Two results side by side: of two prompts, two steps of training or two models."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import xarray as xr

from interp.errors import InputError

# Axes that count places in a prompt: what stands there may differ, how many there are may not.
_PLACES = {"pos": "tokens", "query_pos": "query_tokens", "key_pos": "key_tokens"}
# Labels that are part of the question: another token or component is another thing.
_LABELS = {"token": "tokens"}


def compare(
    first: xr.DataArray | xr.Dataset,
    second: xr.DataArray | xr.Dataset,
    variable: str | None = None,
    **at: Hashable,
) -> xr.Dataset:
    """One quantity of two results, and how far the second is from the first.

    Args:
        first, second: what one analysis returned for two prompts, steps or models.
        variable: which of a Dataset's variables.
        at: where to cut both, by label: `layer=2, head=1`.

    Returns:
        `first`, `second` and `difference`, second minus first, over the dimensions that are left
        (a batch of one is dropped). Position axes keep the first's tokens, and have the second's
        as `other_tokens`, `other_query_tokens` ... where those differ.

    Raises:
        InputError: results of other dimensions, sizes or labels; a variable or label that one of
            them does not have.
    """
    one, two = (_quantity(result, variable, at) for result in (first, second))
    if one.dims != two.dims:
        raise InputError(
            f"The first result is over {_listed(one.dims)} and the second over "
            f"{_listed(two.dims)}, but only like can be compared with like: give two results of "
            "one analysis."
        )
    for dim in map(str, one.dims):
        _check_axis(one, two, dim)
    coords: dict[Any, Any] = {name: one.coords[name] for name in one.coords}
    for dim, name in _PLACES.items():
        if name in one.coords and name in two.coords:
            other = two[name].to_numpy()
            if not np.array_equal(one[name].to_numpy(), other):
                coords[f"other_{name}"] = (dim, other)
    units = {"units": one.attrs.get("units", "1")}
    values = {"first": one.to_numpy(), "second": two.to_numpy()}
    values["difference"] = values["second"] - values["first"]
    return xr.Dataset(
        {name: (one.dims, array, units) for name, array in values.items()},
        coords=coords,
        attrs={
            "quantity": str(one.name),
            **{
                f"{key}_{side}": result.attrs[key]
                for side, result in (("first", first), ("second", second))
                for key in ("model", "checkpoint", "prompt")
                if key in result.attrs
            },
        },
    )


def _quantity(
    result: xr.DataArray | xr.Dataset, variable: str | None, at: dict[str, Hashable]
) -> xr.DataArray:
    if isinstance(result, xr.Dataset):
        if variable not in result:
            raise InputError(
                f"Variable {variable!r} came, but the result has {_listed(result.data_vars)}: "
                "choose one."
            )
        result = result[variable]
    for dim, label in at.items():
        if dim not in result.dims or label not in result[dim].to_numpy():
            raise InputError(f"The result has no {dim} {label!r}: it is over {_sizes(result)}.")
        result = result.sel({dim: label}, drop=True)
    if "batch" in result.dims:
        if result.sizes["batch"] != 1:
            raise InputError(
                f"The result holds {result.sizes['batch']} prompts, but one is compared with one: "
                "choose it with .isel(batch=[i])."
            )
        result = result.isel(batch=0, drop=True)
    return result


def _check_axis(one: xr.DataArray, two: xr.DataArray, dim: str) -> None:
    if one.sizes[dim] != two.sizes[dim]:
        what = "positions" if dim in _PLACES else f"entries along {dim}"
        raise InputError(
            f"The first result has {one.sizes[dim]} {what} and the second {two.sizes[dim]}, so "
            "they cannot be laid on each other: choose "
            + ("prompts of equal length." if dim in _PLACES else "models of one shape.")
        )
    name = _LABELS.get(dim, dim)
    if dim in _PLACES or name not in one.coords or name not in two.coords:
        return
    if not np.array_equal(one[name].to_numpy(), two[name].to_numpy()):
        raise InputError(
            f"The two results name their {dim} axis differently, so entry by entry they are not "
            "the same thing: compare models of one shape and one vocabulary."
        )


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"


def _sizes(result: xr.DataArray) -> str:
    return ", ".join(f"{dim} ({size})" for dim, size in result.sizes.items()) or "nothing"
