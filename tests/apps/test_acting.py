"""What a person does on the pages, in Chromium: play, drag, stop, bring a file, take files away."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
from brought_files import META, nanogpt
from explorer_server import explorer
from PIL import Image
from tiny_run import write_run

# At once: a page that plays hardly ever rests as long as a click by the mouse waits for.
PAUSE = """() => {
  const button = document.querySelector(".st-key-play button");
  if (button?.innerText.includes("Pause")) button.click();
}"""
# Streamlit has a Stop of its own, which ends the page with the work.
STOP = """() => {
  const button = document.querySelector(".st-key-stop button");
  button?.click();
  return Boolean(button);
}"""
NUMBERS = "chart => JSON.stringify(Array.from(chart._fullData[0].x))"
pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_the_step_is_dragged_and_played(visit):
    visitor = visit()
    visitor.open("Attribution", "?model=tiny&prompt=abcabc")
    track = visitor.page.locator(".st-key-step [role=group] > div").first

    def drag_to_the_start() -> None:
        # The handle is at the end, where the slider begins.
        box = track.bounding_box()
        height, end = box["y"] + box["height"] / 2, box["x"] + box["width"]
        visitor.page.mouse.move(end - 1, height)
        visitor.page.mouse.down()
        visitor.page.mouse.move(box["x"], height, steps=8)
        visitor.page.mouse.up()

    visitor.until(lambda: "step=0" in visitor.page.url, drag_to_the_start)
    visitor.until(lambda: "step=0" in visitor.code)
    before = visitor.page.locator(".js-plotly-plot").first.evaluate(NUMBERS)

    play = visitor.page.get_by_role("button", name="Play")
    # It plays to the last step, whose address says nothing.
    visitor.until(lambda: "step=" not in visitor.page.url, lambda: play.click(timeout=5000))
    visitor.until(play.is_visible)
    visitor.until(lambda: "step=" not in visitor.code)
    after = visitor.page.locator(".js-plotly-plot").first.evaluate(NUMBERS)
    assert after != before


def test_playing_can_be_paused(visit):
    visitor = visit()
    visitor.open("Attribution", "?model=shakespeare&step=16")
    play = visitor.page.get_by_role("button", name="Play")
    pause = visitor.page.get_by_role("button", name="Pause")
    visitor.until(pause.is_visible, lambda: play.click(timeout=5000))

    def rests() -> bool:
        at = visitor.page.url
        visitor.page.wait_for_timeout(1500)
        return play.is_visible() and visitor.page.url == at

    for _ in range(40):
        visitor.page.evaluate(PAUSE)
        if visitor.sees(rests):
            break
    assert rests()
    # The last step stands in no address.
    assert "step=" in visitor.page.url


def test_a_nanogpt_file_is_brought(visit, tmp_path: Path):
    (tmp_path / "ckpt.pt").write_bytes(nanogpt())
    (tmp_path / "meta.pkl").write_bytes(META)
    visitor = visit()
    visitor.open("Lens", "?model=tiny")
    page = visitor.page
    dialog = page.get_by_role("dialog")
    opened = page.get_by_role("button", name="Open another checkpoint")
    visitor.until(dialog.is_visible, lambda: opened.click(timeout=5000))
    box = dialog.locator("input[type=file]")
    names = dialog.get_by_test_id("stFileChipName")
    files = [str(tmp_path / name) for name in ("ckpt.pt", "meta.pkl")]
    visitor.until(lambda: names.count() == 2, lambda: box.set_input_files(files, timeout=5000))
    equal = dialog.get_by_text("sites are equal")
    go = dialog.get_by_role("button", name="Convert and prove")
    visitor.until(equal.is_visible, lambda: go.click(timeout=5000))
    assert "Recognised as nanogpt" in dialog.get_by_test_id("stAlert").first.inner_text()
    look = dialog.get_by_role("button", name="Look at ckpt")
    visitor.until(lambda: "model=ckpt" in page.url, lambda: look.click(timeout=5000))
    visitor.until(lambda: "orrery-session-" in visitor.code)
    assert page.locator(".js-plotly-plot").count() > 0

    other = visit()
    other.open("Lens", "?model=ckpt")
    told = other.page.get_by_test_id("stAlert")
    other.until(lambda: "which is not there" in told.first.inner_text())


@pytest.fixture
def slow_address(tmp_path: Path) -> Iterator[str]:
    """A server with a model whose exact patching takes long."""
    sizes = {"n_layers": 4, "d_model": 384, "n_heads": 6, "n_ctx": 256}
    write_run(tmp_path / "large", steps=(0,), **sizes)
    with explorer("--runs", str(tmp_path)) as address:
        yield address


def test_exact_patching_is_stopped_and_run_again(chromium, slow_address):
    from visitor import Visitor

    visitor = Visitor(chromium, slow_address)
    page = visitor.page
    text = "To be, or not to be: that is the question. " * 3
    # Changed at its start, the other prompt differs everywhere.
    query = f"?prompt={quote(text)}&corrupt={quote('D' + text[1:])}"
    page.goto(f"{slow_address}/patching{query}")
    again = page.get_by_role("button", name="Run the exact sweep")
    estimate = page.get_by_text("An estimate: the difference")
    pressed = 0
    for _ in range(600):
        if visitor.sees(again.is_visible):
            break
        pressed += visitor.sees(lambda: page.evaluate(STOP))
        page.wait_for_timeout(100)
    visitor.until(again.is_visible)
    assert pressed
    visitor.until(estimate.is_visible)
    visitor.until(lambda: "attribution_patching(" in visitor.code)

    visitor.until(lambda: not again.is_visible(), lambda: again.click(timeout=5000))
    visitor.until(lambda: "activation_patching(" in visitor.code)
    visitor.until(lambda: not estimate.is_visible())
    assert visitor.complaints == []
    visitor.context.close()


@pytest.mark.webgl
def test_every_kind_of_file_opens_again(visit, tmp_path: Path):
    visitor = visit(accept_downloads=True)
    visitor.open("Attribution", "?model=tiny&prompt=abc&target=a&contrast=b")
    table = pd.read_csv(io.BytesIO(visitor.take("CSV").read_bytes()))
    assert {"component", "pos", "tokens", "part"} <= set(table.columns)
    assert set(table["tokens"]) == set("abc")
    visitor.tab("Figure")
    bars = visitor.take("bars (HTML)").read_text()

    visitor.open("Sphere", "?model=tiny&prompt=a <b>%0Ab")
    table = pd.read_csv(io.BytesIO(visitor.take("CSV").read_bytes()))
    arrays = np.load(io.BytesIO(visitor.take("NPZ").read_bytes()))
    assert len(table) > 0
    assert {"pos", "tokens"} <= set(arrays.files) | set(table.columns)

    visitor.tab("Figure")
    png = Image.open(io.BytesIO(visitor.take("hops (PNG)").read_bytes()))
    assert png.format == "PNG"
    assert png.width > 600
    assert len(png.convert("RGB").getcolors(1 << 24)) > 10
    svg = visitor.take("hops (SVG)").read_text()
    assert svg.startswith("<svg")
    ball = Image.open(io.BytesIO(visitor.take("ball (PNG)").read_bytes()))
    assert ball.format == "PNG"
    for name, content in (
        ("hops.svg", svg),
        ("ball.html", visitor.take("ball (HTML)").read_text()),
        ("bars.html", bars),
    ):
        (tmp_path / name).write_text(content)
        alone = visit(offline=True)
        alone.address = "file://"
        alone.page.goto(f"file://{tmp_path}/{name}")
        alone.page.locator("svg").first.wait_for()
    labels = alone.page.locator(".ytick")
    alone.until(lambda: "token embedding" in labels.all_text_contents())
