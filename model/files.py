"""Writing files that are never left half."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import ModelError


@contextmanager
def write_atomically(path: str | Path) -> Iterator[Path]:
    """A path to write to, which becomes `path` when the block ends well.

    A reader of `path` sees the old file or the new one, whatever happens in between; when the
    block fails, the old file stays as it was.

    Raises:
        ModelError: when the disk is full, or the folder cannot be written to.
    """
    path = Path(path)
    beside: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        beside = Path(name)
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.chmod(0o666 & ~_umask())
        beside.replace(path)
    except OSError as error:
        raise ModelError(
            f"{path} cannot be written ({error.strerror or error}): "
            "make room, or choose a folder that can be written to."
        ) from error
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    with write_atomically(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="")


def write_json(path: str | Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_text(path: str | Path) -> str:
    """A UTF-8 text exactly as it stands, line ends included.

    Raises:
        ModelError: when the file is missing or is not UTF-8.
    """
    path = Path(path)
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8 text."
        ) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error}).") from None


def read_json(path: str | Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelError: when the file is missing, is not JSON, or holds something else.
    """
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: a run directory holds one.") from None
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be read as JSON ({error}): restore the file or train again."
        ) from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object: restore the file or train again.")
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
