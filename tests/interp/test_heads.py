"""What heads move and where they look, by definition and by intervention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from agreement import CLOSE, values
from folding import folded
from random_models import random_hooked, random_ids

from interp import (
    InputError,
    attention_patterns,
    cluster_heads,
    copy_suppression,
    edit_pattern,
    head_scores,
    head_scores_over,
    moved_by_heads,
)
from interp.clusters import average_linkage


@pytest.fixture(scope="module")
def model():
    return random_hooked(19)


@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_moved_is_the_norm_of_each_keys_term(model, batch):
    ids = random_ids(4, batch=batch)
    _, cache = model.run_with_cache(ids)
    moved = moved_by_heads(model, ids)
    for layer, block in enumerate(model.blocks):
        y = cache[f"blocks.{layer}.ln1.hook_normalized"] * block.ln1.w
        for head in range(3):
            written = y @ block.attn.W_V[head] @ block.attn.W_O[head]
            written = written - written.mean(-1, keepdim=True)
            want = cache["pattern", layer][:, head] * written.norm(dim=-1)[:, None]
            got = values(moved.sel(layer=layer, head=head))
            torch.testing.assert_close(got, want, **CLOSE)
    twin = moved_by_heads(folded(model), ids)
    torch.testing.assert_close(values(moved), values(twin), **CLOSE)


def hooked_edit(model, ids, cells):
    """The same edit with TransformerLens' hooks; cells hold whole rows."""

    def edit(pattern, hook):
        pattern = pattern.clone()
        for (layer, head, query), row in cells.items():
            if hook.name == f"blocks.{layer}.attn.hook_pattern":
                pattern[:, head, query] = row
        return pattern

    layers = {layer for layer, _, _ in cells}
    hooks = [(f"blocks.{layer}.attn.hook_pattern", edit) for layer in layers]
    return model.run_with_hooks(ids, fwd_hooks=hooks)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("pos", [-1, 4])
def test_an_edited_pattern_is_the_same_edit_with_hooks(model, batch, rescale, pos):
    ids = random_ids(4, batch=batch)
    cells = {(0, 1, 4, 2): 0.7, (0, 1, 4, 0): 0.1, (1, 2, 4, 4): 0.25}
    got = edit_pattern(model, ids, cells, rescale=rescale, pos=pos)
    torch.testing.assert_close(values(got["base"]), model(ids)[:, pos], **CLOSE)
    _, cache = model.run_with_cache(ids)
    one, other = cache["pattern", 0][:, 1, 4].clone(), cache["pattern", 1][:, 2, 4].clone()
    if rescale:
        one *= 0.2 / (1 - one[:, [2]] - one[:, [0]])
        other *= 0.75 / (1 - other[:, [4]])
    one[:, 2], one[:, 0], other[:, 4] = 0.7, 0.1, 0.25
    if rescale:
        assert float((one.sum(-1) - 1).abs().max()) < 1e-12
    # Layer 1's row is set to what it was made from, as the replay does.
    want = hooked_edit(model, ids, {(0, 1, 4): one, (1, 2, 4): other})
    torch.testing.assert_close(values(got["edited"]), want[:, pos], **CLOSE)


def test_attending_only_to_one_key_leaves_nothing_for_the_others(model):
    ids = random_ids(4)
    got = edit_pattern(model, ids, {(1, 0, 6, 3): 1.0})
    row = torch.zeros(1, 7, dtype=torch.double)
    row[0, 3] = 1
    want = hooked_edit(model, ids, {(1, 0, 6): row})[:, -1]
    torch.testing.assert_close(values(got["edited"]), want, **CLOSE)


def test_patterns_that_cannot_be_are_refused(model):
    for cells in (
        {},
        {(0, 0, 2, 3): 0.5},
        {(0, 0, 7, 3): 0.5},
        {(0, 3, 2, 1): 0.5},
        {(2, 0, 2, 1): 0.5},
        {(0, 0, 5, 1): 0.8, (0, 0, 5, 2): 0.3},
        {(0, 0, 0, 0): 0.5},
        {(0, 0, 5, 1): -0.1},
        {(0, 0, 5, 1): 1.1},
    ):
        with pytest.raises(InputError):
            edit_pattern(model, random_ids(4), cells)


