"""A GPT as files that other code loads: the tables of `dialects.py`, run backwards."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from .config import GPTConfig
from .conversion import convert, to_state_dict
from .dialect import Dialect
from .dialects import HUGGING_FACE, NANOGPT, TRANSFORMER_LENS
from .errors import ModelError
from .files import write_atomically, write_json, write_text
from .gpt import GPT
from .reading import source_of
from .tokenizer import is_character_tokenizer, tokenizer_json, vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_WITHOUT_EFFECT = frozenset(
    {"dropout", "init_mode", "bias", "qkv_bias", "unembed_bias", "tied_embeddings"}
)
"""Fields that matter in training only, or whose other value the weights make the same function."""


def export(
    gpt: GPT,
    to: str,
    path: str | Path,
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    step: int = 0,
) -> None:
    """Write a GPT for another library into a new folder.

    `to` is one of

        nanogpt            ckpt.pt, and meta.pkl of a character vocabulary: `sample.py` reads both
        hf                 a folder for `GPT2LMHeadModel.from_pretrained`
        transformer-lens   model.safetensors and config.json of a HookedTransformer: for
                           `load_and_process_state_dict` of TransformerLens 3, and for
                           `convert_tl_checkpoint` and `TransformerBridge.boot_native` of 4

    Raises:
        ModelError: when the other library cannot express this GPT; it says why.
    """
    if to not in FORMATS:
        raise ModelError(f"there is no export to {to!r}: use one of {', '.join(FORMATS)}.")
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ModelError(f"{path} is there already: give a new folder to write to.")
    dialect, write = FORMATS[to]
    said, state = configuration(gpt.config, dialect), to_state_dict(gpt, dialect)
    _check_read_back(gpt.config, dialect, state, said)
    write(path, state, said, tokenizer, step)


def configuration(config: GPTConfig, dialect: Dialect) -> dict[str, Any]:
    """A GPTConfig under the names of a dialect.

    Raises:
        ModelError: when a value has no name there.
    """
    said: dict[str, Any] = {key: allowed[0] for key, allowed in dialect.requires.items()}
    for key, says in dialect.settings.items():
        value = getattr(config, says.field)
        names = [
            theirs
            for theirs, ours in says.values.items()
            if value == (math.sqrt(config.d_head) if ours is None else ours)
        ]
        if not names and not says.open:
            raise _cannot(dialect, says.field, value)
        said[key] = names[0] if names else value
    return said


def _check_read_back(
    config: GPTConfig, dialect: Dialect, state: Mapping[str, Tensor], said: Mapping[str, Any]
) -> None:
    """What is about to be written is read by the same tables, and must be the same function."""
    read = source_of(state, f"the export to {dialect.name}")
    read = dataclasses.replace(read, config=said)
    understood = dataclasses.asdict(convert(read, dialect=dialect.name).gpt.config)
    carried = {says.field for says in dialect.settings.values()}
    if "d_mlp" in dialect.assumed.keys() - carried:
        understood["d_mlp"] = 4 * config.d_model
    for field, theirs in understood.items():
        ours = getattr(config, field)
        if field not in _WITHOUT_EFFECT and ours != theirs:
            raise _cannot(dialect, field, ours)


def _cannot(dialect: Dialect, field: str, value: Any) -> ModelError:
    return ModelError(
        f"{dialect.name} cannot say {field}={value!r}, and its code would compute something else: "
        "export to another library."
    )


def _write_nanogpt(
    path: Path,
    state: Mapping[str, Tensor],
    config: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast | None,
    step: int,
) -> None:
    checkpoint = {"model": dict(state), "model_args": config, "iter_num": step, "config": {}}
    with write_atomically(path / "ckpt.pt") as beside:
        torch.save(checkpoint | {"best_val_loss": math.inf}, beside)
    if tokenizer is not None and is_character_tokenizer(tokenizer):
        itos = dict(enumerate(vocabulary(tokenizer)))
        meta = {"vocab_size": len(itos), "itos": itos, "stoi": {c: i for i, c in itos.items()}}
        with write_atomically(path / "meta.pkl") as beside:
            beside.write_bytes(pickle.dumps(meta))


def _write_folder(
    path: Path,
    state: Mapping[str, Tensor],
    config: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast | None,
    step: int,
) -> None:
    once: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        # a tied tensor is written once, under its first name
        once.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), name)
    tensors = {name: state[name].contiguous() for name in once.values()}
    with write_atomically(path / "model.safetensors") as beside:
        save_file(tensors, beside, {"format": "pt", "step": str(step)})
    write_json(path / "config.json", config)
    if tokenizer is not None:
        write_text(path / "tokenizer.json", tokenizer_json(tokenizer))
        write_json(
            path / "tokenizer_config.json",
            {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False},
        )


FORMATS: Mapping[str, tuple[Dialect, Callable[..., None]]] = {
    "nanogpt": (NANOGPT, _write_nanogpt),
    "hf": (HUGGING_FACE, _write_folder),
    "transformer-lens": (TRANSFORMER_LENS, _write_folder),
}
