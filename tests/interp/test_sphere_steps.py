"""LayerNorm on one vector: each step is the model's own, and scaling turns nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_models import random_hooked, random_ids

from interp import InputError, layernorm_steps, sphere_radius
from interp.norms import state_names

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(params=[{}, {"attn_only": True}], scope="module")
def model(request):
    return random_hooked(37, **request.param)


def test_every_step_is_the_models_own(model):
    ids = random_ids(2, batch=2)
    _, cache = model.run_with_cache(ids)
    steps = 1 if model.cfg.attn_only else 2
    for i, state in enumerate(state_names(model.cfg)):
        got = layernorm_steps(model, ids, state, pos=3)
        value = torch.tensor(got["value"].to_numpy())
        last = i == len(state_names(model.cfg)) - 1
        block, name = (
            (model, "ln_final") if last else (model.blocks[i // steps], f"ln{i % steps + 1}")
        )
        norm = getattr(block, name)
        where = "ln_final" if last else f"blocks.{i // steps}.{name}"
        scaled = cache[f"{where}.hook_normalized"][:, 3]
        torch.testing.assert_close(value[2], scaled, **CLOSE)
        torch.testing.assert_close(value[3], scaled * norm.w + norm.b, **CLOSE)
        torch.testing.assert_close(value[1], scaled * cache[f"{where}.hook_scale"][:, 3], **CLOSE)
        mean = value[0].mean(-1, keepdim=True)
        torch.testing.assert_close(value[0] - mean, value[1], **CLOSE)


def test_lengths_means_and_turns_follow_the_law(model):
    got = layernorm_steps(model, "abcda", "1_pre", pos=-2).isel(batch=0)
    radius = sphere_radius(model, "abcda")["radius"].sel(state="1_pre")[0, 3]
    assert float(got["length"].sel(step="scaled")) == pytest.approx(float(radius), abs=1e-10)
    assert abs(float(got["mean"].sel(step="mean removed"))) < 1e-12
    assert float(got["turned"].sel(step="scaled")) == pytest.approx(0, abs=1e-7)
    assert np.isnan(got["turned"].sel(step="stream"))
    for step, before in (("mean removed", 0), ("gain and bias", 2)):
        a, b = got["value"].isel(step=before), got["value"].sel(step=step)
        cosine = float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))
        assert np.cos(float(got["turned"].sel(step=step))) == pytest.approx(cosine, abs=1e-10)


def test_bad_requests_are_refused(model):
    for wrong in (
        lambda: layernorm_steps(model, "abc", "9_pre"),
        lambda: layernorm_steps(model, "abc", "0_pre", pos=3),
        lambda: layernorm_steps(model, "", "0_pre"),
        lambda: layernorm_steps(random_hooked(normalization_type=None), "abc", "0_pre"),
    ):
        with pytest.raises(InputError):
            wrong()
