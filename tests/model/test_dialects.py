"""Each dialect and each of its variants, against a forward that was written without the tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dialect_references as ref
import pytest
import torch
from dialect_references import Reference

from model import convert, to_hooked
from model.conversion import to_state_dict
from model.dialects import DIALECTS
from model.equivalence import TOLERANCE, hooked_sites, max_difference

HEADS = {"n_heads": 3}
NANO = {"n_layer": 3, "n_head": 3, "n_embd": 48, "block_size": 17, "vocab_size": 61}

CASES: dict[str, tuple[str, Callable[[], Reference], dict[str, Any]]] = {
    "course": ("course", ref.course, {}),
    "course with qkv biases": ("course", lambda: ref.course(qkv_bias=True), {}),
    "nanoGPT": ("nanogpt", ref.hf_shaped, HEADS),
    "nanoGPT without biases": ("nanogpt", lambda: ref.hf_shaped(bias=False), HEADS),
    "nanoGPT with mask buffers": ("nanogpt", lambda: ref.hf_shaped(buffers=True), HEADS),
    "nanoGPT, padded": ("nanogpt", lambda: ref.hf_shaped(vocab=128), HEADS),
    "nanoGPT with its arguments": (
        "nanogpt",
        ref.hf_shaped,
        {"config": NANO | {"bias": True, "dropout": 0.1}},
    ),
    "nanoGPT before its switch of GELU": (
        "nanogpt",
        lambda: ref.hf_shaped(act=ref.tanh_gelu),
        HEADS | {"act_fn": "gelu_new"},
    ),
    "build-nanogpt": (
        "build-nanogpt",
        lambda: ref.hf_shaped(act=ref.tanh_gelu),
        HEADS | {"dialect": "build-nanogpt"},
    ),
    "build-nanogpt by its configuration": (
        "build-nanogpt",
        lambda: ref.hf_shaped(act=ref.tanh_gelu),
        {"config": NANO},
    ),
    "minGPT": (
        "mingpt",
        lambda: ref.hf_shaped(act=ref.tanh_gelu, tied=False, buffers=True),
        HEADS,
    ),
    "old minGPT": ("old-mingpt", ref.old_mingpt, HEADS),
    "lecture": ("lecture", ref.lecture, {}),
    "lecture, scaled by the width": (
        "lecture",
        lambda: ref.lecture(scale=math.sqrt(48)),
        {"attn_scale": "d_model"},
    ),
    "Hugging Face": (
        "hf",
        lambda: ref.hf_shaped(conv1d=True, act=ref.tanh_gelu, buffers=True),
        HEADS,
    ),
    "Hugging Face by its configuration": (
        "hf",
        lambda: ref.hf_shaped(
            conv1d=True, act=ref.relu, eps=1e-3, d_mlp=70, scale=1.0, by_layer=True, tied=False
        ),
        {
            "config": {
                "model_type": "gpt2",
                "n_head": 3,
                "activation_function": "relu",
                "layer_norm_epsilon": 1e-3,
                "n_inner": 70,
                "scale_attn_weights": False,
                "scale_attn_by_inverse_layer_idx": True,
                "tie_word_embeddings": False,
            }
        },
    ),
    "LLMs-from-scratch": ("llms-from-scratch", ref.from_scratch, HEADS),
    "LLMs-from-scratch with qkv biases": (
        "llms-from-scratch",
        lambda: ref.from_scratch(qkv_bias=True),
        HEADS,
    ),
    "TransformerLens": ("transformer-lens", ref.transformer_lens, {}),
    "TransformerLens, folded": (
        "transformer-lens",
        lambda: ref.transformer_lens(folded=True),
        {"act_fn": "relu"},
    ),
}


def cases() -> Any:
    return pytest.mark.parametrize(("dialect", "reference", "settings"), CASES.values(), ids=CASES)


@cases()
def test_every_site_is_that_of_the_architecture(
    dialect: str, reference: Callable[[], Reference], settings: dict[str, Any]
) -> None:
    theirs = reference()
    n_vocab = len(theirs.embed)
    ids = torch.randint(n_vocab, (2, 17), generator=torch.Generator().manual_seed(1))
    expected = theirs.sites(ids)
    for dtype, tolerance in TOLERANCE.items():
        state = {name: tensor.to(dtype) for name, tensor in theirs.state.items()}
        conversion = convert(state, **settings)
        assert conversion.dialect.name == dialect
        found = hooked_sites(to_hooked(conversion.gpt), ids)
        assert found.keys() == expected.keys()
        for site, value in expected.items():
            scale = max(1.0, value[value.isfinite()].abs().max().item())
            off = max_difference(value, found[site].double())
            assert off <= tolerance * scale, (site, dtype, off)


@cases()
def test_the_same_table_backwards_gives_the_weights_to_the_bit(
    dialect: str, reference: Callable[[], Reference], settings: dict[str, Any]
) -> None:
    state = reference().state
    again = to_state_dict(convert(state, **settings).gpt, DIALECTS[dialect])
    weights = {
        name: tensor
        for name, tensor in state.items()
        if not name.endswith((".tril", ".mask", ".IGNORE", "attn.bias"))
    }
    if "folded" in str(settings) or not any("ln1.w" in name for name in weights):
        again = {name: tensor for name, tensor in again.items() if name in weights}
    assert again.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, again[name]), name


def test_a_table_says_each_parameter_once() -> None:
    for dialect in DIALECTS.values():
        names = [stored.name for stored in dialect.tensors.values()]
        assert len(set(names)) == len(names), dialect.name
        for group in dialect.optional:
            assert group & dialect.tensors.keys(), dialect.name


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod.", "model."])
def test_prefixes_fall_off_in_any_combination(prefix: str) -> None:
    state = ref.hf_shaped().state
    wrapped = convert({prefix + name: t for name, t in state.items()}, n_heads=3)
    inside = convert({n.replace("h.", f"h.{prefix}", 1): t for n, t in state.items()}, n_heads=3)
    bare = convert({n.removeprefix("transformer."): t for n, t in state.items()}, n_heads=3)
    plain = convert(state, n_heads=3).gpt.state_dict()
    for other in (wrapped, inside, bare):
        for name, tensor in other.gpt.state_dict().items():
            assert torch.equal(tensor, plain[name])
