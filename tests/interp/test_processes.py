"""Several processes that share a corpus return what one alone would have."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys

import pytest
import xarray as xr
from conftest import ROOT
from two_processes import everything


@pytest.mark.slow
def test_two_gloo_processes_equal_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests/two_processes.py"), str(tmp_path / f"{rank}")],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        alone = everything()
        assert [child.wait(timeout=300) for child in started] == [0, 0]
    finally:
        for child in started:
            child.kill()
    for rank in range(2):
        who, together = pickle.loads((tmp_path / f"{rank}").read_bytes())
        assert who == (rank, 2)
        for name, result in alone.items():
            xr.testing.assert_allclose(together[name], result, rtol=1e-10, atol=1e-12)
            assert together[name].attrs == result.attrs
