"""Checkpoint files as their writers leave them, small."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import dialect_references as ref
import torch
from safetensors.torch import save_file
from torch import Tensor

LETTERS = [chr(ord("\t") + i) for i in range(2)] + [chr(ord(" ") + i) for i in range(59)]
NANO_ARGS = {
    "n_layer": 3, "n_head": 3, "n_embd": 48, "block_size": 17, "vocab_size": 61, "bias": True,
    "dropout": 0.1,
}  # fmt: skip
HF_CONFIG = {
    "model_type": "gpt2", "n_layer": 3, "n_head": 3, "n_embd": 48, "n_positions": 17,
    "vocab_size": 61, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
}  # fmt: skip


def float32(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """In float32; tensors that are one stay one."""
    done: dict[int, Tensor] = {}
    return {n: done.setdefault(id(t), t.float()) for n, t in state.items()}


def write_meta(path: Path, characters: list[str] = LETTERS) -> Path:
    itos = dict(enumerate(characters))
    stoi = {c: i for i, c in itos.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps({"vocab_size": len(itos), "itos": itos, "stoi": stoi}))
    return path


def write_nanogpt(folder: Path, **more: Any) -> Path:
    """out-NAME/ckpt.pt with data/NAME/meta.pkl beside it, as nanoGPT's own scripts leave them."""
    path = folder / "out-letters" / "ckpt.pt"
    path.parent.mkdir(parents=True)
    write_meta(folder / "data" / "letters" / "meta.pkl")
    checkpoint = {
        "model": {f"_orig_mod.{n}": t for n, t in float32(ref.hf_shaped().state).items()},
        "optimizer": {"state": {}, "param_groups": [{"lr": 1e-3}]},
        "model_args": NANO_ARGS,
        "iter_num": 250,
        "best_val_loss": torch.tensor(1.5),
        "config": {"dataset": "letters", "device": "cpu"},
    }
    torch.save(checkpoint | more, path)
    return path


def hf_state(**settings: Any) -> dict[str, Tensor]:
    """What a Hugging Face file holds: a tied unembedding is left out."""
    reference = ref.hf_shaped(conv1d=True, act=ref.tanh_gelu, **settings)
    state = float32(reference.state)
    return {n: t.contiguous() for n, t in state.items() if n != "lm_head.weight"}


def write_hf(folder: Path, shards: int = 1, suffix: str = "safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(HF_CONFIG))
    state = hf_state()
    stem = "model" if suffix == "safetensors" else "pytorch_model"

    def write(part: dict[str, Tensor], name: str) -> None:
        if suffix == "safetensors":
            save_file(part, folder / name, {"format": "pt"})
        else:
            torch.save(part, folder / name)

    if shards == 1:
        write(state, f"{stem}.{suffix}")
        return folder
    where = {}
    for i in range(shards):
        name = f"{stem}-{i + 1:05d}-of-{shards:05d}.{suffix}"
        part = {n: t for k, (n, t) in enumerate(state.items()) if k % shards == i}
        write(part, name)
        where |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return folder
