"""The explorer as a person meets it: Chromium, clicks, keys, links and files."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from explorer_server import PAGES

pytestmark = pytest.mark.browser

MARKUP = "<b>x</b> $a$ *y*\n&amp;"
ODD = "a <b> $x$\n\taa 11 &amp;"


def assert_renders(visitor, colour: str) -> None:
    page = visitor.page
    assert page.get_by_test_id("stException").count() == 0
    assert page.get_by_test_id("stAlertContentError").count() == 0
    assert page.locator(".main-svg").first.evaluate("e => e.style.background") == colour
    # Nothing is pushed out of the window sideways.
    width = page.viewport_size["width"]
    visitor.until(lambda: page.evaluate("document.documentElement.scrollWidth") <= width)


@pytest.mark.slow
@pytest.mark.webgl
def test_all_pages_render_wide_and_narrow(visit):
    """Each page in the dark, at both widths; `visit` sees what others are asked."""
    visitor = visit(color_scheme="dark")
    widths = [800, 1400]
    visitor.open(PAGES[0], f"?model=tiny&prompt={quote(ODD)}")
    for name in PAGES:
        visitor.go(name)
        assert_renders(visitor, "rgb(14, 17, 23)")
        visitor.page.set_viewport_size({"width": widths[0], "height": 900})
        assert_renders(visitor, "rgb(14, 17, 23)")
        widths.reverse()


def test_the_shipped_model_renders_in_light(visit):
    visitor = visit(color_scheme="light")
    visitor.open("Attention")
    assert_renders(visitor, "rgb(255, 255, 255)")
    for name in ("Weights", "Neurons"):
        visitor.go(name)
        assert_renders(visitor, "rgb(255, 255, 255)")


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
    bar, box = visitor.page.get_by_test_id("stHeader").bounding_box(), told.bounding_box()
    assert bar is not None
    assert box is not None
    assert box["y"] >= bar["y"] + bar["height"]
