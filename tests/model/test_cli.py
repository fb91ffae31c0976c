"""The command line says what is wrong in one sentence, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from random_gpt import random_gpt

from model import character_tokenizer, preset, save_weights
from model.checkpoint import write_description
from model.cli import COMMANDS, main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "tiny"
    gpt = random_gpt(dtype=torch.float32)
    write_description(path, gpt.config, character_tokenizer("abcdefghijk"))
    save_weights(path / "model.safetensors", gpt, step=9)
    return path


def orrery(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, str]:
    try:
        code = main([str(argument) for argument in argv])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_prompt_is_continued(run: Path, capsys) -> None:
    argv = ("sample", run, "--prompt", "abc", "--n-tokens", "12", "--seed", "1")
    code, out, err = orrery(capsys, *argv)
    assert (code, err) == (0, "")
    assert out.startswith("abc")
    assert len(out) == 16
    assert orrery(capsys, *argv)[1] == out
    two = orrery(capsys, *argv, "--n-samples", "2")[1]
    assert two.count("\n---\n") == 1


def test_a_sound_run_verifies_and_prints_what_was_assumed(run: Path, capsys) -> None:
    code, out, err = orrery(capsys, "verify", run)
    assert (code, err) == (0, "")
    for said in ("LayerNorm epsilon", "scores divided by", "hook_attn_scores", "equal: all"):
        assert said in out


def test_a_site_that_is_off_fails_the_verification(run: Path, capsys, monkeypatch) -> None:
    from model import hooked

    convert = hooked.to_hooked

    def altered(gpt, *args, **kwargs):
        model = convert(gpt, *args, **kwargs)
        weight = model.blocks[1].attn.W_V
        weight.data = weight.data.clone()  # the proof's own model looks into the GPT's memory
        weight.data[0, 1, 2] += 1e-4
        return model

    monkeypatch.setattr(hooked, "to_hooked", altered)
    code, out, _ = orrery(capsys, "verify", run)
    assert code == 1
    assert "NOT equal" in out
    assert "the first is blocks.1.attn.hook_v" in out


def test_inspect_shows_shapes_parameters_and_a_sample(run: Path, capsys) -> None:
    code, out, err = orrery(capsys, "inspect", run, "--batch-size", "3")
    assert (code, err) == (0, "")
    for said in ("blocks.1.attn", "(3, 7, 15)", "(3, 7, 11)", "MLPs", "100.00%", "sample:"):
        assert said in out
    total = sum(p.numel() for p in random_gpt().parameters())
    assert f"{total:,}" in out


def test_inspect_shows_an_untrained_preset(capsys) -> None:
    code, out, err = orrery(capsys, "inspect", "--preset", "course")
    assert (code, err) == (0, "")
    for said in ("(1, 64, 128)", "816,640", "262,656", "32.16%"):
        assert said in out


def test_a_large_preset_is_inspected_without_being_allocated(capsys) -> None:
    code, out, _ = orrery(capsys, "inspect", "--preset", "gpt2-xl")
    assert code == 0
    assert "1,557,611,200" in out


def test_what_cannot_be_used_is_said_in_one_sentence(run: Path, tmp_path: Path, capsys) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text((run / "config.json").read_text())
    (foreign / "model.safetensors").write_text("not weights")
    truncated = tmp_path / "truncated"
    write_description(truncated, preset("course"), None)
    whole = (run / "model.safetensors").read_bytes()
    (truncated / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    cases = {
        ("sample", run, "--prompt", "abZ"): "'Z' (U+005A) at position 2",
        ("sample", run, "--prompt", "abcdefgha"): "9 tokens",
        ("sample", run, "--prompt", ""): "the prompt is empty",
        ("sample", run, "--prompt", "a", "--temperature", "-1"): "temperature -1.0",
        ("sample", run, "--prompt", "a", "--step", "4"): "no step 4: it has 9",
        ("sample", tmp_path / "none", "--prompt", "a"): "there is no run at",
        ("sample", run): "--prompt",
        ("verify", foreign): "cannot be read as weights",
        ("verify", truncated): "cannot be read as weights",
        ("verify", run, "--text", tmp_path / "none.txt"): "cannot be read",
        ("inspect", run / "config.json"): "is a file, not a run",
        ("inspect", "--preset", "curse"): "there is no preset 'curse'",
        ("inspect",): "required",
        ("unknown",): "invalid choice",
        (): "required",
    }
    for argv, said in cases.items():
        code, out, err = orrery(capsys, *argv)
        assert (code, out) == (2, ""), argv
        assert said in err, argv
        assert err.count("\n") == 1, argv
        assert err.startswith("orrery"), argv


def test_a_bug_is_one_sentence_too_unless_asked_for(run: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("model.generation.generate_text", lambda *_, **__: 1 / 0)
    argv = ("sample", run, "--prompt", "a")
    code, _, err = orrery(capsys, *argv)
    assert code == 1
    assert err.startswith("orrery: unexpected ZeroDivisionError")
    monkeypatch.setenv("ORRERY_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main([str(a) for a in argv])


def test_a_reader_that_goes_away_is_no_error(run: Path) -> None:
    command = f"{sys.executable} -m model.cli inspect {run} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys) -> None:
    code, out, _ = orrery(capsys, command, "--help")
    assert code == 0
    assert out.startswith(f"usage: orrery {command}")
