"""A person in front of the explorer: looks, clicks, types, and sees whether it did anything.

A click on what is just being redrawn is lost, for a person too, who then clicks again. So each act
has the outcome it is for: it is done on a page at rest, and again when the page comes to rest
without the outcome. An act names where to go, never how far, so that twice is the same as once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from explorer_server import open_page, settle
from playwright.sync_api import Browser, Download, Error, Locator, Page

PATIENCE = 3.0
"""seconds at rest without the outcome, after which an act is repeated"""
WITHIN = 90.0
"""seconds until an act has failed"""
TOKENS = ".strip [role=option]"

_BUSY = """() => {
  const app = document.querySelector("[data-testid=stApp]");
  return !app || app.dataset.testScriptState === "running";
}"""
# Where a point of a chart is in the window, or a cell of a map, counted row by row; nothing while
# the chart is being drawn.
_POINT = """([key, trace, i]) => {
  const chart = document.querySelector(`.st-key-${key} .js-plotly-plot`);
  const layout = chart?._fullLayout;
  const points = chart?._fullData?.[trace];
  if (!layout?.xaxis?.d2p || !points) return null;
  const columns = points.type === "heatmap" ? points.z[0].length : null;
  const x = columns ? i % columns : points.x[i];
  const y = columns ? Math.floor(i / columns) : points.y[i];
  chart.scrollIntoView({ block: "nearest" });
  const box = chart.getBoundingClientRect();
  const { xaxis, yaxis } = layout;
  // A bar is aimed at in its middle.
  const half = (which) => points.type === "bar" && (points.orientation === "h") === which ? 0.5 : 1;
  const at = (axis, value, share) =>
    axis._offset + (share === 1 ? axis.d2p(value) : axis.d2p(share * value));
  return [box.left + at(xaxis, x, half(true)), box.top + at(yaxis, y, half(false))];
}"""


class Visitor:
    """A browser window that remembers what went wrong in it."""

    def __init__(self, chromium: Browser, address: str, **context: Any) -> None:
        self.address = address
        self.context = chromium.new_context(
            **({"viewport": {"width": 1400, "height": 900}} | context)
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(1000 * WITHIN)
        self.complaints: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)
        self.page.on("websocket", self._asked)

    def _heard(self, message: Any) -> None:
        # On a link to a page below the root Streamlit looks for its server there first.
        probe = "/_stcore/" in message.location.get("url", "")
        if message.type == "error" and not probe:
            self.complaints.append(message.text)

    def _asked(self, connection: Any) -> None:
        own = (self.address, self.address.replace("http", "ws", 1), "data:", "blob:")
        if not connection.url.startswith(own):
            self.complaints.append(f"asked {connection.url}")

    # What the page shows.

    def sees(self, what: Callable[[], Any]) -> bool:
        """Whether it is so now; a page that is being replaced shows nothing."""
        try:
            return bool(what())
        except Error:
            return False

    @property
    def tokens(self) -> list[str]:
        return self.page.locator(TOKENS).all_text_contents()

    @property
    def chosen(self) -> int:
        return self.page.locator(TOKENS).evaluate_all(
            "all => all.findIndex(t => t.getAttribute('aria-selected') === 'true')"
        )

    @property
    def code(self) -> str:
        self.tab("Code")
        return self.page.get_by_test_id("stCode").inner_text()

    # What a person does.

    def until(self, outcome: Callable[[], Any], act: Callable[[], Any] | None = None) -> None:
        """Wait for the outcome, doing the act first and each time the page rests without it."""
        deadline = time.monotonic() + WITHIN
        problem: Error | None = None
        while time.monotonic() < deadline:
            if self.sees(outcome):
                return
            if act is not None:
                try:
                    settle(self.page)
                    # The outcome of an earlier try may have come while the page settled.
                    if not self.sees(outcome):
                        act()
                except Error as error:
                    problem = error
            rested = time.monotonic()
            while time.monotonic() - rested < PATIENCE:
                if self.sees(outcome):
                    return
                self.page.wait_for_timeout(100)
                if self.sees(lambda: self.page.evaluate(_BUSY)):
                    rested = time.monotonic()
                    if rested > deadline:
                        break
        raise AssertionError(f"nothing came of it within {WITHIN:.0f} s, at {self.page.url}") from (
            problem
        )

    def open(self, name: str, query: str = "") -> None:
        open_page(self.page, self.address, name, query)

    def go(self, name: str) -> None:
        """To another page by its link."""
        heading = self.page.get_by_role("heading", name=name, level=1)
        link = self.page.get_by_role("link", name=name, exact=True)
        self.until(heading.is_visible, lambda: link.click(timeout=5000))
        settle(self.page)

    def wait_for_url(self, part: str) -> None:
        self.until(lambda: part in self.page.url)
        settle(self.page)

    def click(self, what: Locator, url: str) -> None:
        """Click until the address holds `url`."""
        self.until(lambda: url in self.page.url, lambda: what.click(timeout=5000))
        settle(self.page)

    def click_point(self, chart: str, i: int, url: str, *, trace: int = 1) -> None:
        """Click point i of a chart's trace until the address holds `url`."""

        def act() -> None:
            middle = self.page.evaluate(_POINT, [chart, trace, i])
            if middle is None:
                return
            x, y = middle
            # The chart answers to the point under the pointer, which it notes when that moves.
            self.page.mouse.move(x - 1, y - 1)
            self.page.mouse.move(x, y)
            self.page.wait_for_timeout(200)
            self.page.mouse.click(x, y)

        self.until(lambda: url in self.page.url, act)
        settle(self.page)

    def walk_to(self, pos: int) -> None:
        """The position by the arrow keys."""
        strip = self.page.get_by_role("listbox").first
        link = f"pos={pos}"

        def arrived() -> bool:
            # The last position is the default, which stands in no address.
            query = self.page.url.partition("?")[2].split("&")
            return self.chosen == pos and (
                link in query
                or (pos == len(self.tokens) - 1 and not any(q.startswith("pos=") for q in query))
            )

        def act() -> None:
            for _ in range(300):
                if self.chosen == pos:
                    return
                strip.press("ArrowRight" if self.chosen < pos else "ArrowLeft", timeout=5000)

        self.until(arrived, act)
        settle(self.page)

    def press(self, key: str, came: Callable[[str], bool]) -> None:
        """A key on the token strip until the address is as wanted."""
        strip = self.page.get_by_role("listbox").first
        self.until(lambda: came(self.page.url), lambda: strip.press(key, timeout=5000))
        settle(self.page)

    def choose(self, label: str, typed: str, url: str) -> None:
        """What matches the typed text, in a select box."""
        box = self.page.get_by_role("combobox", name=label)

        def act() -> None:
            self.page.keyboard.press("Escape")
            box.click(timeout=5000)
            box.fill(typed, timeout=5000)
            self.page.wait_for_timeout(200)
            box.press("Enter", timeout=5000)

        self.until(lambda: url in self.page.url, act)
        settle(self.page)

    def write(self, label: str, text: str, url: str) -> None:
        """A text into a box."""
        box = self.page.get_by_role("textbox", name=label, exact=True)

        def act() -> None:
            box.fill(text, timeout=5000)
            box.press("Control+Enter", timeout=5000)

        self.until(lambda: url in self.page.url, act)
        settle(self.page)

    def tab(self, name: str) -> None:
        tab = self.page.get_by_role("tab", name=name)
        self.until(
            lambda: tab.get_attribute("aria-selected", timeout=5000) == "true",
            lambda: tab.click(timeout=5000),
        )

    def take(self, button: str) -> Path:
        """The file behind a download button."""
        taken: list[Download] = []

        def took(download: Download) -> None:
            taken.append(download)

        self.page.on("download", took)
        found = self.page.get_by_role("button", name=button, exact=True)
        self.until(lambda: taken, lambda: found.click(timeout=5000))
        self.page.remove_listener("download", took)
        return taken[0].path()
