"""Files as people have them: read, recognised, and refused in one sentence when they must be."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import dialect_references as ref
import pytest
import torch
from checkpoint_files import (
    HF_CONFIG,
    LETTERS,
    NANO_ARGS,
    float32,
    hf_state,
    write_hf,
    write_meta,
    write_nanogpt,
)
from random_gpt import random_gpt
from safetensors.torch import save_file

from model import GPTConfig, ModelError, character_tokenizer, convert, load, save_weights
from model.tokenizer import vocabulary

IDS = torch.randint(61, (2, 17), generator=torch.Generator().manual_seed(2))


def agrees(source: Any, reference: ref.Reference, **settings: Any) -> None:
    logits = reference.sites(IDS)["logits"]
    found = convert(source, **settings).gpt(IDS)
    assert (found - logits).abs().max() < 2e-5 * logits.abs().max()


def test_a_nanogpt_checkpoint_is_loaded_with_its_characters(tmp_path: Path) -> None:
    path = write_nanogpt(tmp_path)
    agrees(path, ref.hf_shaped())
    conversion = convert(path)
    assert conversion.source.step == 250
    assert {s.field for s in conversion.assumptions} >= {"act_fn", "eps", "attn_scale"}
    assert vocabulary(conversion.tokenizer) == LETTERS
    assert conversion.gpt.config.dropout == 0.1
    model = load(path)
    assert (model.cfg.model_name, model.cfg.checkpoint_value) == ("ckpt", 250)


def test_the_strings_of_transformer_lens_are_answered_exactly(tmp_path: Path) -> None:
    model = load(write_nanogpt(tmp_path))
    text = "A  B\n\n C\t<"
    ids = model.to_tokens(text)
    assert ids.tolist() == [[LETTERS.index(c) for c in text]]
    assert model.to_str_tokens(text) == list(text)
    assert model.to_string(ids[0]) == text
    logits, cache = model.run_with_cache(text)
    assert torch.equal(logits, model(ids))
    assert cache["resid_post", 2].shape == (1, len(text), 48)
    written = model.generate(text, max_new_tokens=6, temperature=0.0, verbose=False)
    assert written.startswith(text)
    assert len(written) == len(text) + 6
    greedy = model.generate(ids, max_new_tokens=6, temperature=0.0, verbose=False)
    assert model.to_string(greedy[0]) == written


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_hugging_face_folder_is_loaded_whole_or_in_shards(
    tmp_path: Path, suffix: str, shards: int
) -> None:
    folder = write_hf(tmp_path / "hf", shards, suffix)
    agrees(folder, ref.hf_shaped(conv1d=True, act=ref.tanh_gelu))
    assert load(folder).cfg.act_fn == "gelu_new"


def test_hugging_face_itself_computes_the_same(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    for change in (
        {},
        {"activation_function": "relu", "n_inner": 70, "layer_norm_epsilon": 1e-3},
        {"scale_attn_weights": False, "tie_word_embeddings": False},
        {"scale_attn_by_inverse_layer_idx": True},
    ):
        config = GPT2Config(**(HF_CONFIG | change), attn_implementation="eager")
        theirs = GPT2LMHeadModel(config).eval()
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        folder = tmp_path / str(len(str(change)))
        theirs.save_pretrained(folder)
        conversion = convert(folder)
        for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-10)):
            with torch.no_grad():
                expected = theirs.to(dtype)(IDS).logits
                found = conversion.gpt.to(dtype)(IDS)
            assert (found - expected).abs().max() < tolerance * expected.abs().max()


@dataclasses.dataclass
class GPTConfigOfTheWriter:
    """A configuration pickled as an object of a class, as build-nanogpt does."""

    block_size: int = 17
    vocab_size: int = 61
    n_layer: int = 3
    n_head: int = 3
    n_embd: int = 48


def test_a_configuration_object_is_read_as_its_fields(tmp_path: Path) -> None:
    reference = ref.hf_shaped(act=ref.tanh_gelu)
    path = tmp_path / "model_19072.pt"
    GPTConfigOfTheWriter.__name__ = GPTConfigOfTheWriter.__qualname__ = "GPTConfig"
    GPTConfigOfTheWriter.__module__ = "__main__"
    import __main__

    __main__.GPTConfig = GPTConfigOfTheWriter
    try:
        torch.save({"model": float32(reference.state), "config": GPTConfigOfTheWriter()}, path)
    finally:
        del __main__.GPTConfig
    assert convert(path).dialect.name == "build-nanogpt"
    agrees(path, reference)


def test_a_file_written_before_zip_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.bin"
    torch.save(hf_state(), path, _use_new_zipfile_serialization=False)
    agrees(path, ref.hf_shaped(conv1d=True, act=ref.tanh_gelu), n_heads=3)


def test_a_checkpoint_that_carries_its_vocabulary_needs_no_other_file(tmp_path: Path) -> None:
    state = float32(ref.lecture().state)
    torch.save({"model_state_dict": state, "chars": LETTERS}, tmp_path / "gpt.pth")
    conversion = convert(tmp_path / "gpt.pth")
    assert vocabulary(conversion.tokenizer) == LETTERS


def test_a_checkpoint_without_tokenizer_works_with_ids(tmp_path: Path) -> None:
    save_file(hf_state(), tmp_path / "alone.safetensors")
    conversion = convert(tmp_path / "alone.safetensors", n_heads=3)
    assert conversion.tokenizer is None
    assert "no tokenizer" in conversion.notes[-1]
    model = load(tmp_path / "alone.safetensors", n_heads=3)
    assert model(IDS).shape == (2, 17, 61)


def test_our_own_runs_are_a_dialect_too(tmp_path: Path) -> None:
    gpt = random_gpt(dtype=torch.float32, unembed_bias=True, act_fn="relu", attn_scale=2.0)
    save_weights(tmp_path / "w.safetensors", gpt, step=5)
    for source in (tmp_path / "w.safetensors", gpt.state_dict()):
        settings = {} if isinstance(source, Path) else {"config": gpt.config.to_dict()}
        conversion = convert(source, **settings)
        assert conversion.dialect.name == "orrery"
        assert conversion.gpt.config == gpt.config
        for name, tensor in gpt.state_dict().items():
            assert torch.equal(conversion.gpt.state_dict()[name], tensor)


def test_the_callers_dict_and_file_are_never_changed(tmp_path: Path) -> None:
    state = float32(ref.hf_shaped().state)
    kept = {name: tensor.clone() for name, tensor in state.items()}
    order = list(state)
    gpt = convert(state, n_heads=3).gpt
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter.add_(1.0)
    assert list(state) == order
    assert all(torch.equal(state[name], tensor) for name, tensor in kept.items())
    path = write_nanogpt(tmp_path)
    before = path.read_bytes()
    with torch.no_grad():
        for parameter in convert(path).gpt.parameters():
            parameter.add_(1.0)
    assert path.read_bytes() == before


def test_half_precision_is_kept_and_computed_with_exactly() -> None:
    state = {n: t.to(torch.bfloat16) for n, t in ref.hf_shaped().state.items()}
    gpt = convert(state, n_heads=3).gpt
    assert gpt.embed.weight.dtype == torch.bfloat16
    assert torch.equal(gpt.embed.weight, state["transformer.wte.weight"])


def altered(change: dict[str, Any], **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    state = dict(ref.hf_shaped().state)
    for name, tensor in change.items():
        if tensor is None:
            del state[name]
        else:
            state[name] = tensor
    return state, {"n_heads": 3} | settings


BLOCK = "transformer.h.1."
NAN = torch.full((48,), 0.5).index_fill(0, torch.tensor([7]), torch.nan)
REFUSED: dict[str, tuple[tuple[dict[str, Any], dict[str, Any]], str]] = {
    "missing": (altered({BLOCK + "ln_2.bias": None}), r"transformer\.h\.1\.ln_2\.bias is missing"),
    "missing alone": (altered({"transformer.ln_f.bias": None}), r"ln_f\.bias is missing"),
    "missing embedding": (
        altered({"transformer.wte.weight": None, "lm_head.weight": None}),
        r"transformer\.wte\.weight is missing",
    ),
    "surplus": (altered({BLOCK + "extra": torch.zeros(2)}), r"there is transformer\.h\.1\.extra"),
    "misshapen": (
        altered({BLOCK + "mlp.c_fc.weight": torch.zeros(192, 47)}),
        r"h\.1\.mlp\.c_fc\.weight has shape \[192, 47\] where nanogpt has \[192, 48\]",
    ),
    "misshapen embedding": (
        altered({"transformer.wte.weight": torch.zeros(61, 47)}),
        r"transformer\.wte\.weight has shape \[61, 47\] where nanogpt has \[61, 48\]",
    ),
    "NaN": (altered({BLOCK + "ln_1.weight": NAN}), r"h\.1\.ln_1\.weight holds NaN"),
    "infinite": (altered({BLOCK + "ln_1.bias": NAN / 0}), r"h\.1\.ln_1\.bias holds NaN or inf"),
    "whole numbers": (
        altered({BLOCK + "ln_1.weight": torch.ones(48, dtype=torch.int64)}),
        r"h\.1\.ln_1\.weight holds torch\.int64",
    ),
    "heads that do not divide": (altered({}, n_heads=5), r"n_heads=5 does not divide d_model=48"),
    "heads unknown": (altered({}, n_heads=None), "say it with --n-heads"),
    "heads against the configuration": (
        altered({}, n_heads=4, config=NANO_ARGS),
        r"n_heads=4, and n_head of the configuration given says 3",
    ),
    "layers against the configuration": (
        altered({}, config=NANO_ARGS | {"n_layer": 4}),
        r"the tensors \(transformer\.h\.2\.ln_1\.weight\) say n_layers=3, and n_layer .* says 4",
    ),
    "width against the configuration": (
        altered({}, config=NANO_ARGS | {"n_embd": 64}),
        r"the tensors \(transformer\.wte\.weight\) say d_model=48",
    ),
    "biases against the configuration": (
        (ref.hf_shaped(bias=False).state, {"config": NANO_ARGS}),
        "say bias=False, and bias of the configuration given says True",
    ),
    "two dialects": (
        altered({"blocks.0.sa.proj.weight": torch.zeros(48, 48)}),
        r"blocks\.0\.sa\.proj\.weight, which is of lecture: two dialects are mixed",
    ),
    "one tensor twice": (
        altered({"_orig_mod.transformer.wte.weight": torch.zeros(61, 48)}),
        "one tensor with different prefixes",
    ),
    "heads lost": (
        (
            {n: t for n, t in ref.course().state.items() if ".heads.1." not in n},
            {},
        ),
        r"blocks\.0\.attn\.heads\.1\.query\.weight is missing",
    ),
    "heads against the tensors": (
        (ref.course().state, {"n_heads": 4}),
        r"the tensors \(blocks\.2\.attn\.heads\.2\.value\.weight\) say n_heads=3, and --n-heads",
    ),
    "an unknown activation": (
        (hf_state(), {"config": HF_CONFIG | {"activation_function": "silu"}}),
        "says activation_function='silu'",
    ),
    "cross-attention": (
        (hf_state(), {"config": HF_CONFIG | {"add_cross_attention": True}}),
        "says add_cross_attention=True",
    ),
    "another model": (
        (hf_state(), {"config": HF_CONFIG | {"model_type": "gptj"}}),
        "says model_type='gptj'",
    ),
    "tied by word, untied by weight": (
        (
            hf_state() | {"lm_head.weight": torch.ones(61, 48)},
            {"config": HF_CONFIG | {"tie_word_embeddings": True}},
        ),
        r"\(lm_head\.weight\) say tied_embeddings=False",
    ),
    "no dialect of that name": (altered({}, dialect="gpt5"), "there is no dialect 'gpt5': use one"),
    "the wrong dialect": (altered({}, dialect="lecture"), "no known GPT has tensors named"),
    "an attention scale of nothing": (altered({}, attn_scale="head"), "attn_scale='head'"),
    "nothing in it": (({}, {}), "holds no state dict but nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_converted_is_refused_by_name(source: Any, said: str) -> None:
    state, settings = source
    with pytest.raises(ModelError, match=said) as refusal:
        convert(state, **settings)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "rotary"),
        ("model.layers.0.mlp.gate_proj.weight", "gated MLP"),
        ("model.layers.0.input_layernorm.weight", "RMSNorm"),
        ("encoder.layer.0.attention.self.query.weight", "an encoder"),
        ("transformer.h.0.crossattention.c_attn.weight", "attention across"),
        ("blocks.0.mlp.experts.3.w1.weight", "mixture of experts"),
        ("base_model.h.0.attn.c_attn.lora_A.default.weight", "LoRA adapters; merge"),
        ("transformer.h.0.attn.attention.k_proj.weight", "key and value|GPT-Neo"),
        ("blocks.0.attn._W_K", "shared key and value"),
        ("whatever.else", "no known GPT has tensors named"),
    ],
)
def test_an_architecture_outside_the_family_is_refused_with_the_reason(
    name: str, reason: str
) -> None:
    for state in ({name: torch.zeros(2)}, ref.hf_shaped().state | {name: torch.zeros(2)}):
        if "whatever" not in name or len(state) == 1:
            with pytest.raises(ModelError, match=reason):
                convert(state, n_heads=3)


def test_tokenizers_of_every_kind_are_found(tmp_path: Path) -> None:
    path = write_nanogpt(tmp_path)
    stoi = {c: i for i, c in enumerate(LETTERS)}
    for name, value in (
        ("list.json", LETTERS),
        ("stoi.json", stoi),
        ("both.json", {"stoi": stoi, "itos": {str(i): c for c, i in stoi.items()}}),
    ):
        if name == "both.json":
            value = {"stoi": stoi}
        (tmp_path / name).write_text(json.dumps(value))
        found = convert(path, tokenizer=tmp_path / name).tokenizer
        assert vocabulary(found) == LETTERS
    bpe = tmp_path / "bpe"
    bpe.mkdir()
    (bpe / "vocab.json").write_text(
        json.dumps({c: i for i, c in enumerate("abcdefgh")} | {"ab": 8})
    )
    (bpe / "merges.txt").write_text("#version: 0.2\na b\n")
    conversion = convert(path, tokenizer=bpe)
    assert conversion.tokenizer.encode("abc") == [8, 2]
    assert "ids 9 to 60 are padding" in conversion.notes[-1]


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = write_nanogpt(tmp_path)
    long = write_meta(tmp_path / "long.pkl", [*LETTERS, "é"])
    with pytest.raises(ModelError, match="has 62 tokens and the embedding 61 rows"):
        convert(path, tokenizer=long)
    (tmp_path / "gap.json").write_text(json.dumps({"a": 0, "b": 2}))
    with pytest.raises(ModelError, match=r"ids in gap\.json are not 0, 1, 2"):
        convert(path, tokenizer=tmp_path / "gap.json")
    with pytest.raises(ModelError, match="there is no tokenizer at"):
        convert(path, tokenizer=tmp_path / "none.json")


def test_a_padded_vocabulary_is_never_shown_as_a_prediction(tmp_path: Path) -> None:
    state = float32(ref.hf_shaped(vocab=128).state)
    torch.save(state, tmp_path / "padded.pt")
    write_meta(tmp_path / "meta.pkl")
    conversion = convert(tmp_path / "padded.pt", n_heads=3)
    assert "ids 61 to 127 are padding" in conversion.notes[-1]
    from model import generate_text

    text = generate_text(conversion.gpt, conversion.tokenizer, "AB", 60, temperature=5.0, seed=1)[0]
    assert len(text) == 62
    assert set(text) <= set(LETTERS)


def test_folders_that_leave_it_open_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no checkpoint at"):
        convert(tmp_path / "none.pt")
    with pytest.raises(ModelError, match="holds no weights"):
        convert(tmp_path)
    for name in ("a.pt", "b.pt"):
        torch.save(hf_state(), tmp_path / name)
    with pytest.raises(ModelError, match=r"several weights files \(a\.pt, b\.pt\): name one"):
        convert(tmp_path)


def test_shards_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "hf", 3)
    shard = folder / "model-00002-of-00003.safetensors"
    kept = shard.read_bytes()
    shard.unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.safetensors with .* is missing"):
        convert(folder)
    save_file({"transformer.extra": torch.zeros(2)}, shard)
    with pytest.raises(ModelError, match="is in only one of"):
        convert(folder)
    shard.write_bytes(kept)
    convert(folder)


def test_the_default_scale_follows_the_heads() -> None:
    conversion = convert(ref.hf_shaped().state, n_heads=6)
    assert conversion.gpt.config.attn_scale == math.sqrt(8)
    scale = next(s for s in conversion.settings if s.field == "attn_scale")
    assert scale.value == math.sqrt(8)
    assert scale.assumed


def test_a_vocabulary_of_ours_beside_foreign_weights_is_used(tmp_path: Path) -> None:
    from model.tokenizer import tokenizer_json

    folder = write_hf(tmp_path / "hf")
    (folder / "tokenizer.json").write_text(tokenizer_json(character_tokenizer("".join(LETTERS))))
    assert vocabulary(convert(folder).tokenizer) == sorted(LETTERS)


def test_a_config_is_what_it_was(tmp_path: Path) -> None:
    assert convert(write_hf(tmp_path / "hf")).gpt.config == GPTConfig(
        d_vocab=61, n_ctx=17, n_layers=3, n_heads=3, d_model=48, act_fn="gelu_new",
        tied_embeddings=True, dropout=0.1,
    )  # fmt: skip