@pytest.mark.parametrize("batch", [1, 3])
def test_copy_suppression_is_its_definition_word_by_word(model, batch):
    ids = random_ids(4, batch=batch)
    got = copy_suppression(model, ids)
    _, cache = model.run_with_cache(ids)
    scale = cache["ln_final.hook_scale"]
    gained = model.ln_final.w[:, None] * model.W_U
    A = gained - gained.mean(0)
    A = A - A.mean(1, keepdim=True)
    for layer, block in enumerate(model.blocks):
        lens = model.unembed(model.ln_final(cache["resid_pre", layer])).argmax(-1)
        y = cache[f"blocks.{layer}.ln1.hook_normalized"] * block.ln1.w
        for head in range(3):
            pattern = cache["pattern", layer][:, head]
            written = y @ block.attn.W_V[head] @ block.attn.W_O[head]
            for row in range(batch):
                weights, effects, chances = [], [], []
                for q in range(7):
                    named = int(lens[row, q])
                    keys = [k for k in range(q + 1) if int(ids[row, k]) == named]
                    if not keys:
                        continue
                    weights.append(sum(float(pattern[row, q, k]) for k in keys))
                    terms = [pattern[row, q, k] * written[row, k] @ A[:, named] for k in keys]
                    effects.append(float(sum(terms) / scale[row, q, 0]))
                    chances.append(len(keys) / (q + 1))
                cell = got.sel(batch=row, layer=layer, head=head)
                for name, want in (
                    ("attention", weights),
                    ("effect", effects),
                    ("chance", chances),
                ):
                    mean = sum(want) / len(want) if want else float("nan")
                    assert float(cell[name]) == pytest.approx(mean, abs=1e-10, nan_ok=True)


def test_scores_over_a_corpus_are_the_mean_of_its_windows(model):
    text = random_ids(9, batch=1, n_pos=60)[0]
    got = head_scores_over(model, text, batch_size=3)
    each = head_scores(model, text[:56].view(8, 7))
    np.testing.assert_allclose(got["value"], each["value"].mean("batch", skipna=False), atol=1e-12)
    np.testing.assert_allclose(
        got["chance"], each["chance"].mean("batch", skipna=False), atol=1e-12
    )
    defined = got["value"].notnull()
    assert bool(((got["low"] <= got["value"]) | ~defined).all())
    assert got["units"].sel(score="distance") == "tokens"


def test_heads_that_look_alike_are_together():
    model = random_hooked(19)
    for layer, head in ((0, 0), (1, 2)):
        attn = model.blocks[layer].attn
        attn.W_Q.data[head], attn.b_Q.data[head] = 0, 0
    ids = random_ids(2, batch=2)
    got = cluster_heads(model, ids, clusters=5)
    distance = got["distance"]
    assert float(distance.sel(component="L0H0", other_component="L1H2")) < 1e-12
    assert float(abs(distance - distance.to_numpy().T).max()) < 1e-12
    assert float(abs(np.diag(distance)).max()) < 1e-12
    assert float(distance.max()) <= np.log(2)
    cluster = got["cluster"]
    assert cluster.to_numpy().tolist() == [0, 1, 2, 3, 4, 0]
    pattern = attention_patterns(model, ids).to_numpy()[:, :, :, 1:]
    p, q = pattern[:, 0, 2], pattern[:, 1, 0]
    m = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        js = np.nansum(p * np.log(p / m) + q * np.log(q / m), -1) / 2
    want = float(distance.sel(component="L0H2", other_component="L1H0"))
    assert want == pytest.approx(float(js.mean()), abs=1e-12)


def test_average_linkage_joins_the_nearest_groups():
    points = np.array([0.0, 10.0, 0.5, 11.0, 30.0])
    distance = abs(points[:, None] - points)
    assert average_linkage(distance, 5).tolist() == [0, 1, 2, 3, 4]
    assert average_linkage(distance, 4).tolist() == [0, 1, 0, 2, 3]
    assert average_linkage(distance, 3).tolist() == [0, 1, 0, 1, 2]
    assert average_linkage(distance, 2).tolist() == [0, 0, 0, 0, 1]
    assert average_linkage(distance, 1).tolist() == [0] * 5
    with pytest.raises(InputError):
        cluster_heads(random_hooked(), "abc", clusters=7)
