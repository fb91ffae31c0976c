"""The explorer as its users meet it: a server of its own, and Chromium in front of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright

ROOT = Path(__file__).parents[1]
PAGES = (
    "Predict", "Attention", "Lens", "Attribution", "Patching", "Sphere", "Weights", "Neurons",
    "Compare", "Training",
)  # fmt: skip
# The 3-D view needs WebGL, which a machine without a screen has to draw itself.
_WEBGL = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader")


@contextmanager
def explorer(*arguments: str) -> Iterator[str]:
    """A server with these arguments; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "apps/explorer.py"]
    command += [f"--server.port={port}", "--server.headless=true", "--server.fileWatcherType=none"]
    server = subprocess.Popen(
        [*command, "--", *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(address, server)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_until_healthy(address: str, server: subprocess.Popen) -> None:
    """Wait until it answers.

    Raises:
        RuntimeError: when it ends, or does not answer within 30 seconds.
    """
    for _ in range(300):
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with code {server.returncode}")
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server did not answer within 30 seconds")


def why_no_browser() -> str | None:
    """None when Chromium can be driven here, otherwise the reason why not."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install -e '.[test]'"
    if chromium() is None:
        return (
            "no Chromium found: install Debian's `chromium-headless-shell` or `chromium`, or set "
            "CHROMIUM to its path"
        )
    return None


def chromium() -> str | None:
    """The path of a Chromium, if there is one. The one without windows takes half the time."""
    named = os.environ.get("CHROMIUM")
    usual = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, (named,) if named else usual)), None)


def launch(playwright: Playwright, *, webgl: bool = False) -> Browser:
    """A headless Chromium.

    Args:
        webgl: draw WebGL without a graphics card, and with it, slowly, all else.
    """
    arguments = ["--no-sandbox", *(_WEBGL if webgl else ())]
    return playwright.chromium.launch(executable_path=chromium(), args=arguments)


@contextmanager
def browser(*, webgl: bool = False) -> Iterator[Browser]:
    """A headless Chromium for as long as it is needed; `webgl` as in `launch`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = launch(playwright, webgl=webgl)
        try:
            yield launched
        finally:
            launched.close()


def settle(page: Page) -> None:
    """Wait until the script has run, every chart is drawn and nothing is out of date."""
    app = page.locator("[data-testid=stApp]")
    app.wait_for()
    page.wait_for_function(
        """() => {
          const app = document.querySelector("[data-testid=stApp]");
          const idle = app.dataset.testScriptState === "notRunning";
          const charts = [...document.querySelectorAll(".chart")].filter((c) => c.offsetParent);
          const drawn = charts.length && charts.every((c) => c.dataset.drawn === "true");
          const foot = document.querySelector("[data-testid=stTabs]");
          const refused = document.querySelector("[data-testid=stAlert]");
          const stale = document.querySelector("[data-stale=true]");
          return Boolean(idle && !stale && ((drawn && foot) || (refused && !foot)));
        }""",
        polling=100,  # animation frames stop while software draws a 3-D view
        timeout=120_000,
    )
    page.wait_for_timeout(250)


def open_page(page: Page, address: str, name: str, query: str = "") -> None:
    """Open one page of the explorer and wait for it."""
    # The first page of the navigation has the bare address.
    path = "" if name == PAGES[0] else name.lower()
    page.goto(f"{address}/{path}{query}")
    settle(page)
