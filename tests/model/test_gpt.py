from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from random_gpt import VARIANTS, random_gpt, random_ids

from model import GPT, PRESETS, ModelError, next_token_loss, preset, to_hooked
from model.gpt import KeyValueCache, parameter_groups

COURSE_PARTS = {
    "embeddings": 16_512,
    "attention": 262_656,
    "MLPs": 526_848,
    "block LayerNorms": 2_048,
    "final LayerNorm and unembedding": 8_576,
}


def test_the_course_gpt_has_its_parameters_to_the_integer() -> None:
    assert parameter_groups(PRESETS["course"]) == COURSE_PARTS
    assert sum(COURSE_PARTS.values()) == 816_640
    assert sum(p.numel() for p in GPT(PRESETS["course"]).parameters()) == 816_640


@pytest.mark.parametrize(
    ("name", "total", "published"),
    [
        ("gpt2", 124_439_808, 124e6),
        ("gpt2-medium", 354_823_168, 350e6),
        ("gpt2-large", 774_030_080, 774e6),
        ("gpt2-xl", 1_557_611_200, 1558e6),
    ],
)
def test_gpt2_sizes_count_positions_and_the_tied_embedding_once(
    name: str, total: int, published: float
) -> None:
    assert sum(parameter_groups(PRESETS[name]).values()) == total
    assert total == pytest.approx(published, rel=0.02)


def test_nanogpt_reports_its_character_model_without_positions() -> None:
    config = PRESETS["shakespeare-char"]
    without_positions = sum(parameter_groups(config).values()) - config.n_ctx * config.d_model
    assert without_positions == pytest.approx(10.65e6, rel=0.001)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_the_counted_parts_are_all_of_the_model(settings: dict) -> None:
    gpt = random_gpt(**settings)
    counted = sum(parameter_groups(gpt.config).values())
    assert counted == sum(p.numel() for p in gpt.parameters())


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_nothing_reads_the_future(settings: dict) -> None:
    gpt = random_gpt(**settings)
    _check_causal(gpt, random_ids(), changed=4, d_vocab=11)
    _check_causal(to_hooked(gpt), random_ids(), changed=4, d_vocab=11)


def test_the_course_gpt_changed_at_position_20_is_bitwise_equal_before_it() -> None:
    torch.manual_seed(1)
    gpt = GPT(PRESETS["course"]).eval()
    ids = random_ids(pos=64, d_vocab=65)
    _check_causal(gpt, ids, changed=20, d_vocab=65)
    _check_causal(to_hooked(gpt), ids, changed=20, d_vocab=65)


def _check_causal(model, ids: torch.Tensor, changed: int, d_vocab: int) -> None:
    other = ids.clone()
    other[:, changed] = (ids[:, changed] + 1) % d_vocab
    with torch.no_grad():
        before, after = model(ids), model(other)
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert (before[:, changed:] != after[:, changed:]).any(dim=-1).all()


@pytest.mark.parametrize(("name", "low", "high"), [("course", 4.0, 4.5), ("nano", 4.12, 4.23)])
def test_the_initial_loss_is_near_that_of_the_uniform_guess(
    name: str, low: float, high: float
) -> None:
    torch.manual_seed(2)
    config = (
        preset("course")
        if name == "course"
        else preset("shakespeare-char", n_layers=2, d_model=96, n_ctx=64)
    )
    ids = random_ids(batch=16, pos=64, d_vocab=65)
    with torch.no_grad():
        loss = next_token_loss(GPT(config).eval()(ids), random_ids(9, 16, 64, 65))
    assert low < loss.item() < high
    assert math.log(65) == pytest.approx(4.1744, abs=1e-4)


def test_gpt2_initialisation_has_the_published_spreads() -> None:
    torch.manual_seed(3)
    gpt = GPT(preset("gpt2", n_layers=2, d_vocab=300, n_ctx=64))
    block = gpt.layers[0]
    assert block.attn.qkv_proj.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.attn.out_proj.weight.std().item() == pytest.approx(0.02 / 2, rel=0.02)
    assert not block.attn.qkv_proj.bias.any()


