"""Head scores: planted heads score what they must, indifferent heads score chance."""

from __future__ import annotations

import pytest
import torch
from agreement import CLOSE, values
from random_models import letters_tokenizer, random_hooked, random_ids
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.head_detector import detect_head
from zoo import induction_model

from interp import InputError, attention_patterns, head_scores, induction_scores
from interp.attention import (
    SCORE_UNITS,
    pattern_scores,
    repeated_blocks,
    score_cells,
    shuffled_copies,
    uniform_pattern,
)


def planted(block: int = 7, d_vocab: int = 11) -> HookedTransformer:
    """Two layers by hand: L0H0 looks at the previous token, L1H1 completes repeated ones.

    The stream has three one-hot blocks: token | position | previous token. Without LayerNorm.
    """
    n_ctx = 2 * block
    d_model, d_head, sharp = 2 * d_vocab + n_ctx, max(n_ctx, d_vocab), 400.0
    cfg = HookedTransformerConfig(
        n_layers=2,
        n_heads=2,
        d_head=d_head,
        d_model=d_model,
        d_vocab=d_vocab,
        n_ctx=n_ctx,
        attn_only=True,
        normalization_type=None,
        dtype=torch.float64,
        device="cpu",
        default_prepend_bos=False,
        init_weights=False,
    )
    model = HookedTransformer(cfg, tokenizer=letters_tokenizer(d_vocab), move_to_device=False)
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter)
        parameter.requires_grad_(False)
    token = torch.arange(d_vocab)
    place = torch.arange(n_ctx)
    position, previous = d_vocab + place, d_vocab + n_ctx + token
    model.embed.W_E.data[token, token] = 1.0
    model.pos_embed.W_pos.data[place, position] = 1.0
    finds, completes = model.blocks[0].attn, model.blocks[1].attn
    finds.W_Q.data[0, position[1:], place[:-1]] = sharp
    finds.W_K.data[0, position, place] = 1.0
    finds.W_V.data[0, token, token] = 1.0
    finds.W_O.data[0, token, previous] = 1.0
    completes.W_Q.data[1, token, token] = sharp
    completes.W_K.data[1, previous, token] = 1.0
    # Position 0 can only copy its own token: a key is less itself than what it follows.
    completes.W_K.data[1, token, token] = -0.5
    return model.eval()


def test_patterns_are_the_models():
    model, ids = random_hooked(1), random_ids(2, batch=3)
    _, cache = model.run_with_cache(ids)
    pattern = attention_patterns(model, ids)
    assert pattern.dims == ("batch", "layer", "head", "query_pos", "key_pos")
    for layer in range(2):
        want = cache["pattern", layer]
        torch.testing.assert_close(torch.tensor(pattern[:, layer].to_numpy()), want, **CLOSE)
    assert (abs(pattern.sum("key_pos") - 1) < 1e-12).all()


