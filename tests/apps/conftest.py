"""The explorer without a browser: one page of it, run as Streamlit would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from explorer_pages import APPS
from streamlit.testing.v1 import AppTest
from tiny_run import write_run

OpenPage = Callable[..., AppTest]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models that can be opened and one that cannot."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "a_tiny")
    write_run(folder / "b_attention_only", d_mlp=0, steps=(4,))
    broken = write_run(folder / "c_broken", steps=(0,)) / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-100])
    return folder


@pytest.fixture(autouse=True)
def own_main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamlit puts the page in place of `__main__`; a process started later would run it."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture
def open_page(runs: Path, monkeypatch: pytest.MonkeyPatch) -> OpenPage:
    """`open_page("lens", prompt="ab")`: that page, as the link with these parameters shows it."""
    monkeypatch.syspath_prepend(str(APPS))

    def open_page(view: str, *, folder: Path = runs, **query: Any) -> AppTest:
        monkeypatch.setattr(sys, "argv", ["explorer.py", "--runs", str(folder)])
        app = AppTest.from_file(str(APPS / "explorer.py"), default_timeout=60)
        for name, value in query.items():
            app.query_params[name] = str(value)
        app.switch_page(f"views/{view}.py") if view != "attention" else None
        return app.run()

    return open_page
