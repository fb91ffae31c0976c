"""Inputs are checked, never guessed: each refusal is one sentence that names what came."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_models import random_hooked
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from interp.errors import InputError
from interp.inputs import contrast, to_id, to_ids, token_strings, vocabulary
from interp.sites import SITE_KINDS, Site, kinds_of, sites_of


@pytest.fixture(scope="module")
def model():
    return random_hooked(80)


@pytest.mark.parametrize(
    "input",
    [
        "cab",
        ["cab"],
        [2, 0, 1],
        [[2, 0, 1]],
        (2, 0, 1),
        torch.tensor([2, 0, 1]),
        torch.tensor([[2, 0, 1]], dtype=torch.int32),
        [np.int64(2), np.int64(0), np.int64(1)],
    ],
)
def test_all_ways_to_say_one_prompt(model, input):
    ids = to_ids(model, input)
    assert torch.equal(ids, torch.tensor([[2, 0, 1]]))
    assert ids.dtype == torch.long


def test_nothing_is_prepended_cut_or_padded(model):
    assert to_ids(model, ["abcdefg", "gfedcba"]).shape == (2, 7)
    assert token_strings(model, to_ids(model, "gab")[0]) == ["g", "a", "b"]
    assert vocabulary(model) == list("abcdefghijk")
    assert to_id(model, "c") == to_id(model, 2) == 2


def test_a_token_that_a_tokenizer_gets_later_is_named():
    model = random_hooked(80, d_vocab=60)
    assert token_strings(model, torch.tensor([1, 55])) == ["b", ""]
    at = len(model.tokenizer)
    model.tokenizer.add_tokens(["!!"])
    assert token_strings(model, torch.tensor([1, at])) == ["b", "!!"]


@pytest.mark.parametrize(
    ("input", "sentence"),
    [
        ("", "prompt is empty"),
        ([], "prompt is empty"),
        (["ab", ""], "Prompt 1 is empty"),
        ("abz", "Character 'z' at position 2 of the prompt is not in the model's vocabulary"),
        ("a b", "Character ' ' at position 1"),
        ("abcdefga", "prompt has 8 tokens, but the model reads at most 7"),
        ([1, -1], "Token id -1 at position 1 of prompt 0 is outside the vocabulary"),
        ([[1, 2], [3, 11]], "Token id 11 at position 1 of prompt 1 .* go from 0 to 10"),
        (["ab", "abc"], "The prompts have 2, 3 tokens"),
        ([[1], [1, 2]], "The prompts have 1, 2 tokens"),
        (torch.tensor([0.5]), "came as torch.float32"),
        (torch.tensor([True]), "came as torch.bool"),
        (torch.zeros(1, 1, 1, dtype=torch.long), "came with 3 axes"),
    ],
)
def test_wrong_prompts(model, input, sentence):
    with pytest.raises(InputError, match=sentence) as error:
        to_ids(model, input)
    assert "\n" not in str(error.value)


def test_a_tokenizer_that_drops_characters_is_caught():
    model = random_hooked(81)
    byte_pairs = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate("abcdefghijk")}, merges=[]))
    model.tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_pairs)
    with pytest.raises(InputError, match="'z' at position 1"):
        to_ids(model, "azb")


def test_a_model_without_tokenizer_takes_ids_only():
    model = random_hooked(82)
    model.tokenizer = None
    assert token_strings(model, to_ids(model, [3, 1])[0]) == ["3", "1"]
    with pytest.raises(InputError, match="has no tokenizer"):
        to_ids(model, "ab")


def test_a_target_is_one_token(model):
    with pytest.raises(InputError, match="'ab' is 2 tokens \\('a', 'b'\\)"):
        to_id(model, "ab")


@pytest.mark.parametrize(
    ("source", "base", "sentence"),
    [
        ("abc", "abcd", "Source holds 1 prompts of 3 tokens and base 1 of 4"),
        (["abc", "abd"], "abd", "Source holds 2 prompts of 3 tokens and base 1 of 3"),
        (["abc", "abd"], ["acc", "abd"], "Source and base of pair 1 are the same prompt"),
    ],
)
def test_wrong_pairs(model, source, base, sentence):
    with pytest.raises(InputError, match=sentence):
        contrast(model, source, base)


def test_a_contrast_turns_round(model):
    pair = contrast(model, ["abc", "abc"], ["abd", "cbc"])
    assert pair.first_difference.tolist() == [2, 0]
    assert torch.equal(pair.reversed().source, pair.base)
    assert torch.equal(pair.reversed().base, pair.source)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("z_out",), "Site kind 'z_out' does not exist: choose one of embed"),
        (("z",), "'z' came without a layer"),
        (("embed", 0), "'embed' came with layer=0, but it can only be indexed by pos"),
        (("resid_pre", 0, 1), "'resid_pre' came with head=1, but it can only be indexed by layer"),
        (("z", -1), "'z' came with layer=-1, but indices are whole numbers from 0"),
        (("z", True), "'z' came with layer=True"),
        (("mlp_pre", 0, None, 1, 2, 3), "'mlp_pre' came with key_pos=3"),
    ],
)
def test_wrong_sites(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        Site(*arguments)


def test_sites_are_the_hooks_that_fire(model):
    for settings in ({}, {"attn_only": True}, {"normalization_type": None}):
        model = random_hooked(83, **settings)
        _, cache = model.run_with_cache(to_ids(model, "abc"))
        names = {site.hook_name for site in sites_of(model.cfg)}
        assert names == {name for name in cache if not name.startswith("unembed")}
        assert {site.kind for site in sites_of(model.cfg)} == set(kinds_of(model.cfg))


def test_sites_read_well_and_are_equal_by_value():
    assert repr(Site("z", 1, head=2)) == "Site('z', layer=1, head=2)"
    assert Site("z", 1) == Site("z", layer=1)
    assert hash(Site("z", 1)) == hash(Site("z", layer=1))
    assert Site("z", 1, head=0) != Site("z", 1)
    assert Site("z", 1, head=0).whole == Site("z", 1)
    assert set(SITE_KINDS) >= {"embed", "pattern", "mlp_post", "ln_final_scale"}
