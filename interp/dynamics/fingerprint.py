"""A hash of settings: the same for the same values, on every machine."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from interp.errors import InputError


def fingerprint(*values: Any) -> str:
    """32 hexadecimal digits that stand for these values.

    Numbers, strings, containers of them, arrays, dataclasses (by the fields that take part in
    their comparison) and functions that can be imported.

    Raises:
        InputError: a value of another kind, which no later process could know again.

    Cost: one pass over the arrays.
    """
    digest = hashlib.sha256()
    for piece in _pieces(values):
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()[:32]


def function_name(function: Callable) -> str:
    """The name under which a function is imported.

    Raises:
        InputError: a function made inside another one, or a lambda.
    """
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if module is None or name is None or "<" in name:
        raise InputError(
            f"{function!r} came to be kept by its name, but it has none that can be imported: "
            "define it at the top of a module, or keep nothing with cache=None."
        )
    return f"{module}.{name}"


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        yield f"array {value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif value is None or isinstance(value, bool | int | float | str | np.generic):
        yield f"{type(value).__name__} {value!r}".encode()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value).__qualname__.encode()
        for field in dataclasses.fields(value):
            if field.compare:
                yield field.name.encode()
                yield from _pieces(getattr(value, field.name))
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key in sorted(value, key=repr):
            yield from _pieces((key, value[key]))
    elif isinstance(value, Sequence):
        yield f"sequence {len(value)}".encode()
        for item in value:
            yield from _pieces(item)
    elif callable(value):
        yield function_name(value).encode()
    else:
        raise InputError(
            f"{type(value).__name__} came among the settings, but only plain values, arrays, "
            "dataclasses and functions can be known again: keep nothing with cache=None."
        )
