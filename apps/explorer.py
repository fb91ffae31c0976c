"""The explorer: `streamlit run apps/explorer.py [-- --run DIR | --runs DIR]`.

The sidebar holds what everybody looks at; each page in `views/` asks one question about it.
"""

from __future__ import annotations

import sys
import time

import streamlit as st

from chart import chart_ahead

# Title: file, icon, and what the page needs in the sidebar beyond the common items.
PAGES = {
    "Predict": ("views/predict.py", ":material/edit_note:", ("loss",)),
    "Attention": ("views/attention.py", ":material/visibility:", ("layer", "head")),
    "Lens": ("views/lens.py", ":material/search:", ()),
    "Attribution": ("views/attribution.py", ":material/account_tree:", ()),
    "Patching": ("views/patching.py", ":material/swap_horiz:", ("corrupt",)),
    "Sphere": ("views/sphere.py", ":material/language:", ()),
    "Weights": ("views/weights.py", ":material/grid_on:", ("layer", "head")),
    "Neurons": ("views/neurons.py", ":material/hub:", ()),
    "Compare": ("views/compare.py", ":material/compare:", ("corrupt", "layer", "head")),
    "Training": ("views/training.py", ":material/timeline:", ()),
}

# Drawn here: Streamlit would fetch a named icon from another host.
ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<circle cx="16" cy="16" r="9" fill="#1f68ad"/>
<ellipse cx="16" cy="16" rx="15" ry="5" transform="rotate(-20 16 16)" fill="none"
 stroke="#d55e00" stroke-width="2.5"/></svg>"""

CSS = """
[data-testid=stMainBlockContainer] { padding: 2.5rem 2.5rem 3rem; max-width: 1500px; }
[data-testid=stSidebarUserContent] { padding-top: 0.5rem; }
.st-key-ahead { display: none; }
.st-key-refusal { padding-top: 1.5rem; } /* clear of Streamlit's top bar where it comes first */
/* In a narrow window columns stand below each other, and charts with a label for each token scroll
   instead of shrinking until the labels collide. */
@media (max-width: 1150px) {
  [data-testid=stMain] [data-testid=stColumn] { min-width: 100%; }
  :is(.st-key-pattern, .st-key-grid, .st-key-positions, .st-key-patching_map, .st-key-hops,
    .st-key-foreseen, .st-key-neurons, .st-key-activity, .st-key-windows, .st-key-comparison,
    .st-key-inside, .st-key-from_where) {
    overflow-x: auto;
    & .chart { min-width: 700px; }
  }
}
"""


def main() -> None:
    st.set_page_config(page_title="Orrery", page_icon=ICON, layout="wide")
    st.html(f"<style>{CSS}</style>")
    pages = [st.Page(path, title=title, icon=icon) for title, (path, icon, _) in PAGES.items()]
    show(st.navigation(pages))


def show(page: st.Page) -> None:
    """The sidebar, the prompt and the page; or, in their place, one sentence on what is wrong."""
    # The frame of the page is on the screen before this: PyTorch takes seconds to import. Meanwhile
    # the browser fetches what charts need.
    ahead = st.empty()
    if "foundations" not in sys.modules:
        with ahead:
            chart_ahead(key="ahead")
    with st.spinner("Starting …"):
        import foundations  # noqa: F401 - first, to gather all that the others import
        from bringing import brought
        from interp import InputError
        from literal import literal
        from model import ModelError
        from playing import go_on
        from runs import offered
        from selection import choose, show_prompt

    ahead.empty()
    needs, began = PAGES[page.title][2], time.monotonic()
    try:
        selection = choose(offered() | brought(), needs)
        st.title(page.title, anchor=False)
        show_prompt(selection, needs)
        page.run()
        go_on(began)
    except (InputError, ModelError) as error:
        st.container(key="refusal").error(literal(str(error)))


main()
