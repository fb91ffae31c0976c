"""Products in bfloat16: chosen where they pay, kept with the run, and nowhere else."""

from __future__ import annotations

import csv

import pytest
import tiny_training as tiny
import torch

from model.checkpoint import Run, load_gpt
from model.evaluation import validation_loss
from model.gpt import GPT, KeyValueCache
from model.muon import Muon, orthogonalise
from model.optimizers import make_optimizers
from model.precision import LEAST_WIDTH, settled_precision
from model.training import resume, train

WIDE = tiny.config(d_model=LEAST_WIDTH, n_heads=4)
NARROW = tiny.config(d_model=LEAST_WIDTH - 4, n_heads=4)


@pytest.mark.parametrize(
    ("config", "device", "has_units", "settled"),
    [
        (WIDE, "cpu", True, "bf16"),
        (WIDE, "cpu", False, "no"),
        (NARROW, "cpu", True, "no"),
        (NARROW, "cuda", True, "bf16"),
        (WIDE, "cuda", False, "no"),
        (WIDE, "mps", True, "no"),
    ],
)
def test_auto_is_bfloat16_where_it_pays(monkeypatch, config, device, has_units, settled):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_units)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_units)
    assert settled_precision("auto", config, torch.device(device)) == settled
    for said in ("no", "bf16"):
        assert settled_precision(said, config, torch.device(device)) == said


def test_a_torch_that_cannot_tell_trains_in_float32(monkeypatch):
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert settled_precision("auto", WIDE, torch.device("cpu")) == "no"


@pytest.mark.parametrize("has_units", [True, False])
def test_a_run_says_what_auto_came_to(tmp_path, monkeypatch, has_units):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_units)
    out = tmp_path / "run"
    info = train(WIDE, tiny.corpus(tmp_path), tiny.recipe(), out, on_step=tiny.stop_at(3))
    assert info["recipe"]["precision"] == ("bf16" if has_units else "no")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: not has_units)
    assert resume(out)["recipe"] == info["recipe"]


@pytest.fixture(scope="module")
def lower(tmp_path_factory):
    """The same short run in float32 and in bfloat16."""
    folder = tmp_path_factory.mktemp("precision")
    corpus, config = tiny.corpus(folder), tiny.config()
    for precision in ("no", "bf16"):
        train(config, corpus, tiny.recipe(precision=precision), folder / precision)
    return folder, corpus


def losses(run):
    with (run / "history.csv").open() as file:
        return [float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]]


def test_bfloat16_learns_the_same_and_not_bit_for_bit(lower):
    folder, _ = lower
    exact, rounded = losses(folder / "no"), losses(folder / "bf16")
    assert rounded == pytest.approx(exact, abs=0.03)
    assert rounded[-1] != exact[-1]


def test_weights_and_losses_stay_in_float32(lower):
    folder, corpus = lower
    gpt = load_gpt(folder / "bf16")
    assert {p.dtype for p in gpt.parameters()} == {torch.float32}
    assert Run.open(folder / "bf16").info["val_loss"] == validation_loss(gpt, corpus)


def test_a_run_in_bfloat16_resumes_bit_for_bit(lower, tmp_path):
    folder, corpus = lower
    out = tmp_path / "run"
    recipe = tiny.recipe(precision="bf16")
    train(tiny.config(), corpus, recipe, out, on_step=tiny.stop_at(9))
    resume(out)
    final = [Run.open(run).weights().sha256 for run in (out, folder / "bf16")]
    assert final[0] == final[1]


@pytest.mark.parametrize("long", [512, 4])
@pytest.mark.parametrize("read_before", [0, 4])
def test_attention_in_bfloat16_is_that_of_float32_rounded(monkeypatch, long, read_before):
    """Whichever way it goes, and with keys read before."""
    monkeypatch.setattr("model.gpt.LONG", long)
    torch.manual_seed(0)
    gpt = GPT(tiny.config()).eval()
    ids = torch.randint(12, (2, 7))
    exact = gpt(ids)[:, read_before:]
    with torch.autocast("cpu", torch.bfloat16):
        cache = KeyValueCache()
        if read_before:
            gpt(ids[:, :read_before], cache)
        rounded = gpt(ids[:, read_before:], cache)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=0.02)
    assert not torch.equal(rounded.float(), exact)


def test_dropout_reaches_the_pattern_in_bfloat16():
    gpt = GPT(tiny.config(dropout=0.5)).train()
    gpt.embed_dropout.p = gpt.layers[0].attn.out_dropout.p = 0.0
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        with torch.autocast("cpu", torch.bfloat16):
            found.append(gpt.layers[0].attn(torch.ones(1, 7, 15))[0])
    assert not torch.equal(*found)


def test_muon_orthogonalises_in_what_products_are_in():
    matrices = torch.randn(3, 13, 7, generator=torch.Generator().manual_seed(0))
    exact, rounded = orthogonalise(matrices), orthogonalise(matrices, torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=0.03)
    for precision, dtype in (("no", torch.float32), ("bf16", torch.bfloat16)):
        muon, _ = make_optimizers(GPT(tiny.config()), tiny.recipe(precision=precision))
        assert isinstance(muon, Muon)
        assert muon.dtype == dtype
