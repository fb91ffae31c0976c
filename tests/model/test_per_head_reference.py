"""The plain per-head GPT and the fused one are the same function and have the same gradients."""

from __future__ import annotations

import pytest
import torch
from per_head_reference import with_the_weights_of
from random_gpt import random_gpt, random_ids

from model.gpt import next_token_loss


@pytest.mark.parametrize("qkv_bias", [False, True])
def test_the_fused_gpt_is_the_plain_one(qkv_bias):
    gpt = random_gpt(qkv_bias=qkv_bias)
    plain, ids = with_the_weights_of(gpt), random_ids()
    torch.testing.assert_close(gpt(ids), plain(ids), rtol=1e-10, atol=1e-10)
    gradients = []
    for model in (gpt, plain):
        model.requires_grad_(True)
        next_token_loss(model(ids)[:, :-1], ids[:, 1:]).backward()
        gradients.append(model.embed.weight.grad)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
