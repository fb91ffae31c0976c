"""Clicks in the charts of the pages lead on, and the address says where to."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_clicks_choose_a_position_a_pair_and_a_component(visit):
    visitor = visit()
    visitor.open("Predict", "?model=tiny&prompt=abcabcab&temperature=0")
    # Three points over each bar: the middle one of position 2.
    visitor.click_point("foreseen", 3 * 2 + 1, "pos=2", trace=2)
    visitor.until(lambda: visitor.chosen == 2)
    append = visitor.page.get_by_role("button", name="Append the first")
    visitor.until(lambda: len(visitor.tokens) == 4, lambda: append.click(timeout=5000))
    assert visitor.tokens[:3] == list("abc")

    visitor.open("Weights", "?model=tiny&prompt=abcabcab&layer=1&head=1")
    cells = visitor.page.locator(".st-key-OV_map .js-plotly-plot").evaluate(
        "chart => chart._fullData[0].z.flat().length"
    )
    visitor.click_point("OV_map", cells // 2, "circuit=OV", trace=0)
    assert "pair_token=" in visitor.page.url
    assert "pair_other=" in visitor.page.url
    visitor.until(lambda: "circuit_map(OV, selected=" in visitor.code)

    visitor.open("Attribution", "?model=tiny&prompt=abcabcab&pos=5")
    visitor.click_point("heads", 1, "opened=L0H1", trace=0)
    visitor.until(lambda: "source_bars(sources, 0, 1, 5" in visitor.code)


def test_clicks_choose_a_neuron_a_path_and_swap_two_sides(visit):
    visitor = visit()
    visitor.open("Neurons", "?model=tiny&prompt=abcabcab&pos=5")
    visitor.click_point("neurons", 3, "neuron=L", trace=0)
    chosen = visitor.page.url.partition("neuron=")[2].partition("&")[0]
    visitor.until(visitor.page.get_by_role("heading", name=f"Without {chosen}").is_visible)

    visitor.open("Patching", "?model=tiny&prompt=abcabcab&corrupt=abdabcab&pos=5")
    paths = visitor.page.get_by_text("One path at a time")
    senders = visitor.page.locator(".st-key-senders .main-svg").first
    visitor.until(senders.is_visible, lambda: paths.click(timeout=5000))
    visitor.click_point("senders", 2, "sender=", trace=0)
    # The longest bar, which is easily hit.
    longest = visitor.page.locator(".st-key-receivers .chart[data-drawn=true]").evaluate(
        """chart => {
          const sizes = Array.from(chart._fullData[0].x, (x) => Math.abs(x) || 0);
          return sizes.indexOf(Math.max(...sizes));
        }"""
    )
    visitor.click_point("receivers", longest, "receiver=", trace=0)
    visitor.until(lambda: "path_patching(" in visitor.code)
    # The link opens what was opened by hand.
    other = visit()
    other.page.goto(visitor.page.url)
    other.until(other.page.locator(".st-key-receivers .main-svg").first.is_visible)

    visitor.open("Compare", "?model=tiny&prompt=abcabcab&corrupt=abdabcab")
    swap = visitor.page.get_by_role("button", name="Swap the two")
    # The two stand in the address one after the other.
    swapped = ("prompt=abdabcab", "corrupt=abcabcab")
    visitor.until(
        lambda: all(side in visitor.page.url for side in swapped),
        lambda: swap.click(timeout=5000),
    )
