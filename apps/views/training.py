"""Training: how each mechanism formed, step by step."""

import shlex

import numpy as np
import streamlit as st

import interp
from interp import figures
from interp.dynamics import TRACKS
from interp.figures.dynamics import measured
from literal import literal
from model import Snapshots
from runs import shown_path
from selection import current
from worksheet import Worksheet

BLOCKS, AT_ONCE = 128, 1e10
"""windows that each snapshot reads, and the multiplications that nobody has to ask for"""
KEPT = "dynamics/training_measures.safetensors"
HEADS = {
    "previous token": "previous_token",
    "duplicate token": "duplicate_token",
    "induction": "induction",
    "copying": "copying",
}
PLACES = {
    "length": "norm",
    "ε/σ²": "kappa",
    "hop angle": "hop_angle",
    "dimension": "dimension",
    "mean cosine": "mean_cosine",
    "cosine to the ones": "cosine_to_ones",
    "logit lens": "lens_kl",
    "tuned lens": "tuned_lens_kl",
}


def choose_clicked(point: list) -> None:
    if int(point[0]) in current().run.steps:
        st.session_state["step"] = int(point[0])


page = Worksheet()
at = page.selection
st.markdown(
    "Every snapshot of this run, measured alike. Click a point to see all pages as the model was "
    "at that step. A diamond marks where a curve is half-way from its start to its end, a triangle "
    "where a distance to n-grams is lowest."
)
kept = at.run.path / KEPT
if kept.is_file():
    page.others.append(str(kept.stat().st_mtime_ns))
    measures = page.combine("measures", interp.read_results, shown_path(kept))
    runs = [measures]
    for place, other in enumerate(sorted(at.run.path.glob(f"seeds/*/{KEPT}")), start=1):
        page.others.append(str(other.stat().st_mtime_ns))
        runs.append(page.combine(f"seed_{place}", interp.read_results, shown_path(other)))
else:
    path = shown_path(at.run.path)
    st.info(
        "Nothing is kept of this run yet, so this is measured on random blocks. This measures it "
        "on its own text, once:"
    )
    st.code(f"orrery dynamics {shlex.quote(path)}", language="bash")
    series = page.given("series", Snapshots(path), f"Snapshots({path!r})", path, "Snapshots")
    work = len(at.run.steps) * BLOCKS * at.model.cfg.n_ctx * (at.model.cfg.n_params or 0)
    measures = page.sweep_steps(
        "measures", interp.track_training, series, at_once=work < AT_ONCE, cache=None
    )
    if measures is None:
        page.close()
        st.stop()
    runs = [measures]
curves = page.combine("curves", interp.training_curves, *runs)
points = page.combine("points", interp.change_points, curves)
lowest = page.combine("lowest", interp.lowest_points, curves)
for step, why in measures.attrs["skipped"]:
    st.warning(f"Step {step} is left out: {literal(str(why))}")

steps = [int(step) for step in measures["step"].to_numpy()]
groups = [
    group
    for group in dict.fromkeys(track.group for track in TRACKS.values())
    if measured(curves, group)
]
with st.container(horizontal=True, gap="large", vertical_alignment="bottom"):
    if st.session_state.get("curves_of", groups[0]) not in groups:
        st.session_state["curves_of"] = groups[0]
    group = st.segmented_control(
        "Curves", groups, key="curves_of", bind="query-params", required=True, default=groups[0]
    )
    if st.session_state.get("pinned") not in (None, *steps):
        st.session_state["pinned"] = None
    pinned = st.selectbox(
        "Pin a second step", steps, None, key="pinned", bind="query-params", width=200,
        placeholder="none",
    )  # fmt: skip
marked = {"step": at.step, "pinned": pinned}
page.draw(
    "chart",
    figures.training_curves,
    curves,
    measured(curves, group),
    points=points,
    lowest=lowest,
    **marked,
    on_click=choose_clicked,
    alt=f"The curves of {group} over training steps, on a log axis.",
)
if pinned not in (None, at.step) and at.step in steps:
    first, second = sorted((at.step, pinned))
    both = curves.isel(run=0).sel(step=[first, second])
    st.table(
        [
            {
                "curve": str(row["title"].item()),
                f"step {first}": f"{float(row[0]):.4g}",
                f"step {second}": f"{float(row[1]):.4g}",
                "change": f"{float(row[1] - row[0]):+.4g}",
            }
            for row in both.sel(track=measured(curves, group))
        ]
    )

left, right = st.columns(2)
with left:
    st.subheader("Heads", anchor=False)
    score = st.segmented_control(
        "Score", list(HEADS), key="score", bind="query-params", required=True,
        default="previous token",
    )  # fmt: skip
    page.draw(
        "heads",
        figures.training_map,
        measures,
        HEADS[score],
        **marked,
        on_click=choose_clicked,
        alt=f"The {score} score of every head at every step.",
    )
with right:
    st.subheader("Along the stream", anchor=False)
    there = [name for name, each in PLACES.items() if bool(measures[each].notnull().any())]
    if st.session_state.get("place", there[0]) not in there:
        st.session_state["place"] = there[0]
    place = st.selectbox("Measure", there, key="place", bind="query-params", width=260)
    page.draw(
        "places",
        figures.training_map,
        measures,
        PLACES[place],
        **marked,
        on_click=choose_clicked,
        alt=f"The {place} at every state or sublayer, at every step.",
    )
st.subheader("What changes when", anchor=False)
page.draw(
    "timeline",
    figures.change_points,
    points,
    alt="The half-way step of every curve, between the two snapshots around it.",
)
st.caption(
    "A line leads from the last snapshot before the crossing to the first after it. Changes at the "
    "same step coincide; that one causes the other does not follow."
)

if at.step in steps:
    now = page.ask("now", interp.induction_scores)
    then = measures["induction"].sel(step=at.step).to_numpy()
    page.check(
        "the induction scores of this step are those of the model that is open",
        np.abs(now["value"].sel(score="induction").to_numpy() - then).max(),
        1e-4,
    )
page.close()
