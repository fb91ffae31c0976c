"""One page of how the shipped models came to be what they are.

Measures every shipped snapshot (what is kept beside a run is not measured again; `--again` does),
and writes docs/findings/dynamics.md.

    python docs/findings/dynamics.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import xarray as xr
from shared import ROOT, table

import interp
from model import Snapshots
from model.commands.dynamics import measured

INDUCTION = [
    "copying", "lens_depth", "path_length", "norm", "val_loss", "second_copy_loss",
    "k_composition", "edge_overlap", "growth_rate", "induction", "previous_token",
    "second_minus_first", "in_context", "duplicate_token",
]  # fmt: skip
GRAMS = ("uniform", "unigram", "bigram", "trigram")


def half_way(points: xr.Dataset, names: list[str]) -> str:
    """One row a curve that changes, the earliest first; several runs side by side."""
    chosen = points.sel(track=names).sortby("median")
    runs = [str(run) for run in points["run"].to_numpy()]
    rows, still = [], []
    for name in chosen["track"].to_numpy():
        point = chosen.sel(track=name)
        title = str(point["title"].item())
        if not int(point["n_runs"]):
            still.append(title)
            continue
        row: list[object] = [title]
        for run in runs:
            one = point.sel(run=run)
            row.append(_between(one))
        if len(runs) > 1:
            row += [f"{float(point['median']):.0f}", _range(point)]
        else:
            one = point.isel(run=0)
            row += [float(one["start"]), float(one["end"])]
        rows.append(row)
    header = ["curve", *runs, *(["median", "range"] if len(runs) > 1 else ["start", "end"])]
    unmoved = f"\n\nNo change to speak of: {'; '.join(still)}." if still else ""
    return table(header, rows) + unmoved


def _between(point: xr.Dataset) -> str:
    if not np.isfinite(point["step"]):
        return "–"
    often = int(point["crossings"])
    times = f", {often} crossings" if often > 1 else ""
    return (
        f"{float(point['step']):.0f} ({float(point['after']):.0f} to {float(point['by']):.0f}"
        f"{times})"
    )


def _range(point: xr.Dataset) -> str:
    return f"{float(point['earliest']):.0f} to {float(point['latest']):.0f}"


def order(points: xr.Dataset, first: str, second: str) -> str:
    """Which of two curves is half-way first, seed by seed, in words."""
    found = interp.lead(points, first, second)
    leads = found["lead"].to_numpy()
    n_first, n_seeds = int((leads >= 0).sum()), len(leads)
    rows = [
        [
            str(run),
            *(_between(points.sel(run=run, track=name)) for name in (first, second)),
            f"{float(found['lead'].sel(run=run)):+.1f}",
            "yes" if bool(found["resolved"].sel(run=run)) else "no, within one gap",
        ]
        for run in points["run"].to_numpy()
    ]
    names = [str(points["title"].sel(track=name).item()) for name in (first, second)]
    header = ["run", *names, "steps from the first to the second", "told by the snapshots"]
    if n_first == n_seeds:
        verdict = f"The {names[0]} is half-way no later than the {names[1]} in every seed."
    elif not n_first:
        verdict = (
            f"The {names[0]} is **not** half-way before the {names[1]}: it comes later in every "
            "seed."
        )
    else:
        verdict = (
            f"The {names[0]} is half-way no later than the {names[1]} in {n_first} of {n_seeds} "
            f"seeds, and **later in {n_seeds - n_first}**."
        )
    return f"{table(header, rows)}\n\n{verdict}"


def of_induction(measures: list[xr.Dataset]) -> str:
    """The phase change, its spread over seeds, and what crosses before and after it."""
    curves = interp.training_curves(*measures)
    points = interp.change_points(curves)
    second = points.sel(track="second_copy_loss")
    first = measures[0]
    shown = ["second_copy_loss", "induction", "previous_token", "copying", "k_composition"]
    steps = [int(s) for s in first["step"].to_numpy()]
    values = curves.isel(run=0).sel(track=shown)
    rows = [[s, *(float(v) for v in values.sel(step=s).to_numpy())] for s in steps]
    titles = [str(t) for t in values["title"].to_numpy()]
    end = first.isel(step=-1)
    heads = ", ".join(
        f"L{i}H{j} {float(end['induction'].sel(layer=i, head=j)):.2f}"
        for i in end["layer"].to_numpy()
        for j in end["head"].to_numpy()
        if float(end["induction"].sel(layer=i, head=j)) > 0.5
    )
    before = ", ".join(f"{float(v):.2f}" for v in end["previous_token"].sel(layer=0).to_numpy())
    return f"""## The phase change of `induction`

Three seeds of one recipe. The loss on the second copy of a random block falls from
{float(second["start"].mean()):.2f} to {float(second["end"].mean()):.4f} nats, and is half-way at
step **{float(second["median"]):.0f}** (seeds: {_range(second)}). In brackets: the two snapshots
that a crossing lies between, which is how well it is known.

{half_way(points, INDUCTION)}

### Does the previous-token head come first?

{order(points, "previous_token", "induction")}

The textbook's order (Olsson et al. 2022) is the previous-token head first, the induction head on
top of it. What happens here: OV circuits of the second layer that copy are there long before
anything attends rightly (median step {float(points["median"].sel(track="copying")):.0f}); then
previous-token attention, K-composition and induction attention rise together, within one or two
snapshots of each other. They coincide; their order is finer than these curves can tell, and none
of this says which causes which. The scores are also not of one kind: the strongest previous-token
head ends at {float(end["previous_token"].max()):.2f} of its attention, far from 1, because all
four heads of the first layer share the work ({before} each, over all positions; chance
{1 - 1 / 31 * sum(1 - 1 / (q + 1) for q in range(1, 32)):.2f}), while each induction head ends near
1 ({heads}). Half of a change to {float(end["previous_token"].max()):.1f} is less attention than
half of a change to 1.

