"""N-gram models equal a count by hand, and every distribution sums to one."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp import InputError, NGrams, count_ngrams

V = 5


def text(seed: int, n: int = 200) -> torch.Tensor:
    """A text with structure: each token prefers to come after its neighbour."""
    generator = torch.Generator().manual_seed(seed)
    jumps = torch.multinomial(torch.tensor([1.0, 6, 2, 1]), n, True, generator=generator)
    return jumps.cumsum(0) % V


def witten_bell(train: list[int], context: tuple[int, ...], word: int) -> float:
    """The definition, recursive and slow."""
    follows = Counter(
        train[i + len(context)]
        for i in range(len(train) - len(context))
        if tuple(train[i : i + len(context)]) == context
    )
    shorter = witten_bell(train, context[1:], word) if context else 1 / V
    if not follows:
        return shorter
    kinds, total = len(follows), sum(follows.values())
    return (follows[word] + kinds * shorter) / (total + kinds)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, V - 1), min_size=4, max_size=40), st.integers(1, 4), st.data())
def test_probabilities_are_witten_bells(train, order, data):
    ngrams = count_ngrams(torch.tensor(train), V, order=4)
    row = data.draw(st.lists(st.integers(0, V - 1), min_size=1, max_size=6))
    p = ngrams.probabilities(torch.tensor([row]), order)[0]
    assert p.shape == (len(row), V)
    for pos in range(len(row)):
        context = tuple(row[max(0, pos + 2 - order) : pos + 1]) if order > 1 else ()
        want = [witten_bell(train, context, word) for word in range(V)]
        assert p[pos].tolist() == pytest.approx(want, abs=1e-12)
    assert float((p.sum(-1) - 1).abs().max()) < 1e-12


def test_the_first_order_is_the_unigram_and_unseen_contexts_fall_back():
    train = text(0)
    train = train[train != 4]
    ngrams = count_ngrams(train, V, order=3)
    counts = torch.bincount(train, minlength=V).double()
    kinds = float((counts > 0).sum())
    want = (counts + kinds / V) / (len(train) + kinds)
    rows = torch.tensor([[0, 1, 2], [4, 4, 4]])
    p = ngrams.probabilities(rows, 1)
    torch.testing.assert_close(p, want.expand(2, 3, V))
    # Token 4 never occurs, so no context that ends with it was seen.
    torch.testing.assert_close(ngrams.probabilities(rows, 3)[1], want.expand(3, V))


def test_unsmoothed_loss_on_the_counted_text_never_rises_with_the_order():
    train = text(1)
    ngrams = count_ngrams(train, V, order=5)
    after, contexts = train[None, 1:], ngrams.contexts(train[None, :-1])
    scored = torch.arange(4, len(train) - 1)
    losses = []
    for length, context in enumerate(contexts):
        table = ngrams.continuations(context[0, scored], length)
        p = table / table.sum(-1, keepdim=True)
        losses.append(float(-p.gather(-1, after[0, scored, None]).log().mean()))
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1] + 0.1


def test_counts_are_the_texts():
    train = text(2, 60)
    ngrams = count_ngrams(train, V, order=3)
    grams = Counter(zip(*(train[i:].tolist() for i in range(3)), strict=False))
    assert int(ngrams.counts[2].sum()) == 58
    assert sorted(ngrams.counts[2].tolist()) == sorted(grams.values())
    for (a, b, c), count in grams.items():
        context = ngrams.contexts(torch.tensor([[a, b]]))[2][0, 1:]
        assert float(ngrams.continuations(context, 2)[0, c]) == count


def test_tables_survive_a_file(tmp_path):
    ngrams = count_ngrams(text(3), V, order=4)
    ngrams.save(tmp_path / "ngrams.safetensors")
    again = NGrams.load(tmp_path / "ngrams.safetensors")
    rows = torch.tensor([[0, 1, 2, 3]])
    assert again.d_vocab == V
    assert torch.equal(again.probabilities(rows), ngrams.probabilities(rows))
    (tmp_path / "broken").write_text("no tables")
    for path in (tmp_path / "broken", tmp_path / "missing"):
        with pytest.raises(InputError, match="cannot be read"):
            NGrams.load(path)


def test_bad_requests_are_refused():
    train = text(4)
    for wrong in (
        lambda: count_ngrams(train, 4),
        lambda: count_ngrams(train[:3], V, order=4),
        lambda: count_ngrams(train, V, order=0),
        lambda: count_ngrams(train, V, order=2).probabilities(train[None, :5], 3),
    ):
        with pytest.raises(InputError):
            wrong()