def test_fifty_steps_memorise_a_batch() -> None:
    torch.manual_seed(4)
    gpt = GPT(PRESETS["course"])
    ids = random_ids(batch=2, pos=17, d_vocab=65)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
    losses = []
    for _ in range(51):
        loss = next_token_loss(gpt(ids[:, :-1]), ids[:, 1:])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_the_fused_attention_is_the_masked_softmax(settings: dict) -> None:
    gpt = random_gpt(**settings)
    attn, config = gpt.layers[0].attn, gpt.config
    x = torch.randn(3, 7, 15, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    q, k, v = attn.qkv_proj(x).chunk(3, dim=-1)
    z = torch.zeros_like(x)
    for head in range(3):
        mine = slice(5 * head, 5 * head + 5)
        for row in range(3):
            for i in range(7):
                scores = torch.stack([q[row, i, mine] @ k[row, j, mine] for j in range(i + 1)])
                pattern = torch.softmax(scores / config.attn_scale, dim=0)
                z[row, i, mine] = pattern @ v[row, : i + 1, mine]
    expected = z @ attn.out_proj.weight.T
    if attn.out_proj.bias is not None:
        expected = expected + attn.out_proj.bias
    torch.testing.assert_close(attn(x)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_a_cache_gives_the_logits_of_the_whole_sequence(training: bool) -> None:
    gpt = random_gpt().train(training)
    ids = random_ids()
    for split in range(1, 7):
        cache = KeyValueCache()
        parts = [gpt(ids[:, :split], cache), gpt(ids[:, split:], cache)]
        torch.testing.assert_close(torch.cat(parts, dim=1), gpt(ids), rtol=0, atol=1e-12)


def test_ignored_targets_take_no_part_in_the_loss() -> None:
    gpt, ids = random_gpt(), random_ids()
    targets = random_ids(8)
    logits = gpt(ids)
    targets[0, 2:5] = targets[2, 6] = -1
    kept = targets != -1
    expected = -logits.log_softmax(-1)[kept].gather(-1, targets[kept][:, None]).mean()
    torch.testing.assert_close(next_token_loss(logits, targets), expected)


def test_a_longer_context_is_refused() -> None:
    gpt = random_gpt()
    with pytest.raises(ModelError, match="has 8 tokens and the model's context is n_ctx=7"):
        gpt(random_ids(pos=8))
    cache = KeyValueCache()
    gpt(random_ids(pos=6), cache)
    with pytest.raises(ModelError, match="has 8 tokens"):
        gpt(random_ids(pos=2), cache)


@given(st.floats(-8, 8), st.floats(0.01, 100), st.integers(0, 2**31))
def test_layer_norm_lands_inside_the_sphere_by_the_formula(
    log_scale: float, gain: float, seed: int
) -> None:
    d, eps = 15, 1e-5
    generator = torch.Generator().manual_seed(seed)
    u = 10**log_scale * torch.randn(3, d, generator=generator, dtype=torch.float64)
    normalized = F.layer_norm(u, (d,), eps=eps)
    sigma2 = u.var(dim=-1, unbiased=False)
    radius = math.sqrt(d) * (sigma2 / (sigma2 + eps)).sqrt()
    torch.testing.assert_close(normalized.norm(dim=-1), radius, rtol=1e-10, atol=0)
    assert normalized.mean(dim=-1).abs().max() < 1e-12
    # scaling the input moves the point along its ray only, by exactly what epsilon leaves
    scaled = F.layer_norm(gain * u, (d,), eps=eps)
    ray = gain * ((sigma2 + eps) / (gain**2 * sigma2 + eps)).sqrt()
    torch.testing.assert_close(scaled, ray[:, None] * normalized, rtol=1e-9, atol=1e-14)


def test_layer_norm_ignores_scale_when_variance_is_healthy() -> None:
    u = torch.randn(3, 15, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    normalized = F.layer_norm(u, (15,))
    torch.testing.assert_close(F.layer_norm(1e3 * u, (15,)), normalized, rtol=2e-5, atol=2e-5)
    short = F.layer_norm(1e-4 * u, (15,)).norm(dim=-1)
    assert (short < 0.05 * math.sqrt(15)).all()


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_training_computes_the_same_function_and_gradients(settings: dict) -> None:
    gpt = random_gpt(**(settings | {"dropout": 0.0}))
    ids = random_ids()
    found = []
    for mode in (True, False):
        logits = gpt.train(mode)(ids)
        next_token_loss(logits[:, :-1], ids[:, 1:]).backward()
        found.append([logits.detach(), *(p.grad for p in gpt.parameters())])
        gpt.zero_grad()
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_training_keeps_the_stream_in_its_precision() -> None:
    gpt = random_gpt(dtype=torch.float32).train()
    streams: list[torch.dtype] = []
    for block in gpt.layers:
        block.register_forward_hook(lambda module, given, out: streams.append(out[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        gpt(random_ids())
    assert streams == [torch.float32] * 2