### The first seed, step by step

{table(["step", *titles], rows)}

The loss on *all* tokens of the windows does not fall with the second copy's: it rises again from
step {float(interp.lowest_points(curves)["median"].sel(track="loss")):.0f} on, because the first
copy of a block cannot be predicted and is no target in training, and the model grows sure of
itself there too.
"""


def of_shakespeare(measures: xr.Dataset) -> str:
    """The order of the n-grams, what changes when, and what is not there."""
    curves = interp.training_curves(measures)
    points, lowest = interp.change_points(curves), interp.lowest_points(curves)
    rows = []
    verdicts = {}
    for prefix, words in (("kl_", "KL(model ‖ {})"), ("kl_from_", "KL({} ‖ model)")):
        steps = []
        for gram in GRAMS:
            low = lowest.sel(track=prefix + gram).isel(run=0)
            last = float(curves.sel(track=prefix + gram).isel(run=0, step=-1))
            inside = "" if bool(low["inside"]) else ", at an end"
            steps.append(float(low["step"]))
            rows.append(
                [words.format(gram), f"{int(low['step'])}{inside}", float(low["value"]), last]
            )
        verdicts[words.format("·")] = steps
    said = "; ".join(
        f"by {name} the minima come at steps {', '.join(f'{s:.0f}' for s in steps)}, "
        + ("each no earlier than the one before" if steps == sorted(steps) else "**not in order**")
        for name, steps in verdicts.items()
    )
    verdict = (
        "The model passes closest to the uniform distribution, to single characters, to pairs and "
        "to triples in that order, and leaves each of them behind."
        if all(steps == sorted(steps) for steps in verdicts.values())
        else "The order uniform, unigram, bigram, trigram is **not** what is seen."
    )
    others = [
        "val_loss", "kl_to_final", "previous_token", "duplicate_token", "induction", "copying",
        "k_composition", "second_copy_loss", "in_context", "kappa_first", "kappa_last", "norm",
        "growth_rate", "path_length", "directness", "dimension", "mean_cosine", "cosine_to_ones",
        "lens_depth", "tuned_lens_depth", "edge_overlap",
    ]  # fmt: skip
    end, start = measures.isel(step=-1), measures.isel(step=0)
    best = end["induction"].max()
    excess = float((end["induction"] - end["induction_control"]).max())
    overlap = curves.sel(track="edge_overlap").isel(run=0)
    shared = [[int(s), 100 * float(overlap.sel(step=s))] for s in overlap["step"].to_numpy()]
    return f"""## From frequencies to trigrams: `shakespeare`

How far the model is from n-gram models of its training text, on {end.attrs["settings"]["windows"]}
windows of held-out text: where each divergence is lowest, and where it ends.

{table(["divergence", "lowest at step", "there, nats", "at the end"], rows)}

So {said}. {verdict} Snapshots lie a
factor of 1.4 to 2 apart, which bounds how well each minimum is known; this is one seed.

### What changes when

{half_way(points, others)}

### What is not there

- **No induction head.** The strongest induction score ends at {float(best):.3f} (it began at
  {float(start["induction"].max()):.3f}); above its own shuffled control the best head has
  {excess:+.3f}. The loss on random blocks read twice *rises* to
  {float(end["second_copy_loss"]):.1f} nats, and the second copy is no better predicted than the
  first ({float(end["second_minus_first"]):+.2f} nats). At 64 characters this text does not teach
  copying.
- **A previous-token head is there** ({float(end["previous_token"].max()):.2f}), without an
  induction head on top of it: the one does not bring the other.
- Late positions are predicted better than early ones by only
  {-float(end["in_context"]):.3f} nats.

### The edges

Share of the strongest tenth of all edges (edge attribution, log-probability of the true next
character, another window as the ablation) that is among those of the final model. Two random sets
share a tenth, but already at initialisation it is {shared[0][1]:.0f} %: read the growth from there.
The last row is the final model with itself.

{table(["step", "shared, %"], shared)}
"""


def page(again: bool) -> str:
    """The whole page."""
    induction = ROOT / "checkpoints/induction"
    runs = [induction, *sorted((induction / "seeds").iterdir())]
    measures = [measured(Snapshots(run), again=again) for run in runs]
    text = measured(Snapshots(ROOT / "checkpoints/shakespeare"), again=again)
    return f"""# How the shipped models formed

Written by `python docs/findings/dynamics.py` from the shipped snapshots. `orrery dynamics RUN`
gives the same numbers of any run, as a table and with figures, and the explorer's Training page
draws them.

*Half-way*: where a curve first crosses the middle between its first and its last value, as a
straight line over log steps between two snapshots. Curves that cross together coincide; that one
brings about the other would need an intervention, and models can learn in context while induction
heads are suppressed (Şahin et al. 2025, arXiv:2511.05743).

{of_induction(measures)}
{of_shakespeare(text)}"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="measure what is kept already, too")
    parser.add_argument("--page", type=Path, default=Path(__file__).with_name("dynamics.md"))
    args = parser.parse_args()
    args.page.write_text(page(args.again), encoding="utf-8")
