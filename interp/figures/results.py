"""Reading labelled results for a figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import xarray as xr

from interp.errors import InputError

Result = TypeVar("Result", xr.DataArray, xr.Dataset)


def one_prompt(result: Result) -> Result:
    """The result without its batch axis.

    Raises:
        InputError: a result of several prompts, which no figure can show at once.
    """
    if "batch" not in result.dims:
        return result
    if result.sizes["batch"] != 1:
        raise InputError(
            f"The result holds {result.sizes['batch']} prompts, but a figure shows one: "
            "choose it with .isel(batch=[i])."
        )
    return result.isel(batch=0)


def tokens_of(result: xr.DataArray | xr.Dataset, dim: str = "pos") -> list[str]:
    """The token strings along a position axis, or the position numbers when they are unknown."""
    coordinate = {"pos": "tokens", "query_pos": "query_tokens", "key_pos": "key_tokens"}[dim]
    if coordinate in result.coords:
        return [str(token) for token in result[coordinate].to_numpy()]
    return [str(pos) for pos in result[dim].to_numpy()]


def state_labels(states: Sequence[str]) -> list[str]:
    """Stream states by what was last added to them: "embedding", "L0 attention", "L0 MLP" ..."""
    with_mlps = any(state.endswith("_mid") for state in states)
    names = []
    for state in states:
        layer, _, step = state.partition("_")
        n_before = len({s.partition("_")[0] for s in states} - {"final"})
        before = n_before - 1 if layer == "final" else int(layer) - 1
        if step == "mid":
            names.append(f"L{layer} attention")
        elif before < 0:
            names.append("embedding")
        else:
            names.append(f"L{before} {'MLP' if with_mlps else 'attention'}")
    return names


def hop_labels(hops: Iterable[str]) -> list[str]:
    """Sublayers and what is in them: "L0 attention", "L0 MLP", "L0 attention bias", "L0H1"."""
    endings = {"_attn_out": " attention", "_mlp_out": " MLP", "_attn_bias": " attention bias"}
    names = []
    for hop in map(str, hops):
        ending = next((e for e in endings if hop.endswith(e)), "")
        names.append(f"L{hop.removesuffix(ending)}{endings[ending]}" if ending else hop)
    return names


def component_names(components: Iterable[str]) -> list[str]:
    """What writes into the stream, in words: "token embedding", "L0H1", "output bias"."""
    plain = {"embed": "token embedding", "pos_embed": "position embedding", "bias": "output bias"}
    return [plain.get(str(name)) or hop_labels([name])[0] for name in components]
