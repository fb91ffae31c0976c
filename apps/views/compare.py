"""Compare: two prompts, two steps of training or two models, and the difference."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st

import interp
from bringing import brought
from interp import InputError, figures
from interp.inputs import to_ids
from literal import literal
from model import Run
from runs import offered, open_model, shown_path
from worksheet import Worksheet

WAYS = ("prompts", "steps", "models")


@dataclass(frozen=True)
class Quantity:
    """One thing to compare: how it is asked for, and where the answer is cut."""

    analysis: Callable[..., Any]
    settings: dict[str, Any]
    variable: str | None
    cut: dict[str, Any]
    of_tokens: bool = False
    """whether it takes the target and the contrast"""


page = Worksheet()
at = page.selection
runs = offered() | brought()
others = [name for name, path in runs.items() if path.resolve() != at.run.path.resolve()]
quantities = {
    "next token": Quantity(interp.next_token, {"pos": at.pos}, "probability", {}),
    "loss": Quantity(interp.token_losses, {}, "loss", {}),
    "lens: probability of the target": Quantity(
        interp.logit_lens, {"target": at.token(at.target)}, "probability", {}
    ),
    "attribution": Quantity(
        interp.direct_logit_attribution, {"pos": at.pos}, "part", {"pos": at.pos}, of_tokens=True
    ),
    "attention of the head": Quantity(
        interp.attention_patterns, {}, None, {"layer": at.layer, "head": at.head}
    ),
    "hop angles": Quantity(interp.sphere_path, {}, "hop_angle", {}),
}


def swap() -> None:
    """What was second becomes what the sidebar says."""
    state = st.session_state
    if way == "prompts":
        state["prompt"], state["corrupt"] = at.corrupt, at.prompt
    elif way == "steps":
        state["step"], state["other_step"] = state["other_step"], at.step
    else:
        own = next(name for name, path in runs.items() if path.resolve() == at.run.path.resolve())
        state["model"], state["other_model"] = state["other_model"], own
        state["step"] = Run.open(runs[state["model"]]).steps[-1]


def other_model() -> tuple[Run, int]:
    """The run and the step of the other side."""
    run, step = at.run, at.step
    if way == "steps":
        steps = run.steps
        if len(steps) < 2:
            raise InputError(
                f"The run {run.name!r} has one step only, so there is nothing to compare it with: "
                "compare prompts or models, or choose a run with snapshots."
            )
        usual = steps[0] if step != steps[0] else steps[-1]
        if st.session_state.get("other_step", usual) not in steps:
            st.session_state["other_step"] = usual
        step = st.select_slider("The other step", steps, usual, key="other_step",
                                bind="query-params")  # fmt: skip
    elif way == "models":
        if not others:
            raise InputError(
                "There is one run only, so there is no other model to compare it with: compare "
                "prompts or steps, or start the explorer with `--runs` on a folder of runs."
            )
        if st.session_state.get("other_model", others[0]) not in others:
            st.session_state["other_model"] = others[0]
        name = st.selectbox("The other model", others, key="other_model", bind="query-params")
        run = Run.open(runs[name])
        step = run.steps[-1]
    return run, step


st.markdown(
    "The same question to two prompts, to two steps of one training, or to two models: both "
    "answers in one scale, and below or beside them the second minus the first."
)
with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
    way = st.segmented_control(
        "Compare two", WAYS, key="way", bind="query-params", default=WAYS[0], required=True
    )
    quantity = st.selectbox(
        "Quantity", list(quantities), key="quantity", bind="query-params", width=280
    )
    run, step = other_model()
    st.button("Swap the two", key="swap", on_click=swap, icon=":material/swap_vert:")
chosen = quantities[quantity]

prompt, model = at.prompt, at.model
if way == "prompts":
    prompt = at.corrupt
    names = ("the prompt", "the corrupt prompt")
    st.caption("The second is the corrupt prompt of the sidebar.")
    second = literal(repr(prompt))
else:
    model = open_model(run, step, own=any(run.path == path for path in brought().values()))
    page.given(
        "other",
        model,
        f"load({shown_path(run.path)!r}, step={step})",
        f"{run.path.resolve()} {model.checkpoint_hash}",
    )
    names = (
        (f"step {at.step}", f"step {step}")
        if way == "steps"
        else (f"{at.run.name}, step {at.step}", f"{run.name}, step {step}")
    )
    second = literal(names[1])
    try:
        to_ids(model, prompt)
    except InputError as error:
        raise InputError(f"The other model cannot read this prompt. {error}") from None
if model is at.model and prompt == at.prompt:
    st.info("The two sides are the same, so every difference is 0: choose another.")
tokens = (at.token(at.target), at.token(at.contrast)) if chosen.of_tokens else ()
first = page.ask("first", chosen.analysis, at.prompt, *tokens, **chosen.settings)
second_answer = page.combine("second", chosen.analysis, model, prompt, *tokens, **chosen.settings)
compared = page.combine(
    "compared",
    interp.compare,
    first,
    second_answer,
    *([chosen.variable] if chosen.variable else []),
    **chosen.cut,
)
marked: dict[str, Any] = {"pos": at.pos} if "pos" in compared.dims else {}
page.draw(
    "comparison",
    figures.comparison,
    compared,
    names=names,
    **marked,
    alt=f"{quantity} of {names[0]}, of {names[1]}, and the second minus the first.",
)
difference = compared["difference"].to_numpy()
if np.isfinite(difference).any():
    largest = float(np.nanmax(np.abs(difference)))
    st.caption(
        f"The second is {second}. Largest difference {largest:.4g}, mean of the differences' sizes "
        f"{float(np.nanmean(np.abs(difference))):.4g} ({compared['first'].attrs['units']})."
    )

back = interp.compare(
    second_answer, first, *([chosen.variable] if chosen.variable else []), **chosen.cut
)
page.check(
    "swapped, the differences only change their sign",
    float(np.nanmax(np.abs(back["difference"].to_numpy() + difference), initial=0.0)),
    0.0,
)
page.check(
    "the second is the first plus the difference",
    float(
        np.nanmax(
            np.abs(compared["first"].to_numpy() + difference - compared["second"].to_numpy()),
            initial=0.0,
        )
    ),
    1e-5,
)
page.close()
