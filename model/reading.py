"""Checkpoints of any origin, read without running anything that is in them.

A file is what its first bytes say, whatever it is called. Tensors are mapped into memory, not
copied, and nothing is allocated because a file claims a size.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .checkpoint import read_weights
from .errors import ModelError

WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin", "ckpt.pt", "model.pt", "model.pth")
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_INDEX_SUFFIX = ".index.json"
_STATE_KEYS = ("model", "state_dict", "model_state_dict", "model_state", "net", "weights", "params")
_CONFIG_KEYS = (
    "model_args",
    "model_config",
    "config",
    "cfg",
    "hparams",
    "hyper_parameters",
    "args",
)
_LARGEST_JSON = 64 * 2**20

# classes whose objects only hold fields; they are read as their fields, and never imported
_FIELDS_ONLY = re.compile(
    r".*(Config|Args|Arguments|Params|Namespace|CfgNode|PosixPath|WindowsPath|PurePath)"
    r"|numpy(\._?core)?(\.multiarray\.scalar|\.dtype)|numpy\.dtypes\.\w+|numpy\.dtype"
)


@dataclasses.dataclass(frozen=True)
class Source:
    """What a checkpoint holds.

    Attributes:
        config: the writer's configuration under the writer's names; empty when there is none.
        config_origin: where that stands, for people.
        files: those that hold the weights; none for a state dict in memory.
        rest: what else the checkpoint holds.
    """

    name: str
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config_origin: str = "the configuration"
    files: tuple[Path, ...] = ()
    rest: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def step(self) -> int:
        """How many steps it was trained, where it says so; 0 otherwise."""
        steps = [self.rest.get(key) for key in ("step", "iter_num", "global_step")]
        return next((s for s in steps if isinstance(s, int) and s >= 0), 0)

    @property
    def folder(self) -> Path | None:
        return self.files[0].parent if self.files else None

    def sha256(self) -> dict[str, str]:
        """The hash of each file. Cost: reads them once."""
        found = {}
        for path in self.files:
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        return found


class FieldsOnly:
    """Stands for an object of the writer's own class: it keeps the fields and runs nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


def source_of(state: Mapping[str, Any], name: str = "state dict") -> Source:
    """A state dict in memory, or a checkpoint dict that holds one.

    Raises:
        ModelError: when there is no state dict in it.
    """
    if not isinstance(state, Mapping):
        raise ModelError(
            f"{name} holds {_a(state)}, not a state dict: save `model.state_dict()` instead."
        )
    found, rest = _split(state, name)
    config: dict[str, Any] = {}
    origins = []
    for key in reversed(_CONFIG_KEYS):
        fields = _fields(rest.get(key))
        if fields:
            config |= fields
            origins.insert(0, key)
    for key, tensor in found.items():
        _check_tensor(key, tensor)
    origin = f"{' and '.join(origins)} in {name}" if origins else "the configuration"
    return Source(name, found, config, origin, rest=rest)


def read_source(path: str | Path) -> Source:
    """A weights file, a sharded index, or a folder that holds one.

    Raises:
        ModelError: when there is none, or it cannot be read, or is not what it claims.
    """
    path = Path(path)
    if path.is_dir():
        path = _weights_in(path)
    if not path.is_file():
        raise ModelError(f"there is no checkpoint at {path}: give a weights file or its folder.")
    if path.name.endswith(_INDEX_SUFFIX):
        source = _read_shards(path)
    else:
        source = dataclasses.replace(source_of(*_read_file(path)), files=(path,))
    beside = path.parent / "config.json"
    if not source.config and beside.is_file():
        source = dataclasses.replace(
            source, config=read_limited_json(beside), config_origin=beside.name
        )
    return source


