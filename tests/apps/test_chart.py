"""Charts change in place: as if drawn anew, keeping what a person did to them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from explorer_server import settle
from PIL import Image

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CHART = ".st-key-{} .chart"


def pictures(visitor) -> dict[str, np.ndarray]:
    """Each chart of the page as it looks, but for 3-D views, whose pixels are never twice alike."""
    visitor.page.mouse.move(1, 1)
    boxes = visitor.page.locator(".chart[role=figure]").all()
    return {
        str(box.get_attribute("aria-label")): np.array(
            Image.open(io.BytesIO(box.screenshot())).convert("RGB"), dtype=int
        )
        for box in boxes
        if box.locator(".gl-container canvas").count() == 0
    }


@pytest.mark.parametrize("name", ["Predict", pytest.param("Sphere", marks=pytest.mark.webgl)])
def test_a_chart_changed_in_place_looks_as_one_drawn_anew(visit, name):
    visitor = visit()
    visitor.open(name, "?model=tiny&prompt=abcabcab&pos=6")
    before = pictures(visitor)
    visitor.walk_to(2)
    changed = pictures(visitor)
    visitor.page.reload()
    settle(visitor.page)
    anew = pictures(visitor)
    assert list(changed) == list(anew)
    assert len(changed) > 0
    for alt, picture in changed.items():
        assert picture.shape == anew[alt].shape, alt
        assert (np.abs(picture - anew[alt]).max(axis=2) > 64).mean() < 1e-4, alt
    assert any(alt not in before or (before[alt] != changed[alt]).any() for alt in changed)


def test_what_a_person_did_to_a_chart_stays_when_the_position_moves(visit):
    visitor = visit()
    visitor.open("Predict", "?model=tiny&prompt=abcabcab&pos=6")
    chart = visitor.page.locator(CHART.format("foreseen"))
    hidden = "chart => chart._fullData.filter(line => line.visible === 'legendonly').length"
    line = chart.locator(".legendtoggle").first
    visitor.until(lambda: chart.evaluate(hidden) == 1, lambda: line.click(timeout=5000))
    chart.evaluate("chart => (chart.mark = 'the same element')")
    visitor.walk_to(3)
    assert chart.evaluate(hidden) == 1
    assert chart.evaluate("chart => chart.mark") == "the same element"
    # Another prompt is another subject.
    visitor.write("Prompt", "cabba", "prompt=cabba")
    visitor.until(lambda: chart.evaluate(hidden) == 0)


def test_a_chart_fills_the_screen_and_comes_back_and_shares_nothing(visit):
    visitor = visit()
    visitor.open("Attention", "?model=tiny&prompt=abcabcab")
    chart = visitor.page.locator(CHART.format("pattern"))
    size = "chart => [chart._fullLayout.width, chart._fullLayout.height]"
    before = chart.evaluate(size)

    def press() -> None:
        chart.hover(position={"x": 30, "y": 30}, timeout=5000)
        chart.locator('.modebar-btn[data-title="Full screen"]').click(timeout=5000)

    visitor.until(lambda: chart.evaluate(size)[0] > before[0], press)
    buttons = chart.locator(".modebar-btn").evaluate_all("all => all.map(b => b.dataset.title)")
    assert buttons[0].startswith("Download")
    assert not any(button.startswith(("Share", "Edit")) for button in buttons)
    assert chart.evaluate(size) == visitor.page.evaluate("[innerWidth, innerHeight]")
    visitor.page.evaluate("document.exitFullscreen()")
    visitor.until(lambda: chart.evaluate(size) == before)


def test_a_page_says_so_when_it_cannot_draw(visit):
    visitor = visit()
    visitor.page.route("**/plotly.min.js*", lambda route: route.abort())
    visitor.page.goto(f"{visitor.address}/?model=tiny&prompt=abcab")
    told = visitor.page.get_by_text("This chart cannot be drawn: plotly.js did not come")
    visitor.until(told.first.is_visible)
    visitor.complaints.clear()
