from __future__ import annotations

import pytest
import torch
from random_gpt import VARIANTS, random_gpt, random_ids

from model import ModelError, character_tokenizer, generate, generate_text
from model.generation import sample

LETTERS = "abcdefghijk"


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_the_cache_changes_nothing_even_past_the_context(
    settings: dict, temperature: float
) -> None:
    gpt, ids = random_gpt(**settings), random_ids(pos=2)
    kept = {"temperature": temperature, "seed": 7}
    assert torch.equal(
        generate(gpt, ids, 15, **kept), generate(gpt, ids, 15, use_cache=False, **kept)
    )


def test_greedy_takes_the_most_likely_token_of_the_cropped_window() -> None:
    gpt, ids = random_gpt(), random_ids(pos=2)
    written = generate(gpt, ids, 12, temperature=0.0)
    assert torch.equal(written[:, :2], ids)
    for end in range(2, 14):
        with torch.no_grad():
            expected = gpt(written[:, max(0, end - 7) : end])[:, -1].argmax(-1)
        assert torch.equal(written[:, end], expected)


def test_a_seed_repeats_the_sample_and_leaves_the_global_state_alone() -> None:
    gpt, ids = random_gpt(), random_ids(pos=2)
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    first = generate(gpt, ids, 20, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, generate(gpt, ids, 20, seed=3))
    assert not torch.equal(first, generate(gpt, ids, 20, seed=4))


def test_dropout_is_off_while_sampling_and_the_mode_is_put_back() -> None:
    gpt, ids = random_gpt(dropout=0.5).train(), random_ids(pos=2)
    first = generate(gpt, ids, 9, temperature=0.0)
    assert gpt.training
    assert torch.equal(first, generate(gpt, ids, 9, temperature=0.0))


def test_samples_follow_the_tempered_truncated_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0])
    rows = logits.expand(40_000, -1)
    cases = {
        "all": ({}, [0, 1, 2, 3, 4]),
        "hot": ({"temperature": 2.0}, [0, 1, 2, 3, 4]),
        "top-k": ({"top_k": 2}, [0, 1]),
        # 0.55 + 0.20 < 0.8 <= 0.55 + 0.20 + 0.12
        "top-p": ({"top_p": 0.8}, [0, 1, 2]),
        "both": ({"top_k": 3, "top_p": 0.5}, [0]),
    }
    for settings, kept in cases.values():
        expected = torch.full((5,), -torch.inf)
        expected[kept] = logits[kept] / settings.get("temperature", 1.0)
        drawn = sample(rows, generator=torch.Generator().manual_seed(1), **settings)
        frequency = drawn.bincount(minlength=5) / len(rows)
        torch.testing.assert_close(frequency, expected.softmax(0), rtol=0, atol=0.012)


def test_ties_at_the_edge_of_top_k_keep_exactly_k() -> None:
    drawn = sample(torch.zeros(2000, 6), top_k=2, generator=torch.Generator().manual_seed(1))
    assert set(drawn.tolist()) == {0, 1}


def test_padding_beyond_the_vocabulary_is_never_sampled() -> None:
    tokenizer = character_tokenizer(LETTERS[:4])
    text = generate_text(random_gpt(), tokenizer, "ab", 200, temperature=5.0, seed=1)[0]
    assert text.startswith("ab")
    assert len(text) == 202
    assert set(text) <= set("abcd")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": -0.1}, "temperature -0.1"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_k": 0}, "top-k 0"),
        ({"top_p": 0.0}, "top-p 0.0"),
        ({"top_p": 1.5}, "top-p 1.5"),
        ({"n_new": -1}, "-1 new tokens"),
    ],
)
def test_settings_outside_their_range_are_refused(settings: dict, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        generate(random_gpt(), random_ids(), **({"n_new": 1} | settings))


def test_a_prompt_that_cannot_be_read_is_refused() -> None:
    gpt, tokenizer = random_gpt(), character_tokenizer(LETTERS)
    with pytest.raises(ModelError, match="the prompt is empty"):
        generate_text(gpt, tokenizer, "", 1)
    with pytest.raises(ModelError, match=r"has 8 tokens .* n_ctx=7: shorten it by 1"):
        generate_text(gpt, tokenizer, "abcdefgh", 1)
    with pytest.raises(ModelError, match=r"'Z' \(U\+005A\) at position 2"):
        generate_text(gpt, tokenizer, "abZ", 1)
    with pytest.raises(ModelError, match="the prompt is empty"):
        generate(gpt, torch.zeros(1, 0, dtype=torch.long), 1)
