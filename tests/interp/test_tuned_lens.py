"""The tuned lens starts as the logit lens, ends no worse, and leaves the last state alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from agreement import CLOSE
from random_models import random_hooked, random_ids

from interp import InputError, Translators, fit_tuned_lens, logit_lens, tuned_lens
from interp.tuned_lens import identity_translators


@pytest.fixture(scope="module", params=["LN", "attention only"])
def model(request):
    return random_hooked(29, attn_only=request.param != "LN")


def random_translators(model, seed: int = 0) -> Translators:
    generator = torch.Generator().manual_seed(seed)
    start = identity_translators(model)
    return Translators(
        torch.randn(start.W.shape, generator=generator, dtype=torch.double) / 4,
        torch.randn(start.b.shape, generator=generator, dtype=torch.double),
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_the_identity_is_the_logit_lens(model, batch):
    ids = random_ids(1, batch=batch)
    got = tuned_lens(model, ids, identity_translators(model), logits=True)
    want = logit_lens(model, ids, logits=True)
    for name in want.data_vars:
        np.testing.assert_array_equal(got[name], want[name])


def test_states_are_read_after_their_own_affine_map(model):
    ids = random_ids(1, batch=3)
    translators = random_translators(model)
    got = tuned_lens(model, ids, translators, logits=True)["logits"].to_numpy()
    _, cache = model.run_with_cache(ids)
    states = cache.accumulated_resid(apply_ln=False, incl_mid=not model.cfg.attn_only)
    for i, x in enumerate(states[:-1]):
        want = model.unembed(model.ln_final(x + x @ translators.W[i] + translators.b[i]))
        torch.testing.assert_close(torch.tensor(got[i]), want, **CLOSE)
    torch.testing.assert_close(torch.tensor(got[-1]), model(ids), **CLOSE)


def test_fitting_lowers_the_divergence_on_text_it_has_not_seen():
    model = random_hooked(29)
    text = random_ids(2, n_pos=2100)[0]
    seen = []
    translators = fit_tuned_lens(
        model, text, steps=60, batch_size=8, lr=0.03, progress=lambda *at: seen.append(at)
    )
    assert seen[-1] == (60, 60)
    held_out = random_ids(3, batch=40)
    before = logit_lens(model, held_out)["kl_to_final"].mean(["batch", "pos"])
    after = tuned_lens(model, held_out, translators)["kl_to_final"].mean(["batch", "pos"])
    assert (after[:-1] < before[:-1]).all()
    assert float(after[-1]) == pytest.approx(0, abs=1e-12)
    again = fit_tuned_lens(model, text, steps=3, seed=4)
    assert torch.equal(again.W, fit_tuned_lens(model, text, steps=3, seed=4).W)
    assert not torch.equal(again.W, fit_tuned_lens(model, text, steps=3, seed=5).W)


def test_translators_survive_a_file(model, tmp_path):
    translators = random_translators(model)
    translators.save(tmp_path / "tuned_lens.safetensors")
    again = Translators.load(tmp_path / "tuned_lens.safetensors")
    assert torch.equal(again.W, translators.W)
    assert torch.equal(again.b, translators.b)
    (tmp_path / "broken").write_text("no tensors")
    for path in (tmp_path / "broken", tmp_path / "missing"):
        with pytest.raises(InputError, match="cannot be read"):
            Translators.load(path)


def test_bad_requests_are_refused(model):
    text = random_ids(2, n_pos=70)[0]
    other = random_translators(random_hooked(n_layers=3))
    for wrong in (
        lambda: tuned_lens(model, "abc", other),
        lambda: tuned_lens(model, "abc", identity_translators(model), top=0),
        lambda: fit_tuned_lens(model, text, steps=0),
        lambda: fit_tuned_lens(model, text, lr=0.0),
        lambda: fit_tuned_lens(model, text[:6]),
    ):
        with pytest.raises(InputError):
            wrong()
