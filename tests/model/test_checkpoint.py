from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from random_gpt import VARIANTS, random_gpt
from safetensors.torch import load_file, save_file

from model import ModelError, Run, character_tokenizer, load, load_gpt, save_weights
from model.checkpoint import read_weights, snapshot_path, write_description
from model.files import write_atomically, write_json


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    write_description(path, random_gpt().config, character_tokenizer("abcdefghijk"))
    for step in (0, 8):
        save_weights(
            snapshot_path(path, step),
            random_gpt(step, torch.float32),
            step=step,
            dtype=torch.float16,
        )
    save_weights(path / "model.safetensors", random_gpt(8, torch.float32), step=8)
    return path


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_weights_come_back_to_the_bit(settings: dict, tmp_path: Path) -> None:
    gpt = random_gpt(**settings)
    save_weights(tmp_path / "w.safetensors", gpt, step=3)
    again = load_gpt(tmp_path / "w.safetensors", dtype=torch.float64)
    assert again.config == gpt.config
    assert not again.training
    assert again.state_dict().keys() == gpt.state_dict().keys()
    for name, tensor in gpt.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    tied = again.unembed.weight is again.embed.weight
    assert tied == gpt.config.tied_embeddings


def test_a_run_opens_at_any_of_its_steps(run: Path) -> None:
    opened = Run.open(run)
    assert opened.name == "run"
    assert opened.steps == [0, 8]
    for step in (0, 8):
        # half precision in the snapshot of step 8, full in the final file: the better one counts
        expected = random_gpt(step, torch.float32).embed.weight
        assert torch.equal(load_gpt(run, step).embed.weight, expected.half().float()) == (step == 0)
    assert torch.equal(load_gpt(run).embed.weight, random_gpt(8, torch.float32).embed.weight)


def test_a_run_that_is_not_finished_opens_at_its_newest_snapshot(run: Path) -> None:
    (run / "model.safetensors").unlink()
    assert Run.open(run).steps == [0, 8]
    assert Run.open(run).weights().step == 8


def test_a_snapshot_can_be_read_alone(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.safetensors"
    shutil.copy(snapshot_path(run, 0), alone)
    assert load_gpt(alone).config == random_gpt().config
    assert load(alone).cfg.checkpoint_value == 0


def test_the_hooked_transformer_knows_where_it_comes_from(run: Path) -> None:
    model = load(run, 0)
    assert model.cfg.model_name == "run"
    assert (model.cfg.checkpoint_label_type, model.cfg.checkpoint_value) == ("step", 0)
    assert model.checkpoint_hash == read_weights(snapshot_path(run, 0)).sha256
    assert model.to_str_tokens("abba") == ["a", "b", "b", "a"]


def test_what_is_no_run_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no run at"):
        Run.open(tmp_path / "none")
    with pytest.raises(ModelError, match="is a file, not a run"):
        Run.open(run / "config.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"is not a run: it needs config\.json"):
        Run.open(tmp_path / "empty")
    with pytest.raises(ModelError, match="has no step 5: it has 0, 8"):
        load_gpt(run, 5)


def test_one_altered_weight_is_noticed(run: Path) -> None:
    path = run / "model.safetensors"
    weights = read_weights(path)
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    tensors["blocks.1.attn.out_proj.weight"][3, 4] += 1e-6
    save_file(tensors, path, _metadata(path) | {"sha256": weights.sha256})
    with pytest.raises(ModelError, match="not those that were saved"):
        load_gpt(run)


@pytest.mark.parametrize(
    ("field", "value"), [("act_fn", "relu"), ("eps", 1e-6), ("attn_scale", 2.0), ("n_heads", 5)]
)
def test_an_altered_setting_is_noticed(run: Path, field: str, value: object) -> None:
    config = json.loads((run / "config.json").read_text())
    write_json(run / "config.json", config | {field: value})
    with pytest.raises(ModelError, match=rf"says {field}=.* but the weights were written with"):
        load_gpt(run)


def test_tensors_that_do_not_fit_are_named(run: Path) -> None:
    path = run / "model.safetensors"
    whole = load_file(path)
    without = {k: v for k, v in whole.items() if k != "blocks.0.ln1.bias"}
    for tensors, said in (
        (without, r"blocks.0.ln1.bias in .* has shape none, .* asks for \[15\]"),
        (whole | {"extra": torch.zeros(2)}, r"extra in .* has shape \[2\], .* asks for none"),
        (whole | {"embed.weight": torch.zeros(11, 14)}, r"embed.weight .* \[11, 14\]"),
    ):
        save_file(tensors, path, _metadata(snapshot_path(run, 8)))
        with pytest.raises(ModelError, match=said):
            load_gpt(run)


def test_weights_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    gpt = random_gpt()
    with torch.no_grad():
        gpt.ln_final.weight[2] = torch.nan
    save_weights(tmp_path / "w.safetensors", gpt, step=0)
    with pytest.raises(ModelError, match=r"ln_final\.weight in .* holds NaN"):
        load_gpt(tmp_path / "w.safetensors")


@pytest.mark.parametrize("kept", [0, 4, 60, 1000, -1])
def test_a_truncated_file_is_refused(run: Path, kept: int) -> None:
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match="cannot be read as weights"):
        load_gpt(path)


@pytest.mark.parametrize(
    "content",
    [
        b"First Citizen:\n" * 40,
        b"PK\x03\x04" + bytes(200),
        struct.pack("<Q", 10 * 2**30) + b"{}",
        struct.pack("<Q", 64)
        + b'{"a":{"dtype":"F32","shape":[9999999999],"data_offsets":[0,8]}}'.ljust(64),
    ],
    ids=["text", "zip", "claims a 10 GB header", "claims a 40 GB tensor"],
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read as weights"):
        load_gpt(path)


def test_someone_elses_safetensors_are_refused(tmp_path: Path) -> None:
    save_file({"wte.weight": torch.zeros(3, 4)}, tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match="was not written by `orrery train`"):
        load_gpt(tmp_path / "w.safetensors")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with write_atomically(path) as beside:
            beside.write_text("ne")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_said_in_one_sentence() -> None:
    with pytest.raises(ModelError, match="cannot be written"):
        save_weights("/dev/null/w.safetensors", random_gpt(), step=0)


def _metadata(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.metadata()
