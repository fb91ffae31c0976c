"""A comparison lays like on like, entry by entry, and refuses the rest."""

from __future__ import annotations

import numpy as np
import pytest
from random_models import random_hooked

import interp
from interp import InputError, compare


@pytest.fixture(scope="module")
def model():
    return random_hooked(3)


def test_both_sides_and_their_difference_are_kept(model):
    one, two = (interp.token_losses(model, text) for text in ("abcabc", "abdabc"))
    got = compare(one, two, "loss")
    assert got["difference"].dims == ("pos",)
    np.testing.assert_array_equal(got["first"], one["loss"][0])
    np.testing.assert_array_equal(got["second"], two["loss"][0])
    difference = two["loss"].to_numpy()[0] - one["loss"].to_numpy()[0]
    np.testing.assert_array_equal(got["difference"], difference)
    assert got["tokens"].to_numpy().tolist() == list("abcabc")
    assert got["other_tokens"].to_numpy().tolist() == list("abdabc")
    assert (got.attrs["prompt_first"], got.attrs["prompt_second"]) == ("abcabc", "abdabc")


def test_a_cut_is_by_label(model):
    one, two = (interp.attention_patterns(model, text) for text in ("abc", "abd"))
    got = compare(one, two, layer=1, head=2)
    np.testing.assert_array_equal(got["second"], two[0, 1, 2])
    parts = [interp.direct_logit_attribution(model, text, "a", pos=1) for text in ("abc", "bbc")]
    cut = compare(*parts, "part", pos=1)
    np.testing.assert_array_equal(cut["first"], parts[0]["part"][:, 0, 0])
    assert cut["component"].to_numpy().tolist() == parts[0]["component"].to_numpy().tolist()


def test_swapping_turns_the_sign(model):
    other = random_hooked(4)
    sides = [interp.sphere_path(m, "abca") for m in (model, other)]
    there, back = (compare(*pair, "hop_angle") for pair in (sides, sides[::-1]))
    np.testing.assert_array_equal(there["difference"], -back["difference"])
    assert float(abs(there["difference"]).max()) > 0


def test_an_answer_compared_with_itself_does_not_differ(model):
    one = interp.next_token(model, "abc")
    assert float(abs(compare(one, one, "probability")["difference"]).max()) == 0
    assert "other_tokens" not in compare(one, one, "probability").coords


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda m: (interp.token_losses(m, "ab"), interp.token_losses(m, "abc"), "loss"), "equal"),
        (lambda m: (interp.token_losses(m, "ab"), interp.next_token(m, "ab"), "loss"), "'loss'"),
        (lambda m: (interp.token_losses(m, "ab"), interp.token_losses(m, "ba")), "None"),
        (lambda m: (interp.token_losses(m, ["ab", "ba"]),) * 2 + ("loss",), "2 prompts"),
        (lambda m: (interp.attention_patterns(m, "ab"),
                    interp.next_token(m, "ab")["probability"]), "over"),
        (lambda m: (interp.next_token(m, "ab"),
                    interp.next_token(random_hooked(d_vocab=13), "ab"), "probability"), "shape"),
        (lambda m: (interp.sphere_path(m, "ab"),
                    interp.sphere_path(random_hooked(n_layers=3), "ab"), "hop_angle"), "shape"),
        (lambda m: (interp.logit_lens(m, "ab"),
                    interp.logit_lens(random_hooked(n_layers=4, attn_only=True), "ab"),
                    "probability"), "state"),
    ],
)  # fmt: skip
def test_unlike_things_are_refused(model, make, word):
    with pytest.raises(InputError, match=word):
        compare(*make(model))


def test_a_label_that_is_not_there_is_refused(model):
    one = interp.attention_patterns(model, "abc")
    with pytest.raises(InputError, match="head 3"):
        compare(one, one, layer=0, head=3)