def read_limited_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file that somebody else wrote.

    Raises:
        ModelError: when it is none, or not of a sensible size.
    """
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ModelError(
                f"{path} is larger than {_LARGEST_JSON >> 20} MB: it is no JSON of ours."
            )
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}): restore the file.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {_a(value)}, not a JSON object: restore the file.")
    return value


def _weights_in(folder: Path) -> Path:
    indices = sorted(folder.glob(f"*{_INDEX_SUFFIX}"))
    known = [folder / name for name in WEIGHTS_FILES if (folder / name).is_file()]
    others = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
    for found in (indices[:1], known[:1], others):
        if len(found) == 1:
            return found[0]
    if not others:
        raise ModelError(f"{folder} holds no weights: give a folder with {WEIGHTS_FILES[0]}.")
    raise ModelError(
        f"{folder} holds several weights files ({', '.join(p.name for p in others)}): name one."
    )


def _read_file(path: Path) -> tuple[Any, str]:
    with path.open("rb") as file:
        start = file.read(9)
    try:
        if start[8:] == b"{":
            return _read_safetensors(path), path.name
        if start[:4] == b"PK\x03\x04":
            _check_archive(path)
            return _read_pickle(path, mmap=True), path.name
        if start[:1] == b"\x80":
            return _read_pickle(path, mmap=False), path.name
    except ModelError:
        raise
    except (SafetensorError, zipfile.BadZipFile, OSError) as error:
        raise ModelError(
            f"{path} cannot be read ({_first_line(error)}): it is truncated or damaged; "
            "copy it again."
        ) from None
    raise ModelError(
        f"{path} is neither safetensors nor a file of torch.save: save `model.state_dict()` again."
    )


def _read_safetensors(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        if (file.metadata() or {}).get("format") == "orrery":
            weights = read_weights(path)
            config = weights.config.to_dict()
            return {"model": weights.tensors, "config": config, "step": weights.step}
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)


def _check_archive(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    if not stored or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ModelError(
            f"{path} is a compressed archive or claims more than it holds: torch.save writes "
            "neither; save `model.state_dict()` again."
        )


def _read_pickle(path: Path, *, mmap: bool) -> Any:
    """What torch.save wrote, through torch's unpickler that calls nothing but tensor builders."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path) if mmap else []
        strangers = [name for name in names if not _FIELDS_ONLY.fullmatch(name)]
        if strangers:
            raise ModelError(
                f"{path} needs {strangers[0]} to be run, and nothing of a file is ever run: "
                "save `model.state_dict()` instead."
            )
        stand_ins = [(FieldsOnly, name) for name in names]
        with warnings.catch_warnings(), torch.serialization.safe_globals(stand_ins):  # type: ignore[arg-type]  (pairs are allowed since torch 2.5)
            warnings.simplefilter("ignore")  # on pickle protocols; what matters raises
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except ModelError:
        raise
    except Exception as error:  # unpicklers raise anything
        raise ModelError(
            f"{path} cannot be read as a checkpoint of torch.save ({_first_line(error)}): it is "
            "truncated, damaged, or more than weights; save `model.state_dict()` again."
        ) from None


def _read_shards(index: Path) -> Source:
    where = read_limited_json(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(v, str) for v in where.values()):
        raise ModelError(f"{index} has no weight_map of tensor to file: restore the file.")
    tensors: dict[str, Tensor] = {}
    files = []
    for shard in sorted(set(where.values())):
        # a name with a folder in it could lead anywhere
        if not re.fullmatch(r"[\w\-. ]+", shard) or shard in (".", ".."):
            raise ModelError(
                f"{index} asks for {shard!r}, which is not a file name: shards stand beside it."
            )
        path = index.parent / shard
        if not path.is_file():
            lost = next(name for name, file in where.items() if file == shard)
            raise ModelError(f"{shard} with {lost} is missing beside {index.name}: copy it too.")
        found = source_of(*_read_file(path)).tensors
        for name in sorted(found.keys() ^ {n for n, file in where.items() if file == shard}):
            raise ModelError(f"{name} is in only one of {shard} and {index.name}: copy both again.")
        tensors |= found
        files.append(path)
    return Source(index.name, tensors, files=tuple(files))


def _split(payload: Mapping[str, Any], name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state dict of a checkpoint, and what else is in it."""
    if _is_state_dict(payload):
        return dict(payload), {}
    states = {key: value for key, value in payload.items() if _is_state_dict(value)}
    key = next((key for key in _STATE_KEYS if key in states), next(iter(states), None))
    if key is None:
        what = ", ".join(map(str, list(payload)[:5])) or "nothing"
        raise ModelError(
            f"{name} holds no state dict but {what}: save `model.state_dict()` instead."
        )
    rest = {k: v for k, v in payload.items() if k != key and k not in states}
    return dict(states[key]), rest


def _is_state_dict(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())
    )


def _fields(config: Any) -> dict[str, Any]:
    fields = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    return {k: v for k, v in fields.items() if isinstance(k, str)}


def _check_tensor(name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
        raise ModelError(f"{name} is not a plain tensor: save it dense and in full precision.")
    if tensor.nbytes > tensor.untyped_storage().nbytes():
        raise ModelError(
            f"{name} claims shape {list(tensor.shape)}, more than is stored: save it again."
        )


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).split("\n")[0].rstrip(". ")


def _a(value: Any) -> str:
    return f"a {type(value).__name__}"
