"""A plotly figure that is drawn once and then changed in place.

Streamlit's own chart is made anew whenever its figure changes, and drawn twice: the page blinks, a
zoom or a turned 3-D view is lost, and half a second goes by where plotly's own update takes a
third of that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.components.v1 import declare_component
from streamlit.components.v2 import component

CONFIG = {
    "displaylogo": False,
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "toImageButtonOptions": {"format": "png", "scale": 2},
}
"""plotly's settings of every chart, on the page and in a file"""

_PLOTLY = distribution("plotly")
_JS = Path(__file__).with_name("chart.js").read_text("utf-8")
_CSS = """
.chart { position: relative; width: 100%; }
.chart:fullscreen { background: var(--st-background-color); }
.chart.clickable .drag { cursor: pointer; }
"""


def chart(
    figure: str,
    *,
    key: str,
    alt: str,
    subject: str,
    on_click: Callable[[Any], None] | None = None,
) -> None:
    """Show a figure.

    Args:
        figure: plotly's JSON of it.
        alt: it in words, for those who do not see it.
        subject: what it is about; while this stays, so do zoom, turned view and hidden lines.
        on_click: called with the customdata of a point that was clicked.
    """

    def clicked() -> None:
        found = st.session_state[key].clicked
        if on_click is not None and found is not None:
            on_click(found)

    about = {"alt": alt, "subject": subject, "clickable": on_click is not None}
    _mount(figure, about, key=key, on_clicked=clicked)


def chart_ahead(*, key: str) -> None:
    """No chart, but what the browser must fetch for the first one, fetched while it waits."""
    _mount("null", {}, key=key, on_clicked=lambda: None)


def _mount(figure: str, about: dict[str, Any], *, key: str, on_clicked: Callable[[], None]) -> None:
    # plotly.js comes from the plotly package, by the one way that Streamlit has to serve a folder
    # of another package. Both are registered anew at each run: at import they would reach only the
    # first server of a process.
    served = declare_component("plotly", path=str(_PLOTLY.locate_file("plotly/package_data")))
    about["library"] = f"component/{served.name}/plotly.min.js?{_PLOTLY.version}"
    about["config"] = CONFIG
    mount = component(
        "orrery_chart", html='<div class="chart"></div>', css=_CSS, js=_JS, isolate_styles=False
    )
    # Bytes, which Streamlit passes on as they are; a dictionary it would write down three times.
    data = f'{{"figure": {figure}, {json.dumps(about)[1:]}'.encode()
    mount(key=key, data=data, on_clicked_change=on_clicked)
