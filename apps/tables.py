"""The results of a page as tables to take away."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import streamlit as st
import xarray as xr


def offer_tables(results: Mapping[str, Any]) -> None:
    """A choice among the tables of a page's results, and buttons that save the chosen one."""
    tables = dict(_tables(results))
    if not tables:
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        # The key names the choices: another page, or another analysis, has others.
        name = st.selectbox("Table", list(tables), key=f"table {' '.join(tables)}", width=320)
        for ending, write in (("csv", csv), ("npz", npz)):
            st.download_button(
                ending.upper(),
                lambda table=tables[name], write=write: write(table),
                f"{name}.{ending}",
                key=f"download-{ending}",
                on_click="ignore",
            )
    st.caption("Long form, one row a number. Tokens stand as they are.")


def _tables(results: Mapping[str, Any]) -> Iterator[tuple[str, xr.Dataset]]:
    """Variables of one shape share a table, single numbers join each."""
    for name, result in results.items():
        if not isinstance(result, xr.DataArray | xr.Dataset):
            continue
        whole = result.to_dataset() if isinstance(result, xr.DataArray) else result
        whole = whole.squeeze("batch", drop=True) if "batch" in whole.dims else whole
        shapes: dict[tuple, list] = {}
        for variable, values in whole.data_vars.items():
            shapes.setdefault(values.dims, []).append(variable)
        single = shapes.pop((), [])
        for dims, variables in shapes.items():
            by = f"_by_{'_'.join(map(str, dims))}" if len(shapes) > 1 else ""
            yield name + by, whole[variables + single]


def csv(table: xr.Dataset) -> str:
    return table.to_dataframe().to_csv()


def npz(table: xr.Dataset) -> bytes:
    arrays = {str(name): table[name].to_numpy() for name in (*table.data_vars, *table.coords)}
    # Strings as fixed-width text: object arrays would have to be pickled.
    plain = {k: v.astype(str) if v.dtype == object else v for k, v in arrays.items()}
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **plain)
    return file.getvalue()
