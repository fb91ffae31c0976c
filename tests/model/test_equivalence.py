from __future__ import annotations

import copy

import pytest
import torch
from random_gpt import VARIANTS, random_gpt, random_ids
from transformer_lens import HookedTransformer

from model import GPT, ModelError, Proof, character_tokenizer, proof_ids, prove, to_hooked
from model.equivalence import gpt_sites, hooked_sites, max_difference

IDS = {"random ids": random_ids()}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_is_proven_at_every_site(settings: dict) -> None:
    gpt = random_gpt(dtype=torch.float32, **settings)
    before = copy.deepcopy(gpt.state_dict())
    proof = prove(gpt, IDS)
    assert proof.holds, proof.failures
    per_block = 11 if gpt.config.attn_only else 17
    assert len(proof.differences) == 2 + 2 * per_block + 6
    assert (proof.differences["float64"] < 1e-12).all()
    for name, tensor in gpt.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.dtype == torch.float32
    assert not any(module._forward_hooks for module in gpt.modules())


def test_a_proof_needs_no_second_copy_of_the_weights(monkeypatch) -> None:
    gpt = random_gpt(dtype=torch.float32)
    seen: list[torch.dtype] = []
    run = torch.nn.Module.__call__

    def watched(module: torch.nn.Module, *args: object, **kwargs: object):
        if isinstance(module, GPT | HookedTransformer):
            seen.extend(p.dtype for p in module.parameters())
            shared = {p.untyped_storage().data_ptr() for p in gpt.parameters()}
            weights = [
                p for name, p in module.named_parameters() if p.ndim > 1 and "b_" not in name
            ]
            assert {p.untyped_storage().data_ptr() for p in weights} <= shared
        return run(module, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "__call__", watched)
    assert prove(gpt, IDS).holds
    assert set(seen) == {torch.float32}


def test_the_same_weights_give_the_same_function_in_float64() -> None:
    gpt = random_gpt()
    model = to_hooked(gpt)
    assert model.cfg.dtype == torch.float64
    torch.testing.assert_close(model(random_ids()), gpt(random_ids()), rtol=0, atol=1e-12)


def one_weight(model: HookedTransformer) -> None:
    model.blocks[1].attn.W_O.data[2, 3, 4] += 1e-3


def layer_norm_bias(model: HookedTransformer) -> None:
    model.blocks[1].ln2.b.data[0] += 1e-3


def activation(model: HookedTransformer) -> None:
    model.blocks[0].mlp.act_fn = torch.nn.functional.relu


def tanh_gelu(model: HookedTransformer) -> None:
    model.blocks[0].mlp.act_fn = lambda x: torch.nn.functional.gelu(x, approximate="tanh")


def epsilon(model: HookedTransformer) -> None:
    model.ln_final.eps = 1e-6


def attention_scale(model: HookedTransformer) -> None:
    model.blocks[1].attn.attn_scale *= 1.001


@pytest.mark.parametrize(
    ("alter", "first"),
    [
        (one_weight, "blocks.1.hook_attn_out"),
        (layer_norm_bias, "blocks.1.mlp.hook_pre"),
        (activation, "blocks.0.mlp.hook_post"),
        (tanh_gelu, "blocks.0.mlp.hook_post"),
        (epsilon, "ln_final.hook_scale"),
        (attention_scale, "blocks.1.attn.hook_attn_scores"),
    ],
)
def test_what_was_altered_is_found_where_it_was_altered(alter, first: str) -> None:
    gpt = random_gpt()
    model = to_hooked(gpt)
    assert prove(gpt, IDS, hooked=model).holds
    alter(model)
    proof = prove(gpt, IDS, hooked=model)
    assert not proof.holds
    assert proof.failures[0] == first
    assert proof.failures[-1] == "loss"


def test_the_gpts_own_change_is_found_too() -> None:
    gpt = random_gpt()
    model = to_hooked(gpt)
    gpt.layers[0].mlp.act_fn = torch.nn.functional.silu  # type: ignore[union-attr]
    assert prove(gpt, IDS, hooked=model).failures[0] == "blocks.0.mlp.hook_post"


