"""From measures to curves: one number a step, for one run or for several."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import xarray as xr

from interp.errors import InputError

Read = Callable[[xr.Dataset], xr.DataArray]


@dataclass(frozen=True)
class Track:
    """One curve.

    Attributes:
        title: what it is, for an axis or a table.
        units: its unit, "1" for a pure number.
        group: the curves that are looked at together.
        least: the smallest change from start to end that is called one; infinite for a curve whose
            story is where it is lowest, not its ends.
        read: takes the curve from `training_measures` with a `step` axis.
    """

    title: str
    units: str
    group: str
    least: float
    read: Read


def _number(name: str) -> Read:
    return lambda measures: measures[name]


def _order(name: str, order: int) -> Read:
    return lambda measures: measures[name].sel(order=order, drop=True)


def _strongest(name: str) -> Read:
    """Heads change places from seed to seed, so the largest score stands for all of them."""
    return lambda measures: measures[name].max(("layer", "head"))


def _state(name: str, state: int) -> Read:
    return lambda measures: measures[name].isel(state=state, drop=True)


def _decades(read: Read) -> Read:
    return lambda measures: xr.apply_ufunc(np.log10, read(measures))


def _best_pair(measures: xr.Dataset) -> xr.DataArray:
    """K-composition of the head that ends as the strongest induction head with the head of an
    earlier layer that ends as the strongest previous-token head."""
    end = measures.isel(step=-1)
    layer, head = _argmax(end["induction"].where(end["layer"] > 0))
    source = _argmax(end["previous_token"].where(end["layer"] < layer))
    chosen = {"source_layer": source[0], "source_head": source[1], "layer": layer, "head": head}
    return measures["k_composition"].sel(chosen).drop_vars(list(chosen))


def _argmax(score: xr.DataArray) -> tuple[int, int]:
    flat = score.fillna(-np.inf).transpose("layer", "head").to_numpy()
    layer, head = np.unravel_index(flat.argmax(), flat.shape)
    return int(layer), int(head)


_GRAMS = ("uniform", "unigram", "bigram", "trigram")

TRACKS: Mapping[str, Track] = MappingProxyType(
    {
        "train_loss": Track(
            "training loss, as recorded", "nats", "loss", 0.1, _number("train_loss")
        ),
        "val_loss": Track("validation loss, as recorded", "nats", "loss", 0.1, _number("val_loss")),
        "loss": Track("loss on the windows", "nats", "loss", 0.1, _number("loss")),
        "kl_to_final": Track(
            "KL(final model ‖ model)", "nats", "loss", 0.1, _number("kl_to_final")
        ),
        **{
            f"kl_{name}": Track(
                f"KL(model ‖ {name})", "nats", "n-grams", math.inf, _order("kl_model_ngram", order)
            )
            for order, name in enumerate(_GRAMS)
        },
        **{
            f"kl_from_{name}": Track(
                f"KL({name} ‖ model)", "nats", "to n-grams", math.inf,
                _order("kl_ngram_model", order),
            )
            for order, name in enumerate(_GRAMS)
        },
        "previous_token": Track(
            "strongest previous-token head", "probability", "heads", 0.1,
            _strongest("previous_token"),
        ),
        "duplicate_token": Track(
            "strongest duplicate-token head", "probability", "heads", 0.1,
            _strongest("duplicate_token"),
        ),
        "induction": Track(
            "strongest induction head", "probability", "heads", 0.1, _strongest("induction")
        ),
        "copying": Track("strongest copying head", "1", "heads", 0.2, _strongest("copying")),
        "k_composition": Track(
            "K-composition, previous token into induction", "1", "heads", 0.05, _best_pair
        ),
        "second_copy_loss": Track(
            "loss on the second copy of a random block", "nats", "in context", 0.1,
            _number("second_copy_loss"),
        ),
        "second_minus_first": Track(
            "second copy minus first", "nats", "in context", 0.1, _number("second_minus_first")
        ),
        "in_context": Track(
            "late positions minus early ones", "nats", "in context", 0.05, _number("in_context")
        ),
        "kappa_first": Track(
            "log₁₀ ε/σ² at the first LayerNorm", "decades", "sphere", 0.3,
            _decades(_state("kappa", 0)),
        ),
        "kappa_last": Track(
            "log₁₀ ε/σ² at the last LayerNorm", "decades", "sphere", 0.3,
            _decades(_state("kappa", -1)),
        ),
        "norm": Track(
            "log₁₀ length of the last state", "decades", "sphere", 0.1, _decades(_state("norm", -1))
        ),
        "growth_rate": Track("growth of the length a layer", "1", "sphere", 0.1,
                             _number("growth_rate")),
        "path_length": Track("path over the sphere", "radians", "sphere", 0.3,
                             _number("path_length")),
        "directness": Track("directness of that path", "1", "sphere", 0.05, _number("directness")),
        "mean_cosine": Track(
            "mean cosine of two tokens, last state", "1", "sphere", 0.05,
            _state("mean_cosine", -1),
        ),
        "cosine_to_ones": Track(
            "mean |cosine| to the ones, last state", "1", "sphere", 0.02,
            _state("cosine_to_ones", -1),
        ),
        "dimension": Track(
            "participation ratio, last state", "dimensions", "dimension", 2.0,
            _state("dimension", -1),
        ),
        "lens_depth": Track(
            "state from which the logit lens agrees with the end", "state index", "lens", 0.5,
            _number("lens_depth"),
        ),
        "tuned_lens_depth": Track(
            "state from which the tuned lens does", "state index", "lens", 0.5,
            _number("tuned_lens_depth"),
        ),
        "edge_overlap": Track(
            "strongest edges shared with the final model", "share", "circuit", 0.2,
            _number("edge_overlap"),
        ),
    }
)  # fmt: skip
"""Every curve by its name, in the order in which they are shown."""


def training_curves(*measures: xr.Dataset, names: Sequence[str] | None = None) -> xr.DataArray:
    """The curves of one run, or of several (seeds), over the steps that any of them has.

    Args:
        measures: what `track_training` returned, of each run.
        names: of `TRACKS`; all by default.

    Returns:
        `curve` [run, track, step], NaN where a run has no such step or nothing was measured.
        Coordinates `tokens_seen` [run, step]; `title`, `units`, `group` along track. Runs of one
        name are told apart by a number.

    Raises:
        InputError: no run, or an unknown curve.
    """
    chosen = list(TRACKS) if names is None else list(names)
    unknown = [name for name in chosen if name not in TRACKS]
    if unknown or not measures or not chosen:
        raise InputError(
            f"{len(measures)} runs and curves {unknown or chosen} came, but at least one run and "
            f"curves among {', '.join(TRACKS)} are needed."
        )
    labels = _distinct([str(run.attrs.get("run", "run")) for run in measures])
    table = xr.concat(
        [_curves_of(run, chosen) for run in measures],
        xr.DataArray(labels, dims="run", name="run"),
        join="outer",
        coords="different",
        compat="equals",
    )
    seen = table["tokens_seen"]
    if "run" not in seen.dims:
        table = table.assign_coords(tokens_seen=seen.expand_dims(run=labels))
    tracks = [TRACKS[name] for name in chosen]
    return table.assign_coords(
        {
            name: ("track", [getattr(t, name) for t in tracks])
            for name in ("title", "units", "group")
        }
    ).assign_attrs(units="see the units coordinate")


def _curves_of(measures: xr.Dataset, names: Sequence[str]) -> xr.DataArray:
    unknown = xr.full_like(measures["step"], np.nan, dtype=float)
    columns = []
    for name in names:
        try:
            column = TRACKS[name].read(measures).astype(float)
        except KeyError:  # not measured: n-grams without a text, a history without losses
            column = unknown
        columns.append(column.reset_coords(drop=True).rename("curve"))
    table = xr.concat(columns, xr.DataArray(list(names), dims="track", name="track"))
    return table.assign_coords(tokens_seen=measures["tokens_seen"].reset_coords(drop=True))


def _distinct(names: Sequence[str]) -> list[str]:
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})"
        for i, name in enumerate(names)
    ]
