"""`replay` equals the same edit made with TransformerLens' hooks, for every site and shape."""

from __future__ import annotations

import random

import pytest
import torch
from hook_oracle import address, logits_with_hooks
from random_models import random_hooked, random_ids

from interp.engine import trace
from interp.errors import InputError
from interp.packing import IN_ATTENTION
from interp.replay import replay
from interp.sites import SITE_KINDS, Site, kinds_of, sites_of

SHAPES = {
    "course": {},
    "three layers, wide heads": {"n_layers": 3, "n_heads": 2, "d_head": 7, "d_model": 15},
    "attention only": {"attn_only": True, "n_layers": 3},
    "folded LayerNorm": {"normalization_type": "LNPre"},
    "no LayerNorm": {"normalization_type": None, "act_fn": "gelu_new"},
    "no LayerNorm, attention only": {"normalization_type": None, "attn_only": True},
    "one layer, relu": {"n_layers": 1, "act_fn": "relu"},
    "scores scaled by layer": {"scale_attn_by_inverse_layer_idx": True, "n_layers": 3},
}
N_POS = 6


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys(), scope="module")
def base(request):
    return trace(random_hooked(1, **request.param), random_ids(1, batch=3, n_pos=N_POS))


def random_part(site: Site, cfg, rng: random.Random) -> Site:
    """The site with each of its indices set or left out by chance."""
    sizes = {"head": cfg.n_heads, "neuron": cfg.d_mlp, "pos": N_POS}
    indices = {
        field: rng.randrange(sizes[field])
        for field in SITE_KINDS[site.kind].fields
        if field in sizes and rng.random() < 0.6
    }
    if "key_pos" in SITE_KINDS[site.kind].fields and "pos" in indices and rng.random() < 0.5:
        indices["key_pos"] = rng.randrange(indices["pos"] + 1)
    return Site(site.kind, site.layer, **indices)


def random_value(base, site: Site, seed: int) -> torch.Tensor:
    """Another value for a site, in the range of what it holds; a future key stays unseen."""
    generator = torch.Generator().manual_seed(seed)
    old = base[site]
    noise = torch.randn(old.shape, generator=generator, dtype=old.dtype)
    if site.kind.endswith("scale"):
        return old * noise.exp()
    if site.kind == "pattern":
        return old * noise.abs()
    return old + noise


def assert_replay_equals_hooks(base, edits, pos=-1, **options):
    ours = replay(base, edits, pos=pos, **options)
    for run, sites in enumerate(edits):
        theirs = logits_with_hooks(base.model, base.ids, sites)[:, pos]
        torch.testing.assert_close(ours[run], theirs, rtol=0, atol=1e-10, msg=f"{list(sites)}")


@pytest.mark.parametrize("kind", SITE_KINDS)
def test_one_edit_at_a_site_of_each_kind(base, kind):
    if kind not in kinds_of(base.model.cfg):
        pytest.skip("this model has no such site")
    rng = random.Random(kind)
    edits = []
    for site in sites_of(base.model.cfg):
        if site.kind == kind:
            for seed in range(2):
                part = random_part(site, base.model.cfg, rng)
                edits.append({part: random_value(base, part, seed)})
    assert_replay_equals_hooks(base, edits)
    assert_replay_equals_hooks(base, edits, pos=2)


@pytest.mark.parametrize("seed", range(5))
def test_many_sites_together(base, seed):
    rng = random.Random(seed)
    sites = sites_of(base.model.cfg)
    edits = []
    for _ in range(5):
        parts = [random_part(s, base.model.cfg, rng) for s in rng.sample(sites, rng.randint(1, 5))]
        edits.append({part: random_value(base, part, seed) for part in parts})
    assert_replay_equals_hooks(base, edits, batch_size=rng.choice([None, 1, 2, 7]))


@pytest.mark.parametrize("seed", range(3))
def test_sites_inside_attention_together_and_one_written_over_another(base, seed):
    rng = random.Random(seed)
    inside = [s for s in sites_of(base.model.cfg) if s.kind in IN_ATTENTION]
    edits = []
    for layer in rng.choices(range(base.model.cfg.n_layers), k=5):
        here = rng.sample([s for s in inside if s.layer == layer], 2)
        parts = [part for s in here for part in (s, random_part(s, base.model.cfg, rng))]
        edits.append({part: random_value(base, part, i) for i, part in enumerate(parts)})
    assert_replay_equals_hooks(base, edits)
    assert_replay_equals_hooks(base, edits, pos=3)


def test_an_edit_does_not_change_what_the_trace_holds(base):
    before = {site: base[site].clone() for site in base.values}
    replay(base, [{site: random_value(base, site, 0)} for site in base.values])
    for site, value in before.items():
        assert torch.equal(base[site], value)


def test_no_edits_are_the_base_run(base):
    logits = replay(base, [{}, {Site("resid_pre", 0, pos=5): 1.0}], pos=2)
    assert torch.equal(logits[0], base.logits[:, 2])
    assert torch.equal(logits[1], base.logits[:, 2])


def test_a_value_may_be_a_number_that_fills_the_site(base):
    site = Site("attn_out", 0, pos=1)
    ours = replay(base, [{site: 0.0}])[0]
    zeros = torch.zeros_like(base[site])
    theirs = logits_with_hooks(base.model, base.ids, {site: zeros})[:, -1]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_address_is_the_part_that_a_trace_gives(base):
    site = Site("v", 0, head=1, pos=3)
    assert torch.equal(base[site], base["v", 0][address(site)])


@pytest.mark.parametrize(
    ("edit", "pos", "sentence"),
    [
        ({Site("z", 0, head=0): torch.zeros(4)}, -1, "value for .* has shape \\(4,\\)"),
        ({Site("z", 9): 0.0}, -1, "layer=9"),
        ({Site("z", 0, pos=6): 0.0}, -1, "pos=6, but only 0 to 5"),
        ({Site("z", 0): 0.0}, 6, "scored position is 6, but the prompt has 6 tokens"),
        ({Site("z", 0): 0.0}, -7, "scored position is -7"),
    ],
)
def test_wrong_edits_are_refused(edit, pos, sentence):
    base = trace(random_hooked(2), random_ids(2, n_pos=6))
    with pytest.raises(InputError, match=sentence):
        replay(base, [edit], pos=pos)
