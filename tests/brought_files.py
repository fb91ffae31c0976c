"""What a person has of a small nanoGPT run, as bytes."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from random_gpt import random_gpt
from tiny_run import CHARACTERS

from model.conversion import to_state_dict
from model.dialects import DIALECTS

SIZES = {"n_ctx": 24, "d_vocab": len(CHARACTERS)}
META = pickle.dumps({"stoi": {c: i for i, c in enumerate(sorted(CHARACTERS))}})


def saved(value: Any) -> bytes:
    """What torch.save writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def nanogpt(seed: int = 5) -> bytes:
    """What nanoGPT's train.py writes, of random weights."""
    gpt = random_gpt(seed=seed, tied_embeddings=True, **SIZES).float()
    config = gpt.config
    args = {"n_layer": config.n_layers, "n_head": config.n_heads, "n_embd": config.d_model}
    args |= {"block_size": config.n_ctx, "bias": True, "vocab_size": config.d_vocab}
    state = to_state_dict(gpt, DIALECTS["nanogpt"])
    return saved({"model": state, "model_args": args, "iter_num": 700})
