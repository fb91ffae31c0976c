"""The explorer as a person meets it: Chromium, clicks, keys, links and files."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pandas as pd
import pytest
from conftest import shipped_runs
from explorer_server import PAGES, browser, explorer, open_page, settle, why_no_browser
from tiny_run import write_run

pytestmark = pytest.mark.browser

MARKUP = "<b>x</b> $a$ *y*\n&amp;"
TOKENS = ".strip [role=option]"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server over the shipped runs and a small one that knows every printable character."""
    if reason := why_no_browser():
        if os.environ.get("ORRERY_REQUIRE_BROWSER") == "1":
            pytest.fail(f"ORRERY_REQUIRE_BROWSER=1, but {reason}")
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "tiny")
    for run in shipped_runs():
        (folder / run.name).symlink_to(run)
    with explorer("--runs", str(folder)) as address:
        yield address


@pytest.fixture(scope="module")
def chromium(address):
    with browser() as chromium:
        yield chromium


class Witness:
    """A browser page that remembers what went wrong on it."""

    def __init__(self, chromium, address: str, **context) -> None:
        self.address = address
        self.context = chromium.new_context(
            **({"viewport": {"width": 1400, "height": 900}} | context)
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)

    def _heard(self, message) -> None:
        # On a link to a page below the root Streamlit looks for its server there first.
        probe = "/_stcore/" in message.location.get("url", "")
        if message.type == "error" and not probe:
            self.complaints.append(message.text)

    def _asked(self, request) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.complaints.append(f"asked {request.url}")

    def open(self, name: str, query: str = "") -> None:
        open_page(self.page, self.address, name, query)

    def wait_for_url(self, part: str) -> None:
        self.page.wait_for_function("part => location.href.includes(part)", arg=part, polling=100)
        settle(self.page)

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
        self.page.get_by_role("tab", name="Code").click()
        return self.page.get_by_test_id("stCode").inner_text()


@pytest.fixture
def visit(chromium, address):
    """`visit()` opens a browser window of its own; afterwards nothing may have gone wrong."""
    opened: list[Witness] = []

    def visit(**context) -> Witness:
        opened.append(Witness(chromium, address, **context))
        return opened[-1]

    yield visit
    for witness in opened:
        witness.context.close()
        assert witness.complaints == []


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1400), ("dark", 800)], ids=["light", "dark and narrow"]
)
def test_all_pages_render(scheme, width, visit):
    witness = visit(color_scheme=scheme, viewport={"width": width, "height": 900})
    page = witness.page
    witness.open(PAGES[0])
    for name in PAGES:
        if name != PAGES[0]:
            page.get_by_role("link", name=name).click()
            page.get_by_role("heading", name=name, level=1).wait_for()
            settle(page)
        assert page.get_by_test_id("stException").count() == 0
        assert page.get_by_test_id("stAlertContentError").count() == 0
        colour = page.locator(".main-svg").first.evaluate("e => e.style.background")
        assert colour == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(14, 17, 23)")
        # Nothing is pushed out of the window sideways.
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_person_walks_through_it_and_the_link_opens_the_same_view(visit):
    witness = visit()
    witness.open("Attention", "?model=tiny&prompt=abcabcab&step=0")
    middle = witness.page.evaluate(
        """() => {
          const chart = document.querySelector(".js-plotly-plot");
          const { xaxis, yaxis } = chart._fullLayout;
          const box = chart.getBoundingClientRect();
          const [x, y] = [chart._fullData[1].x[2], chart._fullData[1].y[2]];
          return [box.left + xaxis._offset + xaxis.d2p(x), box.top + yaxis._offset + yaxis.d2p(y)];
        }"""
    )
    witness.page.mouse.move(*middle)
    witness.page.wait_for_timeout(200)
    witness.page.mouse.click(*middle)
    witness.wait_for_url("layer=0")
    assert "head=2" in witness.page.url

    witness.page.locator(TOKENS).nth(4).click()
    witness.wait_for_url("pos=4")
    strip = witness.page.get_by_role("listbox").first
    strip.press("ArrowLeft")
    strip.press("ArrowLeft")
    witness.wait_for_url("pos=2")
    settle(witness.page)
    assert witness.chosen == 2
    strip.press("ArrowDown")
    witness.page.wait_for_function("!location.href.includes('layer=0')", polling=100)
    settle(witness.page)
    assert "attention_head(patterns, 1, 2, query_pos=2)" in witness.code

    witness.page.get_by_role("link", name="Attribution").click()
    witness.wait_for_url("/attribution")
    witness.page.get_by_role("combobox", name="Target").click()
    witness.page.keyboard.type("e")
    witness.page.keyboard.press("Enter")
    witness.wait_for_url("target=e")
    settle(witness.page)
    here = (witness.code, witness.tokens, witness.chosen)
    assert "step=0" in here[0]

    other = visit()
    other.page.goto(witness.page.url)
    settle(other.page)
    assert (other.code, other.tokens, other.chosen) == here


def settles_at(page, question: Callable[[], list[str]], expected: list[str]) -> None:
    """The page is drawn piece by piece after its address has changed."""
    for _ in range(300):
        if question() == expected:
            return
        page.wait_for_timeout(100)
    assert question() == expected


def test_text_is_shown_literally(visit):
    witness = visit()
    witness.open("Lens", "?model=tiny")
    box = witness.page.get_by_role("textbox", name="Prompt")
    box.fill(MARKUP)
    box.press("Control+Enter")
    witness.wait_for_url("amp")
    literal = list(MARKUP.replace(" ", "␣").replace("\n", "↵"))
    settles_at(witness.page, lambda: witness.tokens, literal)
    shown = witness.page.locator(".js-plotly-plot").first.locator(".xtick text")
    settles_at(witness.page, shown.all_text_contents, literal)
    assert witness.page.locator(".js-plotly-plot b").count() == 0

    witness.open("Lens", f"?model=tiny&prompt={quote('a :heart: <i>$x$</i> ü')}")
    told = witness.page.get_by_test_id("stAlert").inner_text()
    assert told.startswith("Character 'ü' at position 21")


def test_files_can_be_taken_away(visit, tmp_path: Path):
    witness = visit(accept_downloads=True)
    witness.open("Attribution", "?model=tiny&prompt=abc&target=a&contrast=b")
    with witness.page.expect_download() as download:
        witness.page.get_by_role("button", name="CSV").click()
    table = pd.read_csv(io.BytesIO(download.value.path().read_bytes()))
    assert {"component", "pos", "tokens", "part"} <= set(table.columns)
    assert set(table["tokens"]) == set("abc")

    witness.page.get_by_role("tab", name="Figure").click()
    with witness.page.expect_download() as download:
        witness.page.get_by_role("button", name="bars (HTML)").click()
    download.value.save_as(tmp_path / "bars.html")
    alone = visit(offline=True)
    alone.address = "file://"
    alone.page.goto(f"file://{tmp_path}/bars.html")
    alone.page.locator(".main-svg").first.wait_for()
    assert "token embedding" in alone.page.locator(".ytick").all_text_contents()
