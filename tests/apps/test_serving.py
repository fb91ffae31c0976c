"""`orrery explore`, and the same settings for plain `streamlit run`: safe unless one says else."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from brought_files import nanogpt
from conftest import CHECKPOINTS
from explorer_server import ROOT
from streamlit_client import Client
from tiny_run import write_run

SAFE = {
    "server.address": "127.0.0.1",
    "server.enableXsrfProtection": True,
    "server.enableCORS": True,
    "server.allowedHosts": ["localhost", "127.0.0.1"],
    "server.maxUploadSize": 256,
    "browser.gatherUsageStats": False,
    "client.toolbarMode": "viewer",
    "client.showErrorDetails": "none",
}


def test_the_settings_stand_in_the_file_that_both_ways_read():
    with (ROOT / ".streamlit" / "config.toml").open("rb") as file:
        found = tomllib.load(file)
    for name, value in SAFE.items():
        section, option = name.split(".")
        assert found[section][option] == value, name


@contextmanager
def explore(*arguments: str) -> Iterator[int]:
    """`orrery explore` as typed elsewhere; gives the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "model.cli", "explore", *arguments, f"--port={port}"],
        env=os.environ | {"STREAMLIT_SERVER_HEADLESS": "true", "PYTHONPATH": str(ROOT)},
        cwd=CHECKPOINTS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            assert server.poll() is None
            try:
                if answer(port, "/_stcore/health") == 200:
                    break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        server.wait(timeout=20)


def answer(port: int, path: str, method: str = "GET", at: str = "127.0.0.1", **headers: str) -> int:
    connection = http.client.HTTPConnection(at, port, timeout=10)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with explore("induction") as port:
        yield port


def websocket(port: int, **headers: str) -> int:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
    key = {"Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    return answer(port, "/_stcore/stream", **upgrade, **key, **headers)


def test_only_this_machine_is_answered(port):
    with pytest.raises(OSError, match="refused"):
        answer(port, "/_stcore/health", at="127.0.0.2")


def test_a_name_that_resolves_to_this_machine_is_refused(port):
    assert websocket(port, Host=f"127.0.0.1:{port}") == 101
    assert websocket(port, Host="evil.example", Origin="http://evil.example") == 403
    assert websocket(port, Origin="http://evil.example") == 403


def test_a_file_without_the_token_is_refused(port):
    assert answer(port, "/_stcore/upload_file/a-session/a-file", "PUT", Content_Length="0") == 403


def test_it_ends_with_its_command():
    with explore() as port:
        pass
    with pytest.raises(OSError, match="refused"):
        answer(port, "/_stcore/health")


@pytest.mark.slow
def test_what_was_brought_goes_with_the_server(tmp_path, monkeypatch):
    runs, temporary = tmp_path / "runs", tmp_path / "temporary"
    temporary.mkdir()
    write_run(runs / "tiny", steps=(0,))
    (runs / "ckpt.pt").write_bytes(nanogpt())
    monkeypatch.setenv("TMPDIR", str(temporary))
    with explore("--runs", str(runs)) as port, Client(f"http://127.0.0.1:{port}") as client:
        client.open("lens")
        assert client.sentences == []
        client.press("lens", "bring")
        client.write("lens", "bring_path", "ckpt.pt")
        client.press("lens", "bring_go")
        assert "sites are equal" in " ".join(client.sentences)
        (folder,) = temporary.glob("orrery-session-*")
        assert (next(folder.glob("*/ckpt")) / "certificate.json").is_file()
        with Client(f"http://127.0.0.1:{port}") as other:
            other.open("lens")
            assert list(other.widgets["model"].options) == ["tiny"]
    assert list(temporary.glob("orrery-session-*")) == []


def test_what_is_not_there_is_told_in_one_sentence():
    for arguments in (["no_such_run"], ["--runs", "no_such_folder"]):
        done = subprocess.run(
            [sys.executable, "-m", "model.cli", "explore", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert arguments[-1] in done.stderr
