"""Streamed statistics equal those of everything at once; vocabulary effects are interventions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from agreement import CLOSE
from random_models import random_hooked

from interp import InputError, neuron_examples, neuron_statistics, neuron_vocabulary

TEXT = torch.randint(0, 11, (170,), generator=torch.Generator().manual_seed(6))
ROWS = TEXT[:168].view(24, 7)


@pytest.fixture(scope="module")
def model():
    return random_hooked(17)


def posts(model) -> torch.Tensor:
    """[layer, window, pos, neuron], by TransformerLens' cache."""
    _, cache = model.run_with_cache(ROWS)
    return torch.stack([cache["post", layer] for layer in range(2)])


@pytest.mark.parametrize("batch_size", [1, 5, 24])
def test_streamed_statistics_are_those_of_the_whole(model, batch_size):
    got = neuron_statistics(model, TEXT, top=4, bins=6, limits=(-0.5, 1.0), batch_size=batch_size)
    post = posts(model)
    flat = post.flatten(1, 2)
    torch.testing.assert_close(torch.tensor(got["mean"].to_numpy()), flat.mean(1), **CLOSE)
    want = flat.std(1, correction=0)
    torch.testing.assert_close(torch.tensor(got["std"].to_numpy()), want, **CLOSE)
    edges = np.linspace(-0.5, 1, 7)
    edges[0], edges[-1] = -np.inf, np.inf
    for layer in range(2):
        for neuron in range(23):
            cell = got.sel(layer=layer, neuron=neuron)
            want, _ = np.histogram(flat[layer, :, neuron].numpy(), edges)
            np.testing.assert_array_equal(cell["count"], want)
            strongest = post[layer, :, :, neuron].amax(1).sort(descending=True).values[:4]
            np.testing.assert_allclose(cell["activation"], strongest, atol=1e-12)
            # Windows with equal beginnings tie, so which of them comes first is free.
            there = post[layer, cell["window"].to_numpy(), cell["at_pos"].to_numpy(), neuron]
            np.testing.assert_allclose(there, strongest, atol=1e-12)
            assert len(set(cell["window"].to_numpy().tolist())) == 4


def test_examples_are_the_windows_where_it_fired(model):
    statistics = neuron_statistics(model, TEXT, top=3)
    got = neuron_examples(model, TEXT, statistics, 1, 20)
    own = statistics.sel(layer=1, neuron=20)
    peaks = [row[int(p)] for row, p in zip(got["activation"].to_numpy(), got["peak"], strict=True)]
    np.testing.assert_allclose(peaks, own["activation"], atol=1e-12)
    np.testing.assert_allclose(got["activation"].max("pos"), own["activation"], atol=1e-12)
    window = int(own["window"][0])
    assert got["tokens"][0].to_numpy().tolist() == [chr(97 + i) for i in ROWS[window].tolist()]
    with pytest.raises(InputError, match="made of"):
        neuron_examples(model, TEXT[:100], statistics, 1, 20)
    shorter = neuron_statistics(model, TEXT, top=3, length=5)
    assert neuron_examples(model, TEXT, shorter, 0, 1)["activation"].shape == (3, 5)


def test_written_logits_are_what_one_unit_more_adds(model):
    """With hooks, the final scale held: logits move by W_out A / s, apart from a common shift."""
    layer, neuron = 1, 13
    got = neuron_vocabulary(model, layer, neuron, top=11).isel(neuron=0)
    _, cache = model.run_with_cache(ROWS)

    def one_more(post, hook):
        post = post.clone()
        post[..., neuron] += 1
        return post

    hooks = [
        (f"blocks.{layer}.mlp.hook_post", one_more),
        ("ln_final.hook_scale", lambda _, hook: cache[hook.name]),
    ]
    moved = model.run_with_hooks(ROWS, fwd_hooks=hooks) - model(ROWS)
    moved = (moved - moved.mean(-1, keepdim=True)) * cache["ln_final.hook_scale"]
    for name in ("promoted", "suppressed"):
        ids = torch.tensor(got[name].to_numpy())
        by = torch.tensor(got[f"{name}_by"].to_numpy())
        torch.testing.assert_close(moved[..., ids], by.expand(24, 7, 11), **CLOSE)
    assert got["promoted"].to_numpy().tolist() == got["suppressed"].to_numpy().tolist()[::-1]
    assert float(got["effect_std"]) == pytest.approx(float(moved[0, 0].std(correction=0)))
    assert got["promoted_tokens"].to_numpy()[0] == chr(97 + int(got["promoted"][0]))


def test_read_tokens_are_those_that_drive_it(model):
    layer, neuron = 0, 5
    got = neuron_vocabulary(model, layer, top=11)
    assert got.sizes["neuron"] == 23
    got = got.sel(neuron=neuron)
    block = model.blocks[layer]
    x = model.W_E
    y = (x - x.mean(-1, keepdim=True)) * block.ln2.w
    want = y @ block.mlp.W_in[:, neuron]
    order = want.argsort(descending=True)
    np.testing.assert_array_equal(got["read"], order)
    np.testing.assert_allclose(got["read_by"], want[order], atol=1e-10)


def test_bad_requests_are_refused(model):
    plain = random_hooked(attn_only=True)
    for wrong in (
        lambda: neuron_statistics(plain, TEXT),
        lambda: neuron_statistics(model, TEXT, top=0),
        lambda: neuron_statistics(model, TEXT, limits=(1.0, 1.0)),
        lambda: neuron_vocabulary(plain, 0),
        lambda: neuron_vocabulary(model, 0, 23),
        lambda: neuron_vocabulary(model, 2),
        lambda: neuron_vocabulary(model, 0, top=12),
    ):
        with pytest.raises(InputError):
            wrong()
