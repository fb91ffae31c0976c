"""Folding changes the parts and not the function."""

from __future__ import annotations

import itertools

import pytest
import torch
from random_gpt import VARIANTS, random_gpt, random_ids

from model import ModelError, prove, to_hooked
from model.equivalence import gpt_sites, hooked_sites
from model.folding import LOG_PROBS, MAY_CHANGE, fold, prove_folding

IDS = {"random ids": random_ids()}
CHOICES = [
    *itertools.combinations(MAY_CHANGE, 1),
    ("fold_value_biases", "fold_ln"),
    ("center_unembed", "fold_ln"),
    tuple(MAY_CHANGE),
]


@pytest.mark.parametrize("options", CHOICES, ids="+".join)
def test_what_must_stay_equal_stays_and_what_may_change_changes(options: tuple[str, ...]) -> None:
    gpt = random_gpt(unembed_bias=True)
    folded = fold(gpt, options)
    differences = prove_folding(gpt, folded, options, IDS)
    assert (differences["float64"] <= differences["float64_allowed"]).all()
    assert (differences["float64"] < 1e-12).all()
    may_change = frozenset().union(*(MAY_CHANGE[o] for o in options))
    before, after = gpt_sites(gpt, random_ids()), gpt_sites(folded, random_ids())
    for site, value in before.items():
        last = site.rsplit(".", 1)[-1]
        if last not in may_change and site not in may_change:
            assert site in differences.index
        elif not site.startswith("blocks.0.hook_resid_pre"):
            assert (value - after[site]).abs().max() > 1e-3, site
    assert (LOG_PROBS in differences.index) == ("center_unembed" in options)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_folds_to_a_model_that_is_proven_again(settings: dict) -> None:
    gpt = random_gpt(**settings)
    kept = {name: tensor.clone() for name, tensor in gpt.state_dict().items()}
    folded = fold(gpt, MAY_CHANGE)
    differences = prove_folding(gpt, folded, MAY_CHANGE, IDS)
    assert (differences["float64"] < 1e-12).all()
    assert prove(folded, IDS).holds
    for name, tensor in gpt.state_dict().items():
        assert torch.equal(tensor, kept[name])


def test_what_is_folded_is_gone() -> None:
    folded = fold(random_gpt(tied_embeddings=True), MAY_CHANGE)
    for block in folded.layers:
        assert torch.equal(block.ln1.weight, torch.ones(15, dtype=torch.float64))
        assert not block.ln1.bias.any()
        assert not block.attn.qkv_proj.bias[30:].any()
        assert block.attn.qkv_proj.weight.mean(1).abs().max() < 1e-15
        assert block.attn.out_proj.weight.mean(0).abs().max() < 1e-15
    assert folded.embed.weight.mean(1).abs().max() < 1e-15
    assert folded.unembed.weight.mean(0).abs().max() < 1e-15
    assert folded.unembed.bias.mean().abs() < 1e-15


def test_transformer_lens_folds_to_the_same_weights() -> None:
    gpt = random_gpt(unembed_bias=True)
    theirs = to_hooked(gpt)
    theirs.process_weights_()  # everything, through float32
    ours = to_hooked(fold(gpt, MAY_CHANGE)).state_dict()
    for name, tensor in theirs.state_dict().items():
        if not name.endswith(("mask", "IGNORE")):
            torch.testing.assert_close(ours[name], tensor.double(), rtol=0, atol=2e-5)


def test_a_wrong_fold_does_not_pass() -> None:
    gpt = random_gpt()
    folded = fold(gpt, ["fold_ln"])
    with torch.no_grad():
        folded.layers[1].mlp.in_proj.bias[3] += 1e-8
    differences = prove_folding(gpt, folded, ["fold_ln"], IDS)
    off = differences.index[differences["float64"] > differences["float64_allowed"]]
    assert off[0] == "blocks.1.mlp.hook_pre"


def test_a_folded_model_is_one_that_transformer_lens_runs() -> None:
    folded = fold(random_gpt(), MAY_CHANGE)
    hooked = hooked_sites(to_hooked(folded), random_ids())
    normalized, entered = hooked["ln_final.hook_normalized"], hooked["unembed.hook_in"]
    assert torch.equal(normalized, entered)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ModelError, match="there is no folding 'fold_all': use fold_ln, "):
        fold(random_gpt(), ["fold_all"])