def test_scores_are_their_definitions_word_by_word():
    model, ids = random_hooked(1), random_ids(2, batch=3)
    scores, pattern = head_scores(model, ids)["value"], attention_patterns(model, ids).to_numpy()
    n = ids.shape[1]
    for row in range(3):
        text = ids[row].tolist()
        for layer in range(2):
            for head in range(3):
                A = pattern[row, layer, head]
                cells = {
                    "previous_token": {q: [q - 1] for q in range(1, n)},
                    "first_token": {q: [0] for q in range(1, n)},
                    "duplicate_token": {
                        q: [k for k in range(q) if text[k] == text[q]] for q in range(n)
                    },
                    "induction": {
                        q: [k + 1 for k in range(q - 1) if text[k] == text[q]] for q in range(n)
                    },
                }
                got = scores.sel(batch=row, layer=layer, head=head)
                for score, by_query in cells.items():
                    shares = [sum(A[q, k] for k in ks) for q, ks in by_query.items() if ks]
                    want = sum(shares) / len(shares) if shares else float("nan")
                    assert float(got.sel(score=score)) == pytest.approx(
                        want, abs=1e-12, nan_ok=True
                    )
                distance = sum(A[q, k] * (q - k) for q in range(1, n) for k in range(q)) / (n - 1)
                assert float(got.sel(score="distance")) == pytest.approx(distance, abs=1e-12)
                entropy = torch.distributions.Categorical(torch.tensor(A[1:])).entropy().mean()
                assert float(got.sel(score="entropy")) == pytest.approx(float(entropy), abs=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_transformer_lens_detectors_agree(dtype, tolerance):
    """Their score is a sum over the same cells, as a share of all attention: one for each query."""
    model, text = random_hooked(1, dtype=dtype, n_ctx=14), "abcdabcdaebc"
    scores = head_scores(model, text)["value"].sel(batch=0)
    cells = score_cells(model.to_tokens(text))
    for score, theirs in {
        "previous_token": "previous_token_head",
        "duplicate_token": "duplicate_token_head",
        "induction": "induction_head",
    }.items():
        want = detect_head(model, text, theirs, error_measure="mul").double()
        asked = int(cells[score].any(-1).sum())
        got = values(scores.sel(score=score)).double() * asked / len(text)
        torch.testing.assert_close(got, want, rtol=0, atol=tolerance)


def test_a_head_that_attends_equally_scores_chance():
    model = random_hooked(1, n_ctx=64, d_vocab=65)
    for block in model.blocks:
        block.attn.W_Q.zero_()
        block.attn.b_Q.zero_()
    ids = random_ids(3, batch=2, n_pos=64, d_vocab=65)
    scores = head_scores(model, ids)
    for layer in range(2):
        for head in range(3):
            gap = abs(scores["value"].sel(layer=layer, head=head) - scores["chance"])
            assert float(gap.max()) < 1e-12
    # 0.0594 at 64 tokens: sum over q of 1/(q+1), over 63 queries.
    chance = scores["chance"].sel(score="previous_token", batch=0)
    assert float(chance) == pytest.approx(sum(1 / (q + 1) for q in range(1, 64)) / 63)
    blocks = induction_scores(model)
    assert float(abs(blocks["value"] - blocks["chance"]).max()) < 1e-12
    assert float(abs(blocks["control"] - blocks["chance"]).max()) < 1e-12
    assert float(blocks["stderr"].max()) < 1e-12


def test_planted_heads_score_one():
    model = planted()
    scores = induction_scores(model)
    value = scores["value"]
    assert float(value.sel(score="previous_token", layer=0, head=0)) == pytest.approx(1, abs=1e-12)
    assert float(value.sel(score="induction", layer=1, head=1)) == pytest.approx(1, abs=1e-12)
    assert float(scores["control"].sel(score="induction", layer=1, head=1)) < 0.1
    # The heads that nothing was planted in look everywhere alike.
    for layer, head in ((0, 1), (1, 0)):
        gap = abs(value.sel(layer=layer, head=head) - scores["chance"])
        assert float(gap.max()) < 1e-12
    on_text = head_scores(model, "abcdefgabcdefg")["value"].sel(batch=0)
    assert float(on_text.sel(score="previous_token", layer=0, head=0)) == pytest.approx(1)
    assert float(on_text.sel(score="induction", layer=1, head=1)) == pytest.approx(1, abs=1e-9)
    assert float(on_text.sel(score="entropy", layer=0, head=0)) == pytest.approx(0, abs=1e-9)
    assert float(on_text.sel(score="distance", layer=0, head=0)) == pytest.approx(1)


@pytest.mark.parametrize("distractors", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_zoos_heads_score_one_and_its_empty_heads_chance(layer_norm, distractors):
    model = induction_model(layer_norm=layer_norm, distractors=distractors)
    block = torch.tensor([5, 9, 2, 11, 7, 3])
    ids = torch.cat([torch.tensor([0]), block, block])[None]
    scores = head_scores(model, ids).sel(batch=0)
    known = {("previous_token", 0, 0), ("induction", 1, 1)}
    known |= {("previous_token", 1, 3)} if distractors else set()
    for score, layer, head in known:
        cell = scores["value"].sel(score=score, layer=layer, head=head)
        assert float(cell) == pytest.approx(1, abs=1e-12), (score, layer, head)
    empty = {(0, 1), (0, 3), (1, 0), (1, 2)}
    for layer, head in empty if distractors else empty | {(0, 2), (1, 3)}:
        gap = abs(scores["value"].sel(layer=layer, head=head) - scores["chance"])
        assert float(gap.max()) < 1e-12, (layer, head)


def test_one_hot_patterns_score_one_for_what_they_are():
    ids = torch.tensor([[3, 1, 4, 1, 5, 3, 2]])
    eye = torch.eye(7, dtype=torch.float64)
    previous = eye.roll(-1, 1)
    previous[0] = eye[0]
    first = eye[[0] * 7]
    pattern = torch.stack([previous, first, eye])[None]
    scores = dict(zip(SCORE_UNITS, pattern_scores(pattern, ids)[:, 0], strict=True))
    assert scores["previous_token"].tolist() == [1, 1 / 6, 0]
    assert scores["first_token"].tolist() == [1 / 6, 1, 0]
    assert scores["entropy"].tolist() == [0, 0, 0]
    assert scores["distance"].tolist() == [1, 3.5, 0]


def test_what_no_query_asks_is_nan_not_zero():
    model = random_hooked(1)
    scores = head_scores(model, "abcdefg")["value"].sel(batch=0)
    assert scores.sel(score=["duplicate_token", "induction"]).isnull().all()
    assert not scores.sel(score="previous_token").isnull().any()
    assert head_scores(model, "a")["value"].isnull().all()


def test_blocks_repeat_without_replacement_and_controls_do_not():
    ids = repeated_blocks(d_vocab=11, block=5, n_blocks=9, seed=4)
    assert torch.equal(ids[:, :5], ids[:, 5:])
    assert all(len(set(row[:5].tolist())) == 5 for row in ids)
    assert torch.equal(ids, repeated_blocks(11, 5, 9, 4))
    assert not torch.equal(ids, repeated_blocks(11, 5, 9, 5))
    assert repeated_blocks(d_vocab=3, block=8, n_blocks=2, seed=0).max() < 3
    control = shuffled_copies(ids, seed=4)
    assert torch.equal(control[:, :5], ids[:, :5])
    assert torch.equal(control[:, 5:].sort(1).values, ids[:, 5:].sort(1).values)
    assert not (control[:, 5:] == ids[:, 5:]).any()


def test_uniform_patterns_are_causal_rows_that_sum_to_one():
    pattern = uniform_pattern(5, torch.zeros(1, dtype=torch.float64))[0, 0]
    assert torch.allclose(pattern.sum(-1), torch.ones(5, dtype=torch.float64))
    assert (pattern.triu(1) == 0).all()


def test_results_carry_labels_and_settings():
    scores = head_scores(random_hooked(), "abcab")
    assert scores["value"].dims == ("score", "batch", "layer", "head")
    units = dict(zip(scores["score"].to_numpy(), scores["units"].to_numpy(), strict=True))
    assert units == SCORE_UNITS
    assert scores.attrs["prompt"] == "abcab"
    blocks = induction_scores(random_hooked(), block=3, n_blocks=4, seed=5)
    assert blocks.attrs["settings"] == {"block": 3, "n_blocks": 4, "seed": 5}


@pytest.mark.parametrize("wrong", [{"block": 1}, {"block": 4}, {"n_blocks": 1}])
def test_blocks_that_do_not_fit_are_refused(wrong):
    with pytest.raises(InputError):
        induction_scores(random_hooked(), **wrong)
