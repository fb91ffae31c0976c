"""The analysis of variance adds up; effective context ends where the context does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_models import random_hooked

from interp import InputError, effective_context, position_token_split
from interp.norms import state_names

TEXT = torch.randint(0, 11, (170,), generator=torch.Generator().manual_seed(8))
ROWS = TEXT[:168].view(24, 7)


@pytest.fixture(scope="module", params=["LN", "attention only"])
def model(request):
    return random_hooked(23, attn_only=request.param != "LN")


def stream(model) -> torch.Tensor:
    """[state, window, pos, d_model] from TransformerLens' cache, without the mean."""
    _, cache = model.run_with_cache(ROWS)
    states = cache.accumulated_resid(apply_ln=False, incl_mid=not model.cfg.attn_only)
    return states - states.mean(-1, keepdim=True)


def by_least_squares(h: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
    """The sum of squares, about the mean, that dummy variables of these factors explain."""
    design = torch.cat([torch.nn.functional.one_hot(f.flatten()).double() for f in factors], 1)
    flat = h.flatten(0, 1)
    fitted = design @ torch.linalg.pinv(design) @ flat
    return (fitted - flat.mean(0)).square().sum()


@pytest.mark.parametrize("batch_size", [5, 24])
def test_shares_are_those_of_the_definition(model, batch_size):
    got = position_token_split(model, TEXT, batch_size=batch_size)
    assert list(got["state"].to_numpy()) == state_names(model.cfg)
    place = torch.arange(7).expand(24, 7)
    for state, h in zip(got["state"], stream(model), strict=True):
        here = got.sel(state=state)
        mu = h.mean((0, 1))
        pos, ctx = h.mean(0) - mu, h.mean(1) - mu
        resid = h - mu - pos - ctx[:, None]
        total = (h - mu).square().sum()
        want = {
            "position": 24 * pos.square().sum(),
            "context": 7 * ctx.square().sum(),
            "residual": resid.square().sum(),
            "token": by_least_squares(h, ROWS),
        }
        both = by_least_squares(h, place, ROWS)
        want["token_after_position"] = both - want["position"]
        want["position_after_token"] = both - want["token"]
        for name, part in want.items():
            assert float(here[name]) == pytest.approx(float(part / total), abs=1e-10)
        assert float(here["total"]) == pytest.approx(float(total / 168), rel=1e-10)
        cosine = torch.nn.functional.normalize(pos, dim=1) @ torch.nn.functional.normalize(ctx).T
        assert float(here["max_cosine"]) == pytest.approx(float(cosine.abs().max()), abs=1e-10)
    parts = got["position"] + got["context"] + got["residual"]
    np.testing.assert_allclose(parts, 1, atol=1e-10)


def test_the_first_state_is_token_and_position_and_nothing_else(model):
    """embed + pos_embed: additive in the two, so together they explain it all."""
    got = position_token_split(model, TEXT).isel(state=0)
    assert float(got["position"] + got["token_after_position"]) == pytest.approx(1, abs=1e-10)


def test_planted_streams_give_their_shares():
    model = random_hooked(23)
    model.embed.W_E.data.zero_()
    model.pos_embed.W_pos.data.zero_()
    flat = torch.ones(7, dtype=torch.double)
    model.pos_embed.W_pos.data[:, 0] = torch.arange(7) - 3.0 * flat
    got = position_token_split(model, TEXT).isel(state=0)
    assert float(got["position"]) == pytest.approx(1)
    assert int(got["position_dims"]) == 1
    assert float(got["token_after_position"]) == pytest.approx(0, abs=1e-10)
    model.pos_embed.W_pos.data[:, 1] = torch.tensor([1.0, -1, 1, 0, 1, -1, 1])
    assert int(position_token_split(model, TEXT).isel(state=0)["position_dims"]) == 2


def test_context_is_resampled_beyond_what_is_kept(model):
    got = effective_context(model, TEXT, batch_size=5)
    assert got["kept"].to_numpy().tolist() == [1, 2, 4, 7]
    assert float(got["kl"].sel(kept=7)) == pytest.approx(0, abs=1e-12)
    assert float(got["top1_agreement"].sel(kept=7)) == 1
    whole = model(ROWS)[:, -1].log_softmax(-1)
    mixed = ROWS.roll(-1, 0).clone()
    mixed[:, -2:] = ROWS[:, -2:]
    other = model(mixed)[:, -1].log_softmax(-1)
    want = (whole.exp() * (whole - other)).sum(-1).mean()
    assert float(got["kl"].sel(kept=2)) == pytest.approx(float(want), abs=1e-10)
    want = (whole.argmax(-1) == other.argmax(-1)).double().mean()
    assert float(got["top1_agreement"].sel(kept=2)) == pytest.approx(float(want))


def test_a_model_that_reads_one_token_needs_one():
    model = random_hooked(23)
    for block in model.blocks:
        block.attn.W_O.data.zero_()
    got = effective_context(model, TEXT)
    assert float(abs(got["kl"]).max()) < 1e-12


def test_bad_requests_are_refused(model):
    for wrong in (
        lambda: effective_context(model, TEXT, kept=[0]),
        lambda: effective_context(model, TEXT, kept=[8]),
        lambda: effective_context(model, TEXT, kept=[]),
        lambda: effective_context(model, TEXT[:7]),
        lambda: position_token_split(model, TEXT[:6]),
    ):
        with pytest.raises(InputError):
            wrong()
