"""Take the pictures of every page that the README shows: python tests/screenshots.py [--run DIR]"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from explorer_server import PAGES, ROOT, browser, explorer, open_page, why_no_browser
from PIL import Image

IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 200_000
_SIZE = {"width": 1400, "height": 900}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", help="a run to show, in place of the shipped one")
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=PAGES)
    parser.add_argument("--width", type=int, default=_SIZE["width"])
    options = parser.parse_args()
    if reason := why_no_browser():
        parser.exit(1, f"{reason}\n")
    options.out.mkdir(parents=True, exist_ok=True)
    arguments = ["--run", str(Path(options.run).resolve())] if options.run else []
    with explorer(*arguments) as address, browser(webgl=True) as chromium:
        page = chromium.new_page(
            viewport=_SIZE | {"width": options.width},
            color_scheme="dark" if options.dark else "light",
        )
        for name in options.pages:
            page.set_viewport_size(_SIZE | {"width": options.width})
            open_page(page, address, name)
            # As tall as the page is, so that nothing is cut off.
            height = page.evaluate(
                "document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight"
            )
            page.set_viewport_size({"width": options.width, "height": min(height + 20, 2400)})
            page.wait_for_timeout(1200)
            (options.out / f"{name.lower()}.png").write_bytes(small(page.screenshot()))


def small(png: bytes) -> bytes:
    """The picture in all its colours if that is small enough, else with a palette."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    for shown in (image, image.quantize(256, dither=Image.Dither.NONE)):
        file = io.BytesIO()
        shown.save(file, "png", optimize=True)
        if len(file.getvalue()) <= MOST_BYTES:
            return file.getvalue()
    raise ValueError(f"a picture of {MOST_BYTES} bytes at most is wanted: show less on it")


if __name__ == "__main__":
    main()
