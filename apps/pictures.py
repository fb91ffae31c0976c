"""Each chart of a page as a file: HTML from the server, SVG and PNG drawn by the browser itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.components.v2 import component

from chart import CONFIG

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_CSS = """
.row { display: flex; flex-wrap: wrap; gap: 0.5rem; }
button { font: inherit; font-size: 0.875rem; padding: 0.35rem 0.75rem; cursor: pointer;
  border-radius: 0.5rem; color: var(--st-text-color); background: var(--st-background-color);
  border: 1px solid color-mix(in srgb, var(--st-text-color) 25%, transparent); }
button:hover, button:focus-visible { color: var(--st-primary-color);
  border-color: var(--st-primary-color); outline: none; }
"""

# The chart's own camera button does the work, so that no library and no server takes part.
_JS = """
export default function ({ data, parentElement }) {
  const row = parentElement.querySelector(".row");
  row.replaceChildren(...data.names.flatMap((name) => ["svg", "png"].map((format) => {
    const button = document.createElement("button");
    button.textContent = `${name.replaceAll("_", " ")} (${format.toUpperCase()})`;
    button.onclick = () => {
      const chart = document.querySelector(`.st-key-${name} .js-plotly-plot`);
      const camera = chart?.querySelector('.modebar-btn[data-title^="Download"]');
      if (!camera) return;
      chart._context.toImageButtonOptions = { format, filename: name, scale: 2 };
      camera.click();
    };
    return button;
  })));
}
"""


def offer_pictures(drawn: Mapping[str, Figure]) -> None:
    """Buttons that save each chart.

    Args:
        drawn: figures by the key of their chart on this page.
    """
    st.caption("HTML opens without a network and is still interactive. SVG and PNG are as shown.")
    with st.container(horizontal=True):
        for name, figure in drawn.items():
            st.download_button(
                f"{name.replace('_', ' ')} (HTML)",
                lambda figure=figure: figure.to_html(config=CONFIG),
                f"{name}.html",
                "text/html",
                key=f"html-{name}",
                on_click="ignore",
            )
    # Registered anew at each run: at import it would reach only the first server of a process.
    pictures = component("orrery_pictures", html='<div class="row"></div>', css=_CSS, js=_JS)
    pictures(key="pictures", data={"names": list(drawn)})
