"""The explorer as a person meets it: Chromium, clicks, keys, links and files."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from explorer_server import PAGES

pytestmark = pytest.mark.browser

MARKUP = "<b>x</b> $a$ *y*\n&amp;"
ODD = "a <b> $x$\n\taa 11 &amp;"


@pytest.mark.webgl
@pytest.mark.parametrize(
    ("scheme", "width", "query"),
    [
        pytest.param("light", 1400, "", id="light"),
        pytest.param(
            "dark",
            800,
            f"?model=tiny&prompt={quote(ODD)}",
            id="dark and narrow, odd text",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_all_pages_render(scheme, width, query, visit):
    """Colours do not move anything, so each width is seen once; `visit` sees what others are
    asked."""
    visitor = visit(color_scheme=scheme, viewport={"width": width, "height": 900})
    page = visitor.page
    visitor.open(PAGES[0], query)
    for name in PAGES:
        visitor.go(name)
        assert page.get_by_test_id("stException").count() == 0
        assert page.get_by_test_id("stAlertContentError").count() == 0
        colour = page.locator(".main-svg").first.evaluate("e => e.style.background")
        assert colour == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(14, 17, 23)")
        # Nothing is pushed out of the window sideways.
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_a_person_walks_through_it_and_the_link_opens_the_same_view(visit):
    visitor = visit()
    visitor.open("Attention", "?model=tiny&prompt=abcabcab&step=0")
    visitor.click_point("montage", 2, "layer=0")
    assert "head=2" in visitor.page.url

    visitor.click(visitor.page.locator(".strip [role=option]").nth(4), "pos=4")
    visitor.walk_to(2)
    visitor.press("ArrowDown", lambda url: "layer=0" not in url)
    visitor.until(lambda: "attention_head(patterns, 1, 2, query_pos=2)" in visitor.code)

    visitor.go("Attribution")
    visitor.choose("Target", "e", "target=e")
    visitor.until(lambda: "'e'" in visitor.code)
    here = (visitor.code, visitor.tokens, visitor.chosen)
    assert "step=0" in here[0]

    other = visit()
    other.page.goto(visitor.page.url)
    other.until(lambda: (other.code, other.tokens, other.chosen) == here)


def test_text_is_shown_literally(visit):
    visitor = visit()
    visitor.open("Lens", "?model=tiny")
    visitor.write("Prompt", MARKUP, "amp")
    literal = list(MARKUP.replace(" ", "␣").replace("\n", "↵"))
    visitor.until(lambda: visitor.tokens == literal)
    shown = visitor.page.locator(".js-plotly-plot").first.locator(".xtick text")
    visitor.until(lambda: shown.all_text_contents() == literal)
    assert visitor.page.locator(".js-plotly-plot b").count() == 0

    visitor.open("Lens", f"?model=tiny&prompt={quote('a :heart: <i>$x$</i> ü')}")
    told = visitor.page.get_by_test_id("stAlert")
    visitor.until(lambda: told.inner_text().startswith("Character 'ü' at position 21"))
