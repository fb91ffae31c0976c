"""Sphere: what LayerNorm makes of the stream, and where each update moves it."""

import numpy as np
import streamlit as st

import interp
from interp import figures
from state_choice import choose_state
from worksheet import Worksheet

VIEWS = {
    "ball": "Inside the unit ball: drawn distances never exceed true ones.",
    "equidistant": "Angles to the last token's point are exact, all others are not.",
    "lambert": "Chords to the last token's point are exact, all others are not.",
    "equal_volume": "Four axes folded into three: equal volumes stay equal.",
}

page = Worksheet()
at = page.selection
st.markdown(
    "Before every sublayer LayerNorm puts the stream on a sphere: only its direction is read. Each "
    "sublayer then moves that direction by a hop."
)
with st.container(horizontal=True, gap="large"):
    mode = st.segmented_control(
        "View", list(VIEWS), key="view", bind="query-params", required=True, default="ball",
        format_func=lambda mode: mode.replace("_", " "),
    )  # fmt: skip
    view = page.ask("view", interp.sphere_view, at.prompt, mode=mode)
    states = [str(state) for state in view["state"].to_numpy()]
    state = choose_state(states)
radius = page.ask("radius", interp.sphere_radius, at.prompt)
path = page.ask("path", interp.sphere_path, at.prompt)
split = page.ask("split", interp.update_split, at.prompt)

left, right = st.columns(2)
with left:
    st.subheader("Where each token points", anchor=False)
    page.draw(
        "ball",
        figures.sphere_ball,
        view,
        state=state,
        pos=at.pos,
        alt=f"Directions of every token at state {state}, and the path of position {at.pos}.",
    )
    distortion = view.attrs["distortion"]
    st.caption(
        f"{VIEWS[mode]} The colour says how much of a point three dimensions show. Stress "
        f"{distortion['stress']:.2f}, correlation of drawn and true distances "
        f"{distortion['pearson']:.2f}."
    )
with right:
    st.subheader("How far out", anchor=False)
    page.draw(
        "radii",
        figures.sphere_radius,
        radius,
        pos=at.pos,
        alt="Radius after each LayerNorm, and how far epsilon keeps it inside the sphere.",
    )
st.subheader("How far each sublayer turns it", anchor=False)
page.draw(
    "hops",
    figures.sphere_hops,
    path,
    pos=at.pos,
    alt="The angle that each sublayer moves each token's direction.",
)
st.subheader(f"What becomes of each update at position {at.pos}", anchor=False)
page.draw(
    "shares",
    figures.update_split,
    split,
    at.pos,
    alt=f"Shares of each sublayer's update at position {at.pos} that LayerNorm drops or keeps.",
)

st.subheader(f"One LayerNorm, step by step, at position {at.pos}", anchor=False)
steps = page.ask("steps", interp.layernorm_steps, at.prompt, state, pos=at.pos)
page.draw(
    "layernorm",
    figures.layernorm_steps,
    steps,
    alt=f"The stream at state {state}, position {at.pos}, without its mean, scaled, and with gain "
    "and bias.",
)
st.caption("Choose the LayerNorm by the stream that it reads, above, and the vector by position.")

measured, predicted = radius["radius"].to_numpy(), radius["predicted"].to_numpy()
page.check("the radius is √d / √(1 + ε/σ²)", np.abs(measured - predicted).max(), 1e-4)
page.check(
    "scaling turns nothing",
    float(np.nan_to_num(steps["turned"].sel(step="scaled").to_numpy()).max()),
    1e-3,
)
page.check("no radius exceeds √d", max(measured.max() - radius.attrs["sphere"], 0.0), 1e-4)
longest = float((path["chord_angle"] - path["length"]).max())
page.check("no path is shorter than its chord", max(longest, 0.0), 1e-5)
page.close()
