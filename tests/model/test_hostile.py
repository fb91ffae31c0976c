"""Files made to do harm: nothing in them runs, nothing they claim is allocated."""

from __future__ import annotations

import io
import json
import pickle
import resource
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import float32, hf_state, write_hf, write_nanogpt
from dialect_references import hf_shaped

from model import ModelError, convert
from model.plain_pickle import read_plain_pickle
from model.vocabularies import read_tokenizer


class Bomb:
    """Unpickled, it writes a file: what a hostile pickle does with worse intent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "boom"))


class EvalBomb(Bomb):
    def __reduce__(self) -> tuple[Any, ...]:
        return (eval, (f"open({str(self.path)!r}, 'w').write('boom')",))


@pytest.mark.parametrize("bomb", [Bomb, EvalBomb])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_pickle_that_would_run_code_does_not(tmp_path: Path, bomb: type, zipped: bool) -> None:
    victim = tmp_path / "victim"
    path = tmp_path / "ckpt.pt"
    payload = {"model": float32(hf_shaped().state), "config": bomb(victim)}
    torch.save(payload, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelError, match=r"nothing of a file is ever run|more than weights"):
        convert(path, n_heads=3)
    assert not victim.exists()
    # the same file does run when it is trusted: the bomb is live
    torch.load(path, weights_only=False)
    assert victim.exists()


@pytest.mark.parametrize("bomb", [Bomb, EvalBomb])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_vocabulary_that_would_run_code_does_not(
    tmp_path: Path, bomb: type, protocol: int
) -> None:
    victim, meta = tmp_path / "victim", tmp_path / "meta.pkl"
    meta.write_bytes(pickle.dumps({"itos": bomb(victim)}, protocol))
    with pytest.raises(ModelError, match="does more than hold plain values"):
        read_tokenizer(meta)
    assert not victim.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_read_as_pickle_reads_them(protocol: int) -> None:
    shared = ["x", "\n", "é\U0001f600"]
    value = {
        "itos": dict(enumerate(shared)), "list": shared, "again": shared,
        "deep": ((), (1,), (1, 2, 3), (1, 2, 3, 4)),
        "numbers": [0, -1, 255, 65536, 2**40, -(2**70), 1.5], "none": None, "yes": [True, False],
    }  # fmt: skip
    assert read_plain_pickle(pickle.dumps(value, protocol), "meta.pkl") == value


def test_a_configuration_of_a_class_is_never_imported(tmp_path: Path) -> None:
    package = tmp_path / "evil_package.py"
    victim = tmp_path / "victim"
    package.write_text(f"open({str(victim)!r}, 'w').write('boom')\nclass GPTConfig: pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import evil_package

        torch.save(
            {"model": float32(hf_shaped().state), "config": evil_package.GPTConfig()},
            tmp_path / "a.pt",
        )
        victim.unlink()
        del sys.modules["evil_package"]
        convert(tmp_path / "a.pt", n_heads=3)
    finally:
        sys.path.remove(str(tmp_path))
    assert "evil_package" not in sys.modules
    assert not victim.exists()


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/etc/passwd", "..", "a/b.safetensors", "a\\b", ""]
)
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, shard: str) -> None:
    folder = write_hf(tmp_path / "hf", 2)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["transformer.wte.weight"] = shard
    index.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="which is not a file name"):
        convert(folder)


def header(claims: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(claims).encode()
    return struct.pack("<Q", len(text)) + text + data


def zip_of(entries: dict[str, bytes], method: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def broadcast_bomb() -> bytes:
    """A tensor of 10 GB that is one number, seen many times."""
    buffer = io.BytesIO()
    torch.save({"transformer.wte.weight": torch.zeros(1).expand(50_000, 50_000)}, buffer)
    return buffer.getvalue()


def legacy_bomb() -> bytes:
    """A pickle without a zip around it that claims a storage of 10 GB."""
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(1234)}, buffer, _use_new_zipfile_serialization=False)
    raw = buffer.getvalue()
    small, large = struct.pack("<H", 1234), struct.pack("<I", 2**31)
    return raw.replace(b"M" + small, b"J" + large[:3] + b"\x7f")


F32 = {"dtype": "F32", "data_offsets": [0, 8]}
HOSTILE: dict[str, bytes] = {
    "a text": b"First Citizen:\n" * 60,
    "a zip": zip_of({"a.txt": b"hello"}, zipfile.ZIP_STORED),
    "half a zip": zip_of({"a.txt": b"hello" * 99}, zipfile.ZIP_STORED)[:200],
    "a pickle of nothing": pickle.dumps({"hello": "world"}),
    "an empty file": b"",
    "a header that claims 10 GB": struct.pack("<Q", 10 * 2**30) + b"{}",
    "a tensor that claims 10 GB": header({"a": F32 | {"shape": [2**31, 5]}}, bytes(8)),
    "a tensor beyond the file": header(
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [2**40, 2**40 + 8]}}, bytes(8)
    ),
    "tensors that overlap": header(
        {"a": F32 | {"shape": [2]}, "b": F32 | {"shape": [2]}}, bytes(8)
    ),
    "a header of brackets": struct.pack("<Q", 900) + b"{" + b"[" * 899,
    "a bomb that unpacks": zip_of({"a/data.pkl": bytes(64 * 2**20)}, zipfile.ZIP_DEFLATED),
    "a broadcast tensor": broadcast_bomb(),
    "a legacy storage of 10 GB": legacy_bomb(),
}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_lies_is_refused_and_memory_stays_flat(
    tmp_path: Path, content: bytes, suffix: str
) -> None:
    assert len(content) < 100_000
    path = tmp_path / f"ckpt{suffix}"
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError) as refusal:
        convert(path)
    assert "\n" not in str(refusal.value)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 * 1024, f"{grown} KiB"


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04]r\xff\xff\xff\x7f.",  # a memo slot that would make a table of 16 GB
        b"\x80\x05\x96" + struct.pack("<Q", 10 * 2**30) + b"x.",  # a byte array of 10 GB
        b"\x80\x04\x8d" + struct.pack("<Q", 10 * 2**30) + b"x.",  # a string of 10 GB
        b"\x80\x04" + b"(" * 500,
        b"",
        pickle.dumps({"itos": {0: "a"}})[:-4],
    ],
)
def test_a_vocabulary_that_lies_is_refused_and_memory_stays_flat(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "meta.pkl").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError):
        read_tokenizer(tmp_path / "meta.pkl")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.99])
@pytest.mark.parametrize("name", ["ckpt.pt", "model.safetensors", "old.bin"])
def test_a_truncated_file_is_refused(tmp_path: Path, name: str, kept: float) -> None:
    from safetensors.torch import save_file

    path = tmp_path / name
    if path.suffix == ".safetensors":
        save_file(hf_state(), path)
    else:
        torch.save(hf_state(), path, _use_new_zipfile_serialization=path.suffix == ".pt")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(ModelError, match=r"trunc|damaged|neither"):
        convert(path, n_heads=3)


def test_a_json_without_end_is_refused(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "hf")
    for content in ("[" * 100_000, '{"a": ' * 50_000, "[]", "\x00"):
        (folder / "config.json").write_text(content)
        with pytest.raises(ModelError, match=r"config\.json"):
            convert(folder)


def test_a_layer_of_a_million_is_refused_at_once(tmp_path: Path) -> None:
    state = hf_state()
    for name in ("transformer.h.9999.ln_1.weight", "transformer.h.1000000.ln_1.weight"):
        with pytest.raises(ModelError, match=r"is missing|there is"):
            convert(state | {name: torch.zeros(48)}, n_heads=3)


def test_reading_foreign_files_needs_no_network_and_no_code_of_theirs(tmp_path: Path) -> None:
    path = write_nanogpt(tmp_path)
    code = (
        "import socket, sys\n"
        "def closed(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = closed\n"
        "import model\n"
        "m = model.load(sys.argv[1])\n"
        "print(m.generate('A  B', max_new_tokens=2, verbose=False)[:4])\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "A  B\n"), done.stderr
