"""The run directory: a trained GPT with all that is known of it.

    config.json               the GPTConfig
    tokenizer.json            a Hugging Face fast tokenizer; absent when the model has none
    model.safetensors         the final weights
    snapshots/step-00000128.safetensors ...
    history.csv               one row a measurement
    run.json                  recipe, seed, corpus, versions, final losses
    text.txt                  a piece of held-out text to look at the model with; may be absent

Every weights file carries its configuration, its step and the hash of its tensors, so it can be
read alone, and a damaged or altered one is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .config import GPTConfig
from .errors import ModelError
from .files import read_json, write_atomically, write_json, write_text
from .gpt import GPT
from .tokenizer import load_tokenizer, tokenizer_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
SNAPSHOTS, HISTORY, RUN_INFO = "snapshots", "history.csv", "run.json"
HELD_OUT_TEXT = "text.txt"
_SNAPSHOT_NAME = re.compile(r"step-(\d{8,})\.safetensors")


@dataclasses.dataclass(frozen=True)
class Weights:
    """One weights file: a GPT's state dict (a tied unembedding left out) and what it is."""

    config: GPTConfig
    step: int
    sha256: str
    tensors: Mapping[str, Tensor]

    def to_gpt(self, dtype: torch.dtype = torch.float32) -> GPT:
        """The GPT in evaluation mode, in `dtype` whatever the file holds."""
        with torch.device("meta"):
            gpt = GPT(self.config)
        tensors = {name: tensor.to(dtype) for name, tensor in self.tensors.items()}
        gpt.load_state_dict(tensors, strict=False, assign=True)
        if self.config.tied_embeddings:
            gpt.unembed.weight = gpt.embed.weight
        return gpt.eval()


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory, opened for reading. Nothing is held: each call reads the file."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Raises ModelError when `path` is not a run directory."""
        path = Path(path)
        if not path.exists():
            raise ModelError(f"there is no run at {path}: give a folder that `orrery train` wrote.")
        if not path.is_dir():
            raise ModelError(
                f"{path} is a file, not a run: give a folder that `orrery train` wrote."
            )
        run = cls(path)
        if not (path / CONFIG).is_file() or not run.steps:
            raise ModelError(
                f"{path} is not a run: it needs {CONFIG} and {WEIGHTS}; "
                "give a folder that `orrery train` wrote."
            )
        return run

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def config(self) -> GPTConfig:
        return GPTConfig.from_dict(read_json(self.path / CONFIG))

    @property
    def info(self) -> dict[str, Any]:
        """What `run.json` says, or nothing when there is none yet."""
        path = self.path / RUN_INFO
        return read_json(path) if path.exists() else {}

    @property
    def snapshots(self) -> dict[int, Path]:
        """The snapshot files by step, in order."""
        found = {
            int(match[1]): path
            for path in (self.path / SNAPSHOTS).glob("step-*.safetensors")
            if (match := _SNAPSHOT_NAME.fullmatch(path.name))
        }
        return dict(sorted(found.items()))

    @property
    def steps(self) -> list[int]:
        """Every step that can be loaded, the final one last."""
        steps = set(self.snapshots)
        if (self.path / WEIGHTS).is_file():
            steps.add(read_header(self.path / WEIGHTS).step)
        return sorted(steps)

    @property
    def text(self) -> str | None:
        """A piece of text that the run was not trained on, `text.txt`, when it brings one."""
        path = self.path / HELD_OUT_TEXT
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def tokenizer(self) -> PreTrainedTokenizerFast | None:
        path = self.path / TOKENIZER
        return load_tokenizer(path) if path.exists() else None

    def weights(self, step: int | None = None) -> Weights:
        """The weights at a step; the final ones (of an unfinished run the newest) when not given.

        Raises:
            ModelError: when there is no such step, the file is damaged, or it disagrees with
                `config.json`.
        """
        weights = read_weights(self.weights_path(step))
        config = self.config
        for field in dataclasses.fields(GPTConfig):
            here, there = getattr(config, field.name), getattr(weights.config, field.name)
            if here != there:
                raise ModelError(
                    f"{self.path / CONFIG} says {field.name}={here!r} but the weights were written "
                    f"with {field.name}={there!r}: restore the file that was changed."
                )
        return weights

    def weights_path(self, step: int | None) -> Path:
        """The file of a step.

        Raises:
            ModelError: when there is no such step, or the file that may hold it is damaged.
        """
        final, snapshots = self.path / WEIGHTS, self.snapshots
        if step is None:
            return final if final.is_file() else snapshots[max(snapshots)]
        try:
            # the final file first: snapshots may be stored in half precision
            if final.is_file() and read_header(final).step == step:
                return final
        except ModelError:
            if step not in snapshots:
                raise
        if step not in snapshots:
            raise ModelError(
                f"{self.path} has no step {step}: it has {', '.join(map(str, self.steps))}."
            )
        return snapshots[step]


