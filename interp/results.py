"""Labelled results: every analysis returns its numbers through `labelled`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from jaxtyping import Int
from torch import Tensor

from interp.inputs import token_strings

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

# Axes that count from 0, with the name of the coordinate that says which token stands there.
_TOKEN_COORDINATE = {"pos": "tokens", "query_pos": "query_tokens", "key_pos": "key_tokens"}
_INTEGER_AXES = {"batch", "layer", "head", "neuron", *_TOKEN_COORDINATE}


def labelled(
    model: HookedTransformer,
    values: Tensor | np.ndarray,
    dims: Sequence[str],
    *,
    name: str,
    units: str,
    ids: Int[Tensor, "batch pos"] | None = None,
    coords: Mapping[str, Any] | None = None,
    **settings: Hashable,
) -> xr.DataArray:
    """An array that says what its axes are and how it was made.

    Args:
        model: gives `attrs["model"]`, and `attrs["checkpoint"]` when its checkpoint is known.
        values: the numbers, one axis for each of `dims`.
        dims: axis names, as in the glossary of `interp.sites`.
        name: what the numbers are, for example "logit difference".
        units: their unit, "1" for a pure number.
        ids: the prompts. They give position axes their `tokens` coordinate ([pos] for one prompt,
            [batch, pos] for several, indexed by `pos` wherever that is cut) and
            `attrs["prompt"]`. Tokens repeat, so they label positions and never index them.
        coords: coordinates beyond the integer ones that batch, layer, head, pos and neuron get,
            or in place of them. A dimension is indexed by its own coordinate.
        settings: how the numbers were made, kept as `attrs["settings"]`.

    Returns:
        DataArray on the CPU. `.to_dataframe()` gives pandas.
    """
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    sizes = dict(zip(dims, array.shape, strict=True))
    strings = None if ids is None else prompt_strings(model, ids)
    made = {"units": units, **how_made(model, strings, settings)}
    return xr.DataArray(
        array,
        dims=tuple(dims),
        coords=coordinates(sizes, strings, coords or {}),
        name=name,
        attrs=made,
    )


def prompt_strings(model: HookedTransformer, ids: Int[Tensor, "batch pos"]) -> np.ndarray:
    """The text of each token, as objects of shape [batch, pos]."""
    return np.array(token_strings(model, ids.flatten()), dtype=object).reshape(ids.shape)


def coordinates(
    sizes: Mapping[str, int], strings: np.ndarray | None, given: Mapping[str, Any]
) -> xr.Coordinates:
    """The coordinates of axes of these sizes: numbers, token strings and what was given."""
    counted = tuple((dim, size) for dim, size in sizes.items() if dim in _INTEGER_AXES)
    others = dict(given)
    if any(dim in given for dim, _ in counted):
        coords = xr.Coordinates({dim: others.pop(dim, np.arange(size)) for dim, size in counted})
    else:
        coords = _counted(counted)
    if strings is not None:
        for dim, coordinate in _TOKEN_COORDINATE.items():
            if dim in sizes and coordinate not in given:
                at = given[dim] if dim in given else range(sizes[dim])
                others[coordinate] = _tokens_along(dim, strings, at, "batch" in sizes)
    return coords.assign(others) if others else coords


@lru_cache(maxsize=64)
def _counted(sizes: tuple[tuple[str, int], ...]) -> xr.Coordinates:
    """0, 1, 2 ... along axes. Results come in few sizes, and their indexes take long to make."""
    return xr.Coordinates({dim: np.arange(size) for dim, size in sizes})


def how_made(
    model: HookedTransformer, strings: np.ndarray | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The attrs that say which model, prompt and settings gave a result."""
    attrs: dict[str, Any] = {"model": model.cfg.model_name}
    if (checkpoint := getattr(model, "checkpoint_hash", None)) is not None:
        attrs["checkpoint"] = checkpoint
    if strings is not None:
        texts = ["".join(row) for row in strings]
        attrs["prompt"] = texts[0] if len(texts) == 1 else texts
    return attrs | {"settings": settings}


def _tokens_along(
    dim: str, strings: np.ndarray, at: Sequence[int] | np.ndarray, has_batch: bool
) -> tuple[tuple[str, ...] | str, np.ndarray]:
    picked = strings[:, np.asarray(at)]
    if len(strings) == 1:
        return dim, picked[0]
    if has_batch:
        return ("batch", dim), picked
    same = (picked == picked[0]).all(axis=0)
    return dim, np.where(same, picked[0], "·")
