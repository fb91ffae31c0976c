"""The explorer without a browser, run as Streamlit would; and with one, as a person would."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from explorer_pages import APPS
from explorer_server import explorer, launch, why_no_browser
from streamlit.testing.v1 import AppTest
from tiny_run import write_run

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
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

    def open_page(view: str, *, folder: Path = runs, foot: str = "Code", **query: Any) -> AppTest:
        monkeypatch.setattr(sys, "argv", ["explorer.py", "--runs", str(folder)])
        app = AppTest.from_file(str(APPS / "explorer.py"), default_timeout=60)
        for name, value in query.items():
            app.query_params[name] = str(value)
        app.session_state["foot"], app.session_state["paths"] = foot, True
        app.switch_page(f"views/{view}.py") if view != "predict" else None
        return app.run()

    return open_page


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server over the shipped runs and a small one that knows every printable character."""
    if reason := why_no_browser():
        if os.environ.get("ORRERY_REQUIRE_BROWSER") == "1":
            pytest.fail(f"ORRERY_REQUIRE_BROWSER=1, but {reason}")
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("served")
    write_run(folder / "tiny")
    for run in CHECKPOINTS.glob("*/config.json"):
        (folder / run.parent.name).symlink_to(run.parent)
    with explorer("--runs", str(folder)) as address:
        yield address


@pytest.fixture(scope="session")
def playwright(address: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="session")
def chromium(playwright: Any) -> Iterator[Any]:
    launched = launch(playwright)
    yield launched
    launched.close()


@pytest.fixture(scope="session")
def chromium_with_webgl(playwright: Any) -> Iterator[Any]:
    launched = launch(playwright, webgl=True)
    yield launched
    launched.close()


@pytest.fixture
def visit(request: pytest.FixtureRequest, address: str) -> Iterator[Callable[..., Any]]:
    """`visit()` opens a browser window of its own; afterwards nothing may have gone wrong. Pages
    with a 3-D view need the marker `webgl`."""
    from visitor import Visitor

    needs_webgl = request.node.get_closest_marker("webgl") is not None
    chromium = request.getfixturevalue("chromium_with_webgl" if needs_webgl else "chromium")
    opened: list[Visitor] = []

    def visit(**context: Any) -> Visitor:
        opened.append(Visitor(chromium, address, **context))
        return opened[-1]

    yield visit
    for visitor in opened:
        visitor.context.close()
        assert visitor.complaints == []