def snapshot_path(run: str | Path, step: int) -> Path:
    return Path(run) / SNAPSHOTS / f"step-{step:08d}.safetensors"


def write_description(
    run: str | Path, config: GPTConfig, tokenizer: PreTrainedTokenizerFast | None
) -> None:
    """`config.json` and `tokenizer.json` of a run."""
    write_json(Path(run) / CONFIG, config.to_dict())
    if tokenizer is not None:
        write_text(Path(run) / TOKENIZER, tokenizer_json(tokenizer))


def load_gpt(
    path: str | Path, step: int | None = None, *, dtype: torch.dtype = torch.float32
) -> GPT:
    """The GPT of a run directory at a step, or of one weights file; in evaluation mode.

    Raises:
        ModelError: when there is no run, step or readable weights file.
    """
    path = Path(path)
    if path.is_file():
        return read_weights(path).to_gpt(dtype)
    return Run.open(path).weights(step).to_gpt(dtype)


def save_weights(path: str | Path, gpt: GPT, *, step: int, dtype: torch.dtype | None = None) -> str:
    """Write a GPT's weights with their configuration, step and hash; return the hash.

    Args:
        dtype: the precision to store; the weights' own when not given.
    """
    tensors = {
        name: tensor.detach().to("cpu", dtype or tensor.dtype).contiguous()
        for name, tensor in gpt.state_dict().items()
        if not (gpt.config.tied_embeddings and name == "unembed.weight")
    }
    sha256 = tensors_sha256(tensors)
    metadata = {
        "format": "orrery",
        "config": json.dumps(gpt.config.to_dict()),
        "step": str(step),
        "sha256": sha256,
    }
    with write_atomically(path) as beside:
        save_file(tensors, beside, metadata)
    return sha256


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, shapes, precisions and values, independent of their order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def is_ours(path: str | Path) -> bool:
    """Whether a weights file, or one in a folder, was written by `save_weights`."""
    path = Path(path)
    if path.is_dir():
        candidates = [path / WEIGHTS, *(path / SNAPSHOTS).glob("*.safetensors")]
        return any(is_ours(file) for file in candidates if file.is_file())
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get("format") == "orrery"
    except (SafetensorError, OSError):
        return False


def read_header(path: str | Path) -> Weights:
    """What a weights file says of itself, without its tensors.

    Raises:
        ModelError: when the file is damaged or not written by `save_weights`.
    """
    return _read(Path(path), with_tensors=False)


def read_weights(path: str | Path) -> Weights:
    """A weights file, checked against its own configuration and hash.

    Raises:
        ModelError: when the file is damaged, altered, not written by `save_weights`, or holds a
            tensor that is missing, surplus, misshapen or not finite.
    """
    weights = _read(Path(path), with_tensors=True)
    if tensors_sha256(weights.tensors) != weights.sha256:
        raise ModelError(
            f"the tensors in {path} are not those that were saved: the file was altered or "
            "damaged; restore it or train again."
        )
    for name, tensor in weights.tensors.items():
        if not tensor.isfinite().all():
            raise ModelError(f"{name} in {path} holds NaN or infinity: use an earlier snapshot.")
    return weights


def _read(path: Path, *, with_tensors: bool) -> Weights:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != "orrery":
                raise ModelError(
                    f"{path} was not written by `orrery train`: it carries no configuration."
                )
            config = GPTConfig.from_dict(json.loads(metadata["config"]))
            _check_shapes(path, config, {k: file.get_slice(k).get_shape() for k in file.keys()})  # noqa: SIM118 (no mapping)
            tensors = {k: file.get_tensor(k) for k in file.keys()} if with_tensors else {}  # noqa: SIM118 (no mapping)
            return Weights(config, int(metadata["step"]), metadata["sha256"], tensors)
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: restore the file or train again.") from None
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise ModelError(
            f"{path} cannot be read as weights ({error}): it is truncated or something else; "
            "restore the file or train again."
        ) from None


@lru_cache(maxsize=32)
def _shapes(config: GPTConfig) -> Mapping[str, list[int]]:
    """Of each tensor that a file of this configuration holds. Making the GPT takes longer than
    reading the header that it is compared with."""
    with torch.device("meta"):
        shapes = {name: list(tensor.shape) for name, tensor in GPT(config).state_dict().items()}
    if config.tied_embeddings:
        del shapes["unembed.weight"]
    return shapes


def _check_shapes(path: Path, config: GPTConfig, found: Mapping[str, list[int]]) -> None:
    expected = _shapes(config)
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise ModelError(
                f"{name} in {path} has shape {found.get(name, 'none')}, and its configuration "
                f"asks for {expected.get(name, 'none')}: the file is not one `orrery train` wrote."
            )
