"""What is kept of a stream does not depend on how it was cut, ties and gaps included."""

from __future__ import annotations

import pytest
import torch

from interp.neuron_tally import IN_CACHE, NeuronTally

WINDOWS, POS, NEURONS, TOP = 13, 7, 5, 3
# Whole numbers, so that windows tie in nearly every neuron.
POSTS = torch.randint(-3, 9, (WINDOWS, POS, NEURONS), generator=torch.Generator().manual_seed(2))
POSTS = POSTS.double() / 2


def empty(n_neurons: int = NEURONS, bins: int = 6) -> NeuronTally:
    return NeuronTally.empty(
        n_neurons, top=TOP, bins=bins, limits=(-1.0, 2.0), dtype=torch.double, device="cpu"
    )


def counted(starts: list[int], size: int) -> NeuronTally:
    tally = empty()
    for first in starts:
        tally.add(POSTS[first : first + size], first)
    return tally


def strongest_one_by_one() -> tuple[torch.Tensor, torch.Tensor]:
    """The strongest token of each window, sorted by plain Python: value down, then place up."""
    best, token = torch.zeros(NEURONS, TOP).double(), torch.zeros(NEURONS, TOP).long()
    for neuron in range(NEURONS):
        rows = POSTS[:, :, neuron].tolist()
        found = sorted((-max(row), w * POS + row.index(max(row))) for w, row in enumerate(rows))
        for rank, (value, place) in enumerate(found[:TOP]):
            best[neuron, rank], token[neuron, rank] = -value, place
    return best, token


@pytest.mark.parametrize("size", [1, 2, 4, 5, 13])
def test_of_equal_windows_the_earliest_is_kept_however_the_text_is_cut(size):
    best, token = strongest_one_by_one()
    tally = counted(list(range(0, WINDOWS, size)), size)
    torch.testing.assert_close(tally.best, best, rtol=0, atol=0)
    torch.testing.assert_close(tally.token, token)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_parts_that_took_turns_join_to_the_whole(size):
    starts = list(range(0, WINDOWS, size))
    joined = NeuronTally.joined([counted(starts[::2], size), counted(starts[1::2], size), empty()])
    whole = counted([0], WINDOWS)
    for name in ("total", "squares", "count", "best", "token"):
        torch.testing.assert_close(getattr(joined, name), getattr(whole, name))


def test_more_than_the_cache_holds_is_counted_piece_by_piece():
    """Three pieces, the last of them short, and more bins than the smallest integers number."""
    generator = torch.Generator().manual_seed(0)
    n_neurons, bins = IN_CACHE // 64, 40
    post = torch.randn(10, 13, n_neurons, generator=generator).double()
    tally = empty(n_neurons, bins)
    tally.add(post, 0)
    flat = post.flatten(0, 1)
    torch.testing.assert_close(tally.total, flat.sum(0))
    torch.testing.assert_close(tally.squares, flat.square().sum(0))
    for neuron in (0, 17, n_neurons - 1):
        inside = flat[:, neuron].clamp(-1, 2 - 1e-9)
        want = torch.histc(inside, bins, -1, 2)
        torch.testing.assert_close(tally.count[neuron].double(), want)


def test_a_nan_stays_to_be_seen():
    posts = POSTS.clone()
    posts[4, 2, 1] = torch.nan
    tally = empty()
    tally.add(posts[:4], 0)
    tally._keep_strongest(posts[4:], 4)
    assert tally.best[1, 0].isnan()
    assert not tally.best[[0, 2, 3, 4]].isnan().any()
