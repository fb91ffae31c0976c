"""Sweeps equal the same sweep made with TransformerLens' hooks, one cell at a time; and laws."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
import transformer_lens.patching as tl_patching
from hook_oracle import address, logits_with_hooks
from random_models import random_hooked

from interp.engine import trace
from interp.errors import InputError
from interp.inputs import Contrast, contrast
from interp.metrics import Metric, kl_divergence, logit_difference
from interp.packing import SOFTMAX
from interp.patching import activation_patching
from interp.replay import replay
from interp.sites import SITE_KINDS, Site, kinds_of, sites_of

SHAPES = {
    "course": {},
    "three layers, wide heads": {"n_layers": 3, "n_heads": 2, "d_head": 7, "d_model": 15},
    "attention only": {"attn_only": True},
    "folded LayerNorm": {"normalization_type": "LNPre", "act_fn": "relu"},
    "no LayerNorm": {"normalization_type": None, "act_fn": "gelu_new"},
}
ONE_TOKEN = (["abcdefg", "kbcdebc", "abcdkab"], ["abhdefg", "abcdebc", "abcdkac"])
MANY_TOKENS = (["abcdefg", "ggaabca"], ["hijkabc", "gbaacka"])


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys(), scope="module")
def model(request):
    return random_hooked(4, **request.param)


def by_hooks(model, pair: Contrast, cells: list[list[Site]]) -> torch.Tensor:
    """Logits [cell, batch, pos, vocab] with each cell's sites taken from the source run's cache."""
    _, cache = model.run_with_cache(pair.source)

    def values(site: Site):
        return cache[site.hook_name][address(site)]

    runs = [{site: values(site) for site in cell} for cell in cells]
    return torch.stack([logits_with_hooks(model, pair.base, run) for run in runs])


def all_logits(pos: int = -1) -> list[Metric]:
    """One metric for each of the first tokens, so that a comparison sees whole distributions."""

    def of(token: int) -> Metric:
        return Metric(f"logit {token}", "logits", pos, lambda logits, b, r: logits[:, 0, token])

    return [of(token) for token in range(4)]


def assert_sweep_equals_hooks(model, pair, kinds, over, window=1, also=()):
    """The sweep scored at the last position, and in the other ways that `also` says."""
    sweeps = [
        (pos, activation_patching(model, pair, all_logits(pos), kinds, over=over, **options))
        for pos, options in [(-1, {"window": window}), *also]
    ]
    ours = sweeps[0][1]
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    axes = list(over)
    ranges = [ours[axis].to_numpy().tolist() for axis in axes]
    cells = []
    for place in itertools.product(*ranges):
        at = dict(zip(axes, place, strict=True))
        index = {("pos" if axis == "query_pos" else axis): i for axis, i in at.items()}
        layers = [index.pop("layer")] if "layer" in index else range(model.cfg.n_layers)
        if "layer" in at:
            layers = range(layers[0], layers[0] + window)
        cells.append(
            [
                Site(name, layer if SITE_KINDS[name].has_layer else None, **index)
                for name in names
                for layer in (layers if SITE_KINDS[name].has_layer else [None])
            ]
        )
    theirs = by_hooks(model, pair, cells)[..., :4]
    for pos, ours in sweeps:
        expected = theirs[:, :, pos].permute(2, 1, 0).reshape(ours.raw.shape).numpy()
        np.testing.assert_allclose(
            ours.raw.values, expected, rtol=0, atol=1e-10, err_msg=f"{kinds}"
        )


USUAL = {kind: ("layer", "pos") for kind in SITE_KINDS if SITE_KINDS[kind].has_layer} | {
    "embed": ("pos",),
    "pos_embed": ("pos",),
    "ln_final_scale": ("pos",),
    "ln_final_normalized": ("pos",),
    "attn_scores": ("layer", "head", "query_pos"),
    "pattern": ("layer", "head", "query_pos"),
}


@pytest.mark.parametrize("pairs", [ONE_TOKEN, MANY_TOKENS], ids=["one token", "many tokens"])
def test_every_kind_by_position(model, pairs):
    pair = contrast(model, *pairs)
    for kind in kinds_of(model.cfg):
        assert_sweep_equals_hooks(model, pair, kind, USUAL[kind])


@pytest.mark.parametrize(
    ("kinds", "over"),
    [
        ("z", ("layer", "head")),
        ("q", ("layer", "head", "pos")),
        ("k", ("head", "layer")),
        ("v", ("head",)),
        ("z", ("pos",)),
        ("pattern", ("layer", "head")),
        ("attn_scores", ("layer", "head")),
        ("attn_scores", ("key_pos", "layer")),
        ("resid_pre", ("layer",)),
        (("q", "k"), ("layer", "head")),
        (("pattern", "v"), ("layer", "head")),
        (("attn_out", "resid_pre"), ("layer", "pos")),
        (("k", "z"), ("layer", "pos", "head")),
        (("embed", "ln_final_scale"), ("pos",)),
        (("v", "attn_out"), ("layer",)),
    ],
)
def test_other_grids_and_sets_of_sites(model, kinds, over):
    if not set([kinds] if isinstance(kinds, str) else kinds) <= set(kinds_of(model.cfg)):
        pytest.skip("this model has no LayerNorm")
    earlier = [(4, {"batch_size": 5})]
    assert_sweep_equals_hooks(model, contrast(model, *ONE_TOKEN), kinds, over, also=earlier)


@pytest.mark.parametrize("pairs", [ONE_TOKEN, MANY_TOKENS], ids=["one token", "many tokens"])
@pytest.mark.parametrize(
    ("kinds", "over"),
    [
        (("z", "q", "k", "v", "pattern"), ("kind", "layer", "head")),
        (("resid_pre", "attn_out", "mlp_out"), ("layer", "kind", "pos")),
        (("embed", "pattern"), ("kind",)),
    ],
)
def test_kinds_swept_together_are_each_patched_by_itself(pairs, kinds, over):
    model = random_hooked(4)
    pair, metric = contrast(model, *pairs), logit_difference(model, "b", "c")
    together = activation_patching(model, pair, metric, kinds, over=over)
    assert together.kind.to_numpy().tolist() == list(kinds)
    for kind in kinds:
        alone = activation_patching(
            model, pair, metric, kind, over=[axis for axis in over if axis != "kind"]
        )
        np.testing.assert_allclose(
            together.raw.sel(kind=kind).values, alone.raw.values, rtol=0, atol=1e-10
        )
        np.testing.assert_allclose(
            together.fraction.sel(kind=kind).values, alone.fraction.values, rtol=0, atol=1e-10
        )


def test_some_of_the_kinds(model):
    pair, metric = contrast(model, *ONE_TOKEN), logit_difference(model, "b", "c")
    over = {"kind": [2, 0], "layer": None}
    some = activation_patching(model, pair, metric, ("z", "q", "v"), over=over)
    assert some.kind.to_numpy().tolist() == ["v", "z"]
    v = activation_patching(model, pair, metric, "v", over=("layer",))
    over = {"layer": [1], "head": None}
    one = activation_patching(model, pair, metric, "z", over=over)
    assert tuple(one.raw.coords) == one.raw.dims
    np.testing.assert_allclose(some.raw.sel(kind="v").values, v.raw.values, rtol=0, atol=1e-10)


@pytest.mark.parametrize("pos", [-1, 4, None])
def test_the_size_of_the_pieces_that_the_cache_holds_changes_nothing(monkeypatch, pos):
    model = random_hooked(4)
    pair = contrast(model, *MANY_TOKENS)
    calls = [("resid_pre", ("layer", "pos")), (("k", "pattern", "z"), ("kind", "layer", "head"))]

    def sweeps():
        metric = [kl_divergence("base", pos=pos)]
        return [activation_patching(model, pair, metric, k, over=o).raw.data for k, o in calls]

    whole = sweeps()
    monkeypatch.setattr("interp.attending._KEYS", 2 * 7 * 3 * 5 * 8)
    monkeypatch.setattr("interp.wavefront._TOKENS", 3)
    for in_one, in_pieces in zip(whole, sweeps(), strict=True):
        np.testing.assert_allclose(in_pieces, in_one, rtol=0, atol=1e-10)


@pytest.mark.parametrize("pos", [2, None])
def test_in_one_pass_is_what_traces_give(model, monkeypatch, pos):
    """In several batches the unedited runs are traced, in one they go along. The first pair differs
    from position 5 on, so at position 2 its source run is its base run."""
    pair = contrast(model, ["abcdefg", "kbcdebc", "gbcdhba"], ["abcdehg", "abcdebc", "abcdaac"])
    metric = [kl_divergence("base", pos=pos), kl_divergence("source", pos=pos)]
    calls = [(kind, USUAL[kind]) for kind in kinds_of(model.cfg) if kind not in SOFTMAX] + [
        ("z", ("layer", "head")),
        ("pattern", ("layer", "head")),
        (("attn_scores", "z", "k"), ("kind", "head")),
        (("q", "pattern", "resid_pre"), ("layer",)),
        (("v", "z"), ("head", "layer")),
    ]

    def sweeps(**options):
        found = []
        for kinds, over in calls:
            result = activation_patching(model, pair, metric, kinds, over=over, **options)
            found += [result[name].to_numpy() for name in ("raw", "base", "source", "fraction")]
        return found

    from_traces = sweeps(batch_size=8)
    monkeypatch.delattr("interp.patching.trace")
    for in_one, traced in zip(sweeps(), from_traces, strict=True):
        np.testing.assert_allclose(in_one, traced, rtol=0, atol=1e-10)


def test_what_changes_after_the_scored_position_changes_nothing(model):
    pair = contrast(model, ["abcdefg", "kbcdebc"], ["abcdehg", "kbcdeba"])
    for kinds in ("resid_pre", ("z", "k", "pattern")):
        result = activation_patching(model, pair, all_logits(2), kinds)
        np.testing.assert_array_equal(result.source.to_numpy(), result.base.to_numpy())
        raw, base = (result[name].transpose("metric", "batch", ...) for name in ("raw", "base"))
        assert (raw == base).all()


@pytest.mark.parametrize("kinds", ["pos_embed", ("pos_embed", "embed"), "z"])
def test_a_sweep_does_not_touch_what_the_user_computes_with_the_model(kinds):
    model = random_hooked(4)
    weights = [p.requires_grad_() for p in model.parameters()]
    loss, versions = sum((p**2).sum() for p in weights), [p._version for p in weights]
    for pos, pair in ((2, ("abcdefg", "abcdefa")), (-1, ONE_TOKEN)):
        metric = kl_divergence("base", pos=pos)
        activation_patching(model, contrast(model, *pair), metric, kinds, over=("pos",))
    assert [p._version for p in weights] == versions
    loss.backward()


def test_single_attention_weights(model):
    pair = contrast(model, "abcdefg", "abchefg")
    over = {"layer": [1], "head": [0, 1], "query_pos": None, "key_pos": None}
    assert_sweep_equals_hooks(model, pair, "pattern", over)
    assert_sweep_equals_hooks(model, pair, "attn_scores", over | {"head": [1]})


def test_neurons(model):
    if model.cfg.attn_only:
        pytest.skip("this model has no neurons")
    pair = contrast(model, *ONE_TOKEN)
    assert_sweep_equals_hooks(model, pair, "mlp_post", ("layer", "neuron"))
    over = {"neuron": [3, 22], "pos": [6, 2], "layer": [0, 1]}
    assert_sweep_equals_hooks(model, pair, "mlp_pre", over)


def test_windows_of_layers():
    model = random_hooked(5, n_layers=4)
    pair = contrast(model, *ONE_TOKEN)
    for kinds in ("attn_out", ("attn_out", "mlp_out")):
        assert_sweep_equals_hooks(model, pair, kinds, ("layer", "pos"), window=3)


# --- the nineteen functions of transformer_lens.patching -------------------------------------

_BY_POS = ("resid_pre", "resid_mid", "attn_out", "mlp_out")
_HEADS = {"out": "z", "q": "q", "k": "k", "v": "v", "pattern": "pattern"}


def _nineteen():
    for kind in _BY_POS:
        yield f"get_act_patch_{kind}", [(kind, ("layer", "pos"))]
    for name, kind in _HEADS.items():
        all_pos = (kind, ("layer", "head"))
        pos = "query_pos" if kind == "pattern" else "pos"
        by_pos = (kind, ("layer", "head", pos) if kind == "pattern" else ("layer", pos, "head"))
        yield f"get_act_patch_attn_head_{name}_all_pos", [all_pos]
        yield f"get_act_patch_attn_head_{name}_by_pos", [by_pos]
    yield (
        "get_act_patch_attn_head_pattern_dest_src_pos",
        [("pattern", ("layer", "head", "query_pos", "key_pos"))],
    )
    yield (
        "get_act_patch_attn_head_all_pos_every",
        [(kind, ("layer", "head")) for kind in ("z", "q", "k", "v", "pattern")],
    )
    yield (
        "get_act_patch_attn_head_by_pos_every",
        [
            (kind, ("layer", "query_pos" if kind == "pattern" else "pos", "head"))
            for kind in ("z", "q", "k", "v", "pattern")
        ],
    )
    yield (
        "get_act_patch_block_every",
        [(kind, ("layer", "pos")) for kind in ("resid_pre", "attn_out", "mlp_out")],
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "sweeps"), list(_nineteen()), ids=lambda x: x if isinstance(x, str) else ""
)
def test_transformer_lens_patching_functions(name, sweeps, monkeypatch):
    monkeypatch.setattr(tl_patching, "tqdm", lambda it, *a, **k: it)
    model = random_hooked(6, n_ctx=5)
    pair = contrast(model, "abcde", "abgde")
    _, cache = model.run_with_cache(pair.source)
    theirs = getattr(tl_patching, name)(
        model, pair.base, cache, lambda logits: logits[0, -1, 1] - logits[0, -1, 2]
    )
    metric = logit_difference(model, "b", "c")
    ours = [
        activation_patching(model, pair, metric, k, over=o).raw[0].to_numpy() for k, o in sweeps
    ]
    expected = theirs.numpy()
    mine = ours[0] if len(ours) == 1 else np.stack(ours)
    # TransformerLens keeps float64 results in float32 tables.
    np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_transformer_lens_generic_patching(monkeypatch):
    monkeypatch.setattr(tl_patching, "tqdm", lambda it, *a, **k: it)
    model = random_hooked(6, n_ctx=5)
    pair = contrast(model, "abcde", "abgde")
    _, cache = model.run_with_cache(pair.source)
    places = itertools.product(range(2), range(2, 5), [0, 7, 22])
    index = pd.DataFrame(places, columns=["layer", "pos", "neuron"])
    theirs = tl_patching.generic_activation_patch(
        model,
        pair.base,
        cache,
        lambda logits: logits[0, -1, 1] - logits[0, -1, 2],
        lambda base, at, source: base.index_put(
            (torch.tensor(0), torch.tensor(at[1]), torch.tensor(at[2])), source[0, at[1], at[2]]
        ),
        "post",
        index_df=index,
    )
    over = {"layer": None, "pos": range(2, 5), "neuron": [0, 7, 22]}
    metric = logit_difference(model, "b", "c")
    ours = activation_patching(model, pair, metric, "mlp_post", over=over)
    np.testing.assert_allclose(ours.raw.to_numpy().ravel(), theirs.numpy(), rtol=0, atol=1e-5)


def test_all_nineteen_are_covered():
    theirs = {name for name in dir(tl_patching) if name.startswith("get_act_patch_")}
    assert {name for name, _ in _nineteen()} == theirs
    assert len(theirs | {"generic_activation_patch"}) == 19


# --- laws ----------------------------------------------------------------------------------------


def raw(model, pair, kinds, over):
    return activation_patching(model, pair, all_logits(), kinds, over=over).raw.to_numpy()


def test_patching_a_whole_cut_is_the_source_run(model):
    pair = contrast(model, *ONE_TOKEN)
    of_source = trace(model, pair.source).logits[:, -1, :4].T.numpy()
    patched = raw(model, pair, "resid_pre", ("layer",))
    for layer in range(model.cfg.n_layers):
        np.testing.assert_allclose(patched[:, :, layer], of_source, rtol=0, atol=1e-10)


def test_all_heads_z_is_attn_out_and_q_with_k_is_pattern(model):
    pair = contrast(model, *ONE_TOKEN)
    for one, other in [
        ("z", "attn_out"),
        (("q", "k"), "pattern"),
        (("pattern", "v"), "z"),
        ("resid_post", "resid_post"),
    ]:
        np.testing.assert_allclose(
            raw(model, pair, one, ("layer",)), raw(model, pair, other, ("layer",)), atol=1e-10
        )


def test_resid_post_is_the_next_resid_pre(model):
    pair = contrast(model, *ONE_TOKEN)
    after = raw(model, pair, "resid_post", ("layer", "pos"))[:, :, :-1]
    before = raw(model, pair, "resid_pre", ("layer", "pos"))[:, :, 1:]
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-12)


def test_resid_pre_with_attn_out_is_not_resid_mid():
    """The former also changes what other positions read: a tempting identity that is false."""
    model = random_hooked(4)
    pair = contrast(model, "abcdefg", "abhdefg")
    both = raw(model, pair, ("resid_pre", "attn_out"), ("layer", "pos"))
    mid = raw(model, pair, "resid_mid", ("layer", "pos"))
    assert np.abs(both - mid).max() > 1e-3


def test_a_changed_token_alone_carries_the_source_and_what_is_before_it_nothing():
    model = random_hooked(7)
    pair = contrast(model, "abcdefg", "abhdefg")
    result = activation_patching(model, pair, logit_difference(model, "a", "b"), "resid_pre")
    np.testing.assert_allclose(result.fraction[0, 0, 2], 1, atol=1e-12)
    assert (result.raw[0, 0, [0, 1, 3, 4, 5, 6]] == result.base[0]).all()
    assert (result.raw[0, :, :2] == result.base[0]).all()


def test_cut_duality(model):
    """Denoising some positions of a layer is noising all others: the same run."""
    pair = contrast(model, "abcdefg", "hbcdkbc")
    layer = model.cfg.n_layers - 1
    chosen = [1, 4, 5]
    rest = [pos for pos in range(7) if pos not in chosen]
    ours = by_replay(model, pair, layer, chosen)
    dual = by_replay(model, pair.reversed(), layer, rest)
    np.testing.assert_allclose(ours, dual, rtol=0, atol=1e-12)


def by_replay(model, pair, layer, positions):
    source, base = trace(model, pair.source), trace(model, pair.base)
    sites = [Site("resid_pre", layer, pos=pos) for pos in positions]
    return replay(base, [{site: source[site] for site in sites}])[0].numpy()


@pytest.mark.parametrize("gauge", ["key bias", "value basis", "query and key basis"])
def test_gauges_change_nothing(gauge):
    model, twin = random_hooked(8), random_hooked(8)
    pair = contrast(model, *ONE_TOKEN)
    generator = torch.Generator().manual_seed(1)
    d_head = model.cfg.d_head
    with torch.no_grad():
        for block in twin.blocks:
            attn = block.attn
            R = torch.randn(3, d_head, d_head, generator=generator, dtype=torch.float64)
            if gauge == "key bias":
                attn.b_K += torch.randn(3, d_head, generator=generator, dtype=torch.float64)
            elif gauge == "value basis":
                attn.W_V.copy_(attn.W_V @ R)
                attn.b_V.copy_((attn.b_V[:, None] @ R)[:, 0])
                attn.W_O.copy_(R.inverse() @ attn.W_O)
            else:
                back = R.inverse().transpose(1, 2)
                attn.W_Q.copy_(attn.W_Q @ R)
                attn.b_Q.copy_((attn.b_Q[:, None] @ R)[:, 0])
                attn.W_K.copy_(attn.W_K @ back)
                attn.b_K.copy_((attn.b_K[:, None] @ back)[:, 0])
    for kinds in ("resid_pre", "z", "pattern", ("q", "k")):
        np.testing.assert_allclose(
            raw(model, pair, kinds, ("layer",)), raw(twin, pair, kinds, ("layer",)), atol=1e-10
        )


def test_permuting_heads_permutes_the_map():
    model, twin = random_hooked(9), random_hooked(9)
    pair = contrast(model, *ONE_TOKEN)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        for block in twin.blocks:
            for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
                weight = getattr(block.attn, name)
                weight.copy_(weight[order].clone())
    for kind in ("z", "k"):
        ours = raw(model, pair, kind, ("layer", "head"))
        np.testing.assert_allclose(
            raw(twin, pair, kind, ("layer", "head")), ours[..., order], rtol=0, atol=1e-10
        )


def test_pairs_of_a_batch_do_not_touch():
    model = random_hooked(10)
    together = raw(model, contrast(model, *ONE_TOKEN), "z", ("layer", "head", "pos"))
    for i in range(3):
        alone = contrast(model, ONE_TOKEN[0][i], ONE_TOKEN[1][i])
        np.testing.assert_allclose(
            raw(model, alone, "z", ("layer", "head", "pos"))[:, 0], together[:, i], atol=1e-12
        )


@pytest.mark.parametrize("limit", [{"batch_size": 1}, {"batch_size": 4}, {"max_memory": 1}])
def test_chunks_change_nothing(limit):
    model = random_hooked(11)
    pair = contrast(model, *ONE_TOKEN)
    metric = logit_difference(model, "a", "b")
    whole = activation_patching(model, pair, metric, "resid_pre")
    parts = activation_patching(model, pair, metric, "resid_pre", **limit)
    np.testing.assert_allclose(whole.raw, parts.raw, rtol=0, atol=1e-12)


def test_single_precision_stays_near_double():
    double, single = random_hooked(12), random_hooked(12, dtype=torch.float32)
    pair = contrast(double, *ONE_TOKEN)
    assert raw(single, pair, "resid_pre", ("layer", "pos")).dtype == np.float32
    np.testing.assert_allclose(
        raw(single, pair, "resid_pre", ("layer", "pos")),
        raw(double, pair, "resid_pre", ("layer", "pos")),
        rtol=0,
        atol=2e-5,
    )


def test_results_say_what_they_are():
    model = random_hooked(13)
    pair = contrast(model, "abcdefg", "abhdefg")
    result = activation_patching(
        model, pair, logit_difference(model, "a", "b"), "z", over={"pos": [6, 2], "layer": None}
    )
    assert result.raw.dims == ("batch", "pos", "layer")
    assert result.pos.to_numpy().tolist() == [6, 2]
    assert result.tokens.to_numpy().tolist() == ["g", "h"]
    assert result.raw.attrs["units"] == "logits"
    assert result.attrs["model"] == "random"
    assert result.attrs["prompt"] == "abhdefg"
    assert result.attrs["source_prompt"] == ["abcdefg"]
    assert result.attrs["settings"]["kinds"] == ("z",)


def test_progress_counts_the_runs_and_may_stop_the_sweep():
    model = random_hooked(14)
    pair = contrast(model, *ONE_TOKEN)
    metric = logit_difference(model, "a", "b")
    seen = []
    activation_patching(
        model, pair, metric, "z", batch_size=4, progress=lambda n, of: seen.append((n, of))
    )
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)
    assert seen[-1][0] == seen[-1][1]

    seen.clear()
    scored_twice = [kl_divergence("base", pos=pos) for pos in (-1, 3)]
    activation_patching(
        model, pair, scored_twice, "z", batch_size=4, progress=lambda n, of: seen.append((n, of))
    )
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)
    assert {of for _, of in seen} == {seen[-1][0]}

    def stop(n, of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        activation_patching(model, pair, metric, "z", progress=stop)
    assert not any(point.fwd_hooks or point.bwd_hooks for point in model.hook_dict.values())


@pytest.mark.parametrize(
    ("kinds", "options", "sentence"),
    [
        ("resid_pree", {}, "Site kind 'resid_pree' does not exist: choose one of embed"),
        ((), {}, "No site kind came"),
        ("z", {"over": ("layer", "neuron")}, "'neuron' was to be swept, but z can be swept over"),
        ("z", {"over": {"head": [3]}}, "'head' was to take 3, but it goes from 0 to 2"),
        ("z", {"over": {"layer": [-1]}}, "'layer' was to take -1"),
        ("z", {"over": {"layer": []}}, "'layer' was to take no index"),
        ("z", {"window": 3}, "window is 3 layers, but the model has 2"),
        ("z", {"window": 2, "over": ("head",)}, "window is 2 layers"),
        ("embed", {"over": ("layer",)}, "'layer' was to be swept, but embed can be swept over pos"),
        ("z", {"batch_size": -1}, "batch_size is -1, but"),
        ("z", {"batch_size": 0}, "batch_size is 0, but"),
    ],
)
def test_wrong_calls_are_refused_in_one_sentence(kinds, options, sentence):
    model = random_hooked(15)
    pair = contrast(model, "abcdefg", "abhdefg")
    with pytest.raises(InputError, match=sentence) as error:
        activation_patching(model, pair, logit_difference(model, "a", "b"), kinds, **options)
    assert "\n" not in str(error.value)


def test_a_sweep_without_a_metric_is_refused():
    model = random_hooked(15)
    pair = contrast(model, "abcdefg", "abhdefg")
    with pytest.raises(InputError, match="No metric came"):
        activation_patching(model, pair, [], "z")


def test_sites_that_a_model_lacks_are_refused():
    model = random_hooked(16, attn_only=True)
    pair = contrast(model, "abcdefg", "abhdefg")
    with pytest.raises(InputError, match="'mlp_out' does not exist in this model"):
        activation_patching(model, pair, logit_difference(model, "a", "b"), "mlp_out")
    assert "mlp_out" not in {site.kind for site in sites_of(model.cfg)}
