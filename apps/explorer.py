"""The explorer: `streamlit run apps/explorer.py [-- --run DIR | --runs DIR]`.

The sidebar holds what everybody looks at; each page in `views/` asks one question about it.
"""

from __future__ import annotations

import streamlit as st

from interp import InputError
from literal import literal
from model import ModelError
from runs import offered
from selection import choose, show_prompt

PAGES = {
    "Attention": ("views/attention.py", ":material/visibility:", ("layer", "head")),
    "Lens": ("views/lens.py", ":material/search:", ()),
    "Attribution": ("views/attribution.py", ":material/account_tree:", ()),
    "Patching": ("views/patching.py", ":material/swap_horiz:", ("corrupt",)),
    "Sphere": ("views/sphere.py", ":material/language:", ()),
}

_CSS = """
[data-testid=stMainBlockContainer] { padding: 2.5rem 2.5rem 3rem; max-width: 1500px; }
[data-testid=stSidebarUserContent] { padding-top: 0.5rem; }
"""


def main() -> None:
    st.set_page_config(page_title="Orrery", page_icon="🪐", layout="wide")
    st.html(f"<style>{_CSS}</style>")
    pages = [st.Page(path, title=title, icon=icon) for title, (path, icon, _) in PAGES.items()]
    page = st.navigation(pages)
    needs = PAGES[page.title][2]
    try:
        selection = choose(offered(), needs)
        st.title(page.title, anchor=False)
        show_prompt(selection, needs)
        page.run()
    except (InputError, ModelError) as error:
        st.error(literal(str(error)))


main()
