"""What was proven of a model that other code wrote, as a table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from literal import literal
from model.certificate import CERTIFICATE
from model.equivalence import by_kind
from model.files import read_json


def show_certificate(run: Path) -> None:
    """The dialect, the assumptions and the largest difference at each kind of site."""
    said = read_json(run / CERTIFICATE) if (run / CERTIFICATE).is_file() else None
    if said is None:
        st.caption("A run of this project: nothing was converted.")
        return
    tables = {
        name: pd.DataFrame.from_dict(sites, orient="index")
        for name, sites in said["largest_difference"].items()
    }
    n_sites = sum(map(len, tables.values()))
    st.success(f"Recognised as {literal(said['dialect'])}; all {n_sites} sites are equal.")
    assumed = [setting for setting in said["settings"] if setting["assumed"]]
    if assumed:
        words = ", ".join(f"{s['field']} = {s['value']} ({s['origin']})" for s in assumed)
        st.warning(f"Assumed, because the file does not say: {literal(words)}.")
    for note in said["notes"]:
        st.caption(literal(f"{note}."))
    for name, sites in tables.items():
        st.caption(f"Largest |{literal(name)}| at each kind of site")
        kinds = by_kind(sites)
        shown = kinds.map("{:.1e}".format).rename_axis("site").reset_index()
        with st.container(height=260):
            st.table(shown.set_index("site"))
    with st.expander("Settings"):
        st.table(
            [
                {"setting": s["field"], "value": str(s["value"]), "from": literal(s["origin"])}
                for s in said["settings"]
            ]
        )


def has_certificate(run: Path) -> bool:
    return (run / CERTIFICATE).is_file()
