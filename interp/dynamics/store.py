"""Labelled results as one file: numbers as safetensors, labels as JSON in its header."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from interp.errors import InputError

FORMAT = "orrery results 1"


def write_results(path: str | Path, results: xr.Dataset) -> None:
    """Write results as one file, which holds the old ones or the new ones at every moment.

    Numbers keep their precision. Of `attrs` what JSON can hold is kept (tuples come back as
    lists), the rest as its repr.

    Raises:
        OSError: the folder cannot be written.
    """
    from safetensors.numpy import save

    path, tensors, labels = Path(path), {}, {}
    for name, variable in results.variables.items():
        values = variable.to_numpy()
        entry: dict[str, Any] = {"dims": variable.dims, "attrs": variable.attrs}
        if values.dtype.kind in "OUS":
            entry["strings"] = values.astype(str).tolist()
        else:
            tensors[str(name)] = np.asarray(values, order="C")
        labels[str(name)] = entry
    described = {"variables": labels, "coords": list(map(str, results.coords))}
    text = json.dumps(described | {"attrs": results.attrs}, default=repr)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(save(tensors, {"format": FORMAT, "labels": text}))
            os.fsync(file.fileno())
        Path(beside).chmod(0o644)
        Path(beside).replace(path)
    finally:
        Path(beside).unlink(missing_ok=True)


def read_results(path: str | Path) -> xr.Dataset:
    """Read what `write_results` wrote.

    Raises:
        InputError: a file that is missing, damaged or something else.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise KeyError("it says nothing of results")
            described = json.loads(metadata["labels"])
            variables = {
                name: (
                    entry["dims"],
                    np.array(entry["strings"], dtype=object)
                    if "strings" in entry
                    else file.get_tensor(name),
                    entry["attrs"],
                )
                for name, entry in described["variables"].items()
            }
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InputError(
            f"{str(path)!r} came as results, but it cannot be read as such ({error}): give a file "
            "that write_results wrote."
        ) from error
    coords = {name: variables.pop(name) for name in described["coords"]}
    return xr.Dataset(variables, coords, described["attrs"])
