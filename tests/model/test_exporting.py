"""What is written for another library is loaded there, and comes back to the bit."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from random_gpt import random_gpt, random_ids
from safetensors.torch import load_file

from model import GPT, ModelError, character_tokenizer, convert, export, fold
from model.cli import main
from model.exporting import FORMATS
from model.folding import MAY_CHANGE

LETTERS = character_tokenizer("abcdefghijk")
NANO = {"tied_embeddings": True, "d_mlp": 60}
EXPORTED: dict[str, tuple[str, dict[str, Any]]] = {
    "nanoGPT": ("nanogpt", NANO),
    "nanoGPT without biases": ("nanogpt", NANO | {"bias": False, "qkv_bias": False}),
    "nanoGPT, biases not on qkv": ("nanogpt", NANO | {"qkv_bias": False}),
    "Hugging Face": ("hf", {"tied_embeddings": True, "act_fn": "gelu_new"}),
    "Hugging Face, every setting": (
        "hf",
        {
            "act_fn": "relu", "d_mlp": 13, "eps": 1e-3, "attn_scale": 1.0,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    "Hugging Face without biases": ("hf", {"bias": False, "qkv_bias": False}),
    "TransformerLens": ("transformer-lens", {"unembed_bias": True, "attn_scale": 2.5}),
    "TransformerLens, tied": ("transformer-lens", {"tied_embeddings": True, "act_fn": "gelu_new"}),
    "TransformerLens, attention-only": ("transformer-lens", {"d_mlp": 0}),
}  # fmt: skip


def everywhere() -> Any:
    return pytest.mark.parametrize(("to", "settings"), EXPORTED.values(), ids=EXPORTED)


@everywhere()
def test_a_round_trip_is_exact(to: str, settings: dict[str, Any], tmp_path: Path) -> None:
    gpt = random_gpt(dtype=torch.float32, **settings)
    export(gpt, to, tmp_path / "out", LETTERS)
    again = convert(tmp_path / "out")
    assert again.dialect.name == to
    back = again.gpt.state_dict()
    for name, tensor in gpt.state_dict().items():
        assert torch.equal(back.pop(name), tensor)
    # what came back besides are the zeros of biases that this library always has
    assert not any(tensor.any() for name, tensor in back.items() if name != "unembed.weight")
    assert torch.equal(gpt(random_ids()), again.gpt(random_ids()))
    assert again.tokenizer is not None
    assert again.tokenizer.decode([0, 4]) == "ae"
    assert (
        not again.assumptions
        or to == "nanogpt"
        or {s.field for s in again.assumptions} <= {"scale_attn_by_inverse_layer_idx", "dropout"}
    )


@pytest.mark.parametrize(
    "settings", [s for to, s in EXPORTED.values() if to == "hf"], ids=lambda s: " ".join(s)
)
def test_hugging_face_loads_what_was_written_for_it(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer, GPT2LMHeadModel

    gpt = random_gpt(dtype=torch.float32, **settings)
    export(gpt, "hf", tmp_path / "out", LETTERS)
    theirs, said = GPT2LMHeadModel.from_pretrained(
        tmp_path / "out", output_loading_info=True, attn_implementation="eager"
    )
    assert not said["missing_keys"]
    assert not said["unexpected_keys"]
    with torch.no_grad():
        found, expected = theirs.double()(random_ids()).logits, gpt.double()(random_ids())
    assert (found - expected).abs().max() < 1e-10 * max(1, expected.abs().max())
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("abba") == [0, 1, 1, 0]


@pytest.mark.parametrize(
    "settings", [s for to, s in EXPORTED.values() if to == "transformer-lens"], ids=str
)
def test_transformer_lens_loads_what_was_written_for_it(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    gpt = random_gpt(**settings)
    export(gpt, "transformer-lens", tmp_path / "out")
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = HookedTransformer(HookedTransformerConfig(**said, dtype=torch.float64))
    state = load_file(tmp_path / "out" / "model.safetensors")
    theirs.load_and_process_state_dict(
        state,
        fold_ln=False,
        center_writing_weights=False,
        center_unembed=False,
        fold_value_biases=False,
    )
    theirs.to(torch.float64)
    with torch.no_grad():
        assert (theirs(random_ids()) - gpt(random_ids())).abs().max() < 1e-5


def test_nanogpt_finds_its_arguments_and_its_characters(tmp_path: Path) -> None:
    gpt = random_gpt(dtype=torch.float32, **NANO)
    export(gpt, "nanogpt", tmp_path / "out", LETTERS, step=40)
    checkpoint = torch.load(tmp_path / "out" / "ckpt.pt", weights_only=True)
    assert checkpoint["iter_num"] == 40
    assert checkpoint["model_args"] == {
        "n_layer": 2, "n_head": 3, "n_embd": 15, "block_size": 7, "vocab_size": 11, "bias": True,
        "dropout": 0.0,
    }  # fmt: skip
    weights = checkpoint["model"]
    assert weights["lm_head.weight"].data_ptr() == weights["transformer.wte.weight"].data_ptr()
    meta = pickle.loads((tmp_path / "out" / "meta.pkl").read_bytes())
    assert [meta["stoi"][c] for c in "abk"] == [0, 1, 10]
    assert meta["itos"][10] == "k"


@pytest.mark.parametrize(
    ("to", "settings", "said"),
    [
        ("nanogpt", {}, "token embedding"),
        ("nanogpt", NANO | {"act_fn": "relu"}, "nanogpt cannot say act_fn='relu'"),
        ("nanogpt", NANO | {"eps": 1e-3}, "cannot say eps=0.001"),
        ("nanogpt", NANO | {"d_mlp": 13}, "cannot say d_mlp=13"),
        ("nanogpt", NANO | {"attn_scale": 2.0}, "cannot say attn_scale=2.0"),
        ("nanogpt", NANO | {"d_mlp": 0}, r"needs blocks\.0\.ln2\.weight"),
        ("hf", {"unembed_bias": True}, r"hf has no place for unembed\.bias"),
        ("hf", {"attn_scale": 2.0}, "cannot say attn_scale=2.0"),
        ("onnx", {}, "there is no export to 'onnx': use one of nanogpt, hf, transformer-lens"),
    ],
)
def test_what_another_library_cannot_say_is_refused(
    to: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=said):
        export(random_gpt(**settings), to, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="is there already"):
        export(random_gpt(), "hf", tmp_path)


def test_a_folded_model_goes_to_transformer_lens_and_back(tmp_path: Path) -> None:
    gpt: GPT = fold(random_gpt(), MAY_CHANGE)
    export(gpt, "transformer-lens", tmp_path / "out")
    again = convert(tmp_path / "out").gpt
    assert again.config.attn_scale == math.sqrt(5)
    for name, tensor in gpt.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


@pytest.mark.parametrize("to", FORMATS)
def test_the_command_line_goes_there_and_back(to: str, tmp_path: Path, capsys) -> None:
    source = tmp_path / "source"
    export(random_gpt(dtype=torch.float32, **NANO), "nanogpt", source, LETTERS)
    there, back = tmp_path / "there", tmp_path / "back"
    argv = [] if to == "nanogpt" else ["--act-fn", "gelu"]
    assert main(["convert", str(source), "--to", to, "--out", str(there), *argv]) == 0
    assert main(["convert", str(there), "--out", str(back)]) == 0
    assert main(["verify", str(back)]) == 0
    capsys.readouterr()
    first, last = convert(source).gpt, convert(back).gpt
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, last.state_dict()[name])