def test_the_hooked_transformer_owns_its_weights() -> None:
    gpt = random_gpt()
    model = to_hooked(gpt)
    ours = {p.untyped_storage().data_ptr() for p in gpt.parameters()}
    theirs = [p.untyped_storage().data_ptr() for p in model.parameters()]
    assert not ours & set(theirs)
    assert len(set(theirs)) == len(theirs)
    assert not any(p.requires_grad for p in model.parameters())


def test_a_fused_projection_is_split_by_head() -> None:
    gpt = random_gpt()
    model = to_hooked(gpt)
    attn = gpt.layers[1].attn
    x = torch.randn(15, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fused = attn.qkv_proj(x)
    for part, letter in enumerate("QKV"):
        for head in range(3):
            W = getattr(model.blocks[1].attn, f"W_{letter}")[head]
            b = getattr(model.blocks[1].attn, f"b_{letter}")[head]
            start = 15 * part + 5 * head
            torch.testing.assert_close(x @ W + b, fused[start : start + 5], rtol=0, atol=1e-13)


def test_sites_are_the_same_on_both_sides() -> None:
    gpt = random_gpt()
    assert (
        list(gpt_sites(gpt, random_ids())).sort()
        == list(hooked_sites(to_hooked(gpt), random_ids())).sort()
    )
    assert gpt_sites(gpt, random_ids()).keys() == hooked_sites(to_hooked(gpt), random_ids()).keys()
    assert "loss" not in gpt_sites(gpt, random_ids(pos=1))


def test_a_difference_is_never_hidden() -> None:
    a = torch.tensor([1.0, -torch.inf, 2.0])
    assert max_difference(a, a.clone()) == 0
    assert max_difference(a, torch.tensor([1.0, -torch.inf, 2.5])) == 0.5
    assert max_difference(a, torch.tensor([1.0, 0.0, 2.0])) == torch.inf
    assert max_difference(a, torch.tensor([1.0, -torch.inf, torch.nan])) == torch.inf
    assert max_difference(a, torch.zeros(2)) == torch.inf


def test_models_of_different_make_are_refused() -> None:
    with pytest.raises(ModelError, match=r"do not have the same sites: blocks\.0\.hook_mlp_out"):
        prove(random_gpt(), IDS, hooked=to_hooked(random_gpt(d_mlp=0)))


def test_it_is_proven_on_text_or_on_what_the_model_writes() -> None:
    gpt, tokenizer = random_gpt(), character_tokenizer("abcdefghijk")
    own = proof_ids(gpt)
    assert {k: tuple(v.shape) for k, v in own.items()} == {
        "text sampled from the model": (3, 7),
        "random ids": (3, 7),
    }
    given = proof_ids(gpt, tokenizer, "abcdefghijkabcdefghijk")["the text given"]
    assert given.tolist()[0] == list(range(7))
    assert given.shape == (3, 7)
    assert proof_ids(gpt, tokenizer, "ab")["the text given"].shape == (1, 2)
    with pytest.raises(ModelError, match="no tokenizer"):
        proof_ids(gpt, None, "ab")
    with pytest.raises(ModelError, match="the text is empty"):
        proof_ids(gpt, tokenizer, "")
    with pytest.raises(ModelError, match="'z'"):
        proof_ids(gpt, tokenizer, "az")


def test_a_proof_says_what_was_assumed() -> None:
    proof = prove(random_gpt(act_fn="gelu_new", bias=False, tied_embeddings=True), IDS)
    assert isinstance(proof, Proof)
    assert proof.assumptions["activation"] == "gelu_new"
    assert proof.assumptions["embedding and unembedding"] == "tied"
    assert "attention output, MLP, LayerNorm: no, zeros" in proof.assumptions["biases"]
    assert "blocks.*.hook_resid_pre" in proof.by_kind().index


def test_hooks_of_the_caller_are_not_disturbed() -> None:
    gpt: GPT = random_gpt()
    seen: list[int] = []
    gpt.layers[0].register_forward_hook(lambda *_: seen.append(1))
    prove(gpt, IDS)
    assert not seen
    gpt(random_ids())
    assert seen == [1]
