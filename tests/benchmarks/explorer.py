"""How long people wait for the explorer: python tests/benchmarks/explorer.py

The first page on a fresh server; each page opened and its position moved, on both shipped runs, at
the server and on the screen; and a prompt of 256 tokens on a GPT of 6 layers, 6 heads, width 384.
Exit code 0 only when every bar is met.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from explorer_server import PAGES, browser, explorer, why_no_browser  # noqa: E402 - beside

FIRST, SERVER, SCREEN, LARGE = 3.0, 0.3, 0.5, 1.0
"""seconds at most: first paint; an interaction at the server, and on the screen; a large model"""
MOVES = 5
NOTHING_TO_SHOW = {("induction", "Neurons")}
"""a model without MLPs has no neurons: its page is a sentence"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pages", nargs="*", default=list(PAGES))
    parser.add_argument("--no-browser", action="store_true")
    options = parser.parse_args()
    with_browser = not options.no_browser and why_no_browser() is None
    over = []

    def told(what: str, seconds: float, bar: float) -> None:
        missed = seconds > bar
        print(f"{what:58} {1000 * seconds:7.0f} ms {'OVER ' + str(bar) + ' s' if missed else ''}")
        over.extend([what] * missed)

    def noted(what: str, seconds: float) -> None:
        print(f"{what:58} {1000 * seconds:7.0f} ms")

    with explorer() as address:
        if with_browser:
            with browser() as chromium:
                paint, chart = first_visit(chromium, address)
                told("first paint, on a fresh server", paint, FIRST)
                noted("first chart, PyTorch and TransformerLens imported for it", chart)
                noted("first chart, on a server that knows them", first_visit(chromium, address)[1])
        shown = [
            each
            for each in itertools.product(("shakespeare", "induction"), options.pages)
            if each not in NOTHING_TO_SHOW
        ]
        for model, page in shown:
            opened, moved = at_server(address, page, model)
            told(f"{model} {page}: opened, server", opened, FIRST)
            told(f"{model} {page}: position moved, server", moved, SERVER)
        if with_browser:
            with browser() as chromium:
                for model, page in shown:
                    in_window, everywhere = on_screen(chromium, address, page, model)
                    told(f"{model} {page}: position moved, on the screen", in_window, SCREEN)
                    noted(f"{model} {page}: and all of the page below it", everywhere)
    with tempfile.TemporaryDirectory() as folder:
        large_run(Path(folder))
        with explorer("--runs", folder) as address:
            at_server(address, options.pages[0], "large", prompt="warm")
            for page in options.pages:
                opened, moved = at_server(address, page, "large", prompt=_TEXT)
                told(f"256 tokens, 6 layers, {page}: opened, server", opened, LARGE)
                told(f"256 tokens, 6 layers, {page}: position moved, server", moved, LARGE)
    print(f"{len(over)} over the bar" if over else "every bar is met")
    return bool(over)


_TEXT = ("To be, or not to be: that is the question. " * 6)[:256]


def first_visit(chromium: Any, address: str) -> tuple[float, float]:
    """From the click on the link to the first contentful paint, and to the first chart."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    began = time.monotonic()
    page.goto(address)
    page.locator(".st-key-foreseen .main-svg").first.wait_for(timeout=120_000)
    charts = time.monotonic() - began
    paints = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint').map((paint) => paint.startTime)"
    )
    context.close()
    return paints[0] / 1000, charts


def at_server(address: str, page: str, model: str, **query: str) -> tuple[float, float]:
    """A page opened for the first time, and the position moved on it; the median of some."""
    from streamlit_client import Client

    # The first page of the navigation has the bare address.
    path = "" if page == PAGES[0] else page.lower()
    with Client(address) as client:
        began = time.monotonic()
        client.open(path, model=model, **query)
        opened = time.monotonic() - began
        took = []
        for pos in range(1, 1 + MOVES):
            began = time.monotonic()
            client.move(path, "pos", pos)
            took.append(time.monotonic() - began)
        # Long measuring waits for its button, and says so.
        assert client.charts or page == "Training", client.sentences
    return opened, statistics.median(took)


def on_screen(chromium: Any, address: str, name: str, model: str) -> tuple[float, float]:
    """From a press of a key to the last change in the window, and on all of the page; medians."""
    from visitor import Visitor

    visitor = Visitor(chromium, address)
    visitor.open(name, f"?model={model}")
    strip = visitor.page.get_by_role("listbox").first
    visitor.page.evaluate(_WATCH)
    took = []
    for _ in range(MOVES):
        here = visitor.page.url
        strip.press("ArrowLeft")
        took.append(visitor.page.wait_for_function(_CHANGED, arg=here, timeout=60_000).json_value())
    visitor.context.close()
    in_window, everywhere = (statistics.median(times) / 1000 for times in zip(*took, strict=True))
    return in_window, everywhere


# When a key was pressed, and when something last changed: in the window, and anywhere. Nobody hears
# of what is drawn on a canvas, but a chart sets a mark on itself when all of it is drawn.
_WATCH = """() => {
  const seen = (window.seen = { pressed: 0, window: 0, page: 0 });
  const where = ({ target }) =>
    (target instanceof Element ? target : target.parentElement)?.closest(".chart, div");
  const isInWindow = (element) => {
    const { top, bottom } = element?.getBoundingClientRect() ?? { top: 0, bottom: 0 };
    return bottom > 0 && top < innerHeight;
  };
  new MutationObserver((changes) => {
    const inWindow = [...new Set(changes.map(where))].some(isInWindow);
    requestAnimationFrame(() => {
      seen.page = performance.now();
      if (inWindow) seen.window = seen.page;
    });
  }).observe(
    document.querySelector("[data-testid=stMain]"),
    { subtree: true, childList: true, attributes: true, characterData: true },
  );
  addEventListener("keydown", () => (seen.pressed = performance.now()), { capture: true });
}"""
_CHANGED = """(before) => {
  const app = document.querySelector("[data-testid=stApp]");
  const done = location.href !== before && app.dataset.testScriptState === "notRunning"
    && !document.querySelector("[data-stale=true], .chart[data-drawn=false]")
    && performance.now() - seen.page > 600;
  return done && [seen.window - seen.pressed, seen.page - seen.pressed];
}"""


def large_run(folder: Path) -> None:
    from tiny_run import write_run

    write_run(folder / "large", steps=(0,), n_layers=6, n_heads=6, d_model=384, n_ctx=256)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
