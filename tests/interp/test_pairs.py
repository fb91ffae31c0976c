"""A pair's places are found by reading the prompt, and its weight is a part of the score."""

from __future__ import annotations

import numpy as np
import pytest
from random_models import random_hooked

from interp import InputError, attention_patterns, circuit_table, pair_places, score_split

PROMPT = "abcabdc"


@pytest.fixture(params=[{}, {"attn_only": True}, {"normalization_type": None}], scope="module")
def model(request):
    return random_hooked(31, **request.param)


def by_reading(circuit, token, other):
    last = len(PROMPT)
    if circuit == "QK":
        return {(q, k) for q in range(last) for k in range(q + 1)
                if (PROMPT[q], PROMPT[k]) == (token, other)}  # fmt: skip
    return {(q, k) for q in range(last - 1) for k in range(q + 1)
            if (PROMPT[k], PROMPT[q + 1]) == (token, other)}  # fmt: skip


@pytest.mark.parametrize("circuit", ["QK", "OV"])
@pytest.mark.parametrize("pair", ["ba", "ab", "cc", "dk", "bc"])
def test_places_are_those_a_reader_finds(model, circuit, pair):
    got = pair_places(model, PROMPT, 1, 2, circuit, *pair)
    places = list(zip(got["query_pos"].to_numpy(), got["key_pos"].to_numpy(), strict=True))
    assert set(places) == by_reading(circuit, *pair)
    assert len(places) == len(set(places))
    pattern = attention_patterns(model, PROMPT).to_numpy()[0, 1, 2]
    np.testing.assert_allclose(got["attention"], [pattern[place] for place in places], atol=1e-12)
    assert (np.diff(got["attention"]) <= 0).all()
    table = circuit_table(model, 1, 2, circuit)
    ids = [ord(letter) - ord("a") for letter in pair]
    assert float(got["cell"]) == pytest.approx(
        float(table.sel(token=ids[0], other_token=ids[1])), abs=1e-10
    )


def test_a_query_key_weight_is_the_embeddings_part_of_the_score(model):
    got = pair_places(model, PROMPT, 1, 0, "QK", "c", "a")
    split = score_split(model, PROMPT, 1, 0)
    part = split.sel(query_component="embed", key_component="embed").to_numpy()[0]
    want = [part[q, k] for q, k in zip(got["query_pos"], got["key_pos"], strict=True)]
    assert len(want) == 3
    np.testing.assert_allclose(got["weight"], want, atol=1e-10)


def test_an_output_weight_is_what_the_keys_embedding_adds_to_the_logit():
    """With hooks: the embedding is taken out of one head's value at the key, all scales held."""
    model, (layer, head) = random_hooked(31), (1, 2)
    got = pair_places(model, PROMPT, layer, head, "OV", "a", "b")
    ids = model.to_tokens(PROMPT)
    logits, cache = model.run_with_cache(ids)
    block = model.blocks[layer]
    embed = cache["hook_embed"]
    read = (embed - embed.mean(-1, keepdim=True)) / cache[f"blocks.{layer}.ln1.hook_scale"]
    lost = read * block.ln1.w @ block.attn.W_V[head]
    for place in range(got.sizes["place"]):
        one = got.isel(place=place)
        query, key = int(one["query_pos"]), int(one["key_pos"])

        def without(v, hook, key=key):
            v = v.clone()
            v[:, key, head] -= lost[:, key]
            return v

        def held(_, hook):
            return cache[hook.name]

        hooks = [(f"blocks.{layer}.attn.hook_v", without), ("ln_final.hook_scale", held)]
        # Later sublayers of the last layer would answer too: they keep what they wrote.
        hooks.append((f"blocks.{layer}.hook_mlp_out", held))
        moved = (logits - model.run_with_hooks(ids, fwd_hooks=hooks))[0, query]
        assert float(one["weight"]) == pytest.approx(float(moved[1]), abs=1e-10)


def test_bad_requests_are_refused(model):
    for wrong in (
        lambda: pair_places(model, PROMPT, 2, 0, "QK", "a", "b"),
        lambda: pair_places(model, PROMPT, 0, 3, "QK", "a", "b"),
        lambda: pair_places(model, PROMPT, 0, 0, "OV", "ab", "b"),
        lambda: pair_places(model, "", 0, 0, "OV", "a", "b"),
    ):
        with pytest.raises(InputError):
            wrong()
