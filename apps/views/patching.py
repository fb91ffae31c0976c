"""Patching: which activations carry the difference between two prompts."""

import numpy as np
import streamlit as st

import interp
from interp import figures
from interp.inputs import contrast, token_strings
from interp.metrics import logit_difference
from interp.patching import activation_patching
from literal import literal
from long_work import batch_of_a_moment
from path_choice import show_paths
from selection import set_from
from token_strip import token_strip
from worksheet import Worksheet

SITES = {
    "residual stream": "resid_pre",
    "between attention and MLP": "resid_mid",
    "attention output": "attn_out",
    "MLP output": "mlp_out",
    "heads": "z",
}
DIRECTIONS = ("clean into corrupt", "corrupt into clean")

page = Worksheet()
at = page.selection
st.markdown(
    "Run one prompt, but give one place the activations of the other. Where that alone changes "
    "the prediction, the difference between the prompts passes through."
)
clean = at.prompt
pair = page.ask("pair", contrast, clean, at.corrupt)
corrupt_tokens = token_strings(at.model, pair.base[0])
changed = (pair.source != pair.base)[0].nonzero()[:, 0].tolist()
st.caption("Corrupt prompt, aligned with the one above; changed tokens are underlined.")
token_strip(
    corrupt_tokens,
    at.pos,
    key="corrupt_strip",
    name="tokens of the corrupt prompt",
    changed=changed,
    on_pos=set_from("corrupt_strip", "pos"),
)
site = st.segmented_control(
    "Patch", list(SITES), key="site", bind="query-params", required=True,
    default="residual stream",
)  # fmt: skip
direction = st.segmented_control(
    "Direction", DIRECTIONS, key="direction", bind="query-params", required=True,
    default=DIRECTIONS[0],
    help="Clean into corrupt (denoising) asks what suffices, corrupt into clean (noising) "
    "what is needed.",
)  # fmt: skip
if direction == DIRECTIONS[1]:
    pair = page.ask("pair", contrast, at.corrupt, clean)

metric = page.ask(
    "metric", logit_difference, at.token(at.target), at.token(at.contrast), pos=at.pos
)


def estimate(sheet: Worksheet) -> None:
    guess = sheet.ask("estimate", interp.attribution_patching, pair, metric, SITES[site])
    sheet.draw(
        "estimated_map",
        figures.patching_estimate,
        guess,
        pos=at.pos,
        alt=f"Estimated effect of patching the {site} on the logit difference at position "
        f"{at.pos}.",
    )
    st.caption(
        "An estimate: the difference between the prompts times the gradient, of first order. "
        "Blue is up, red down."
    )


patching = page.sweep(
    "patching",
    activation_patching,
    pair,
    metric,
    SITES[site],
    meanwhile=estimate,
    how={"batch_size": batch_of_a_moment(at.model, len(at.tokens))},
)
if patching is None:
    page.close()
    st.stop()
base, source = float(patching["base"][0]), float(patching["source"][0])
undefined = patching["fraction"].attrs["undefined"]
if undefined:
    st.info(
        f"Shown as changes in logits, because {literal(undefined)}. Another corrupt prompt, "
        "target or contrast gives fractions."
    )
page.draw(
    "patching_map",
    figures.patching_map,
    patching,
    show="change" if undefined else "fraction",
    pos=at.pos,
    alt=f"Effect of patching the {site} at each place on the logit difference at position "
    f"{at.pos}.",
)
st.caption(
    f"{literal(at.difference)} at position {at.pos}: base run {base:+.3f}, source run "
    f"{source:+.3f}. 0 leaves the base run as it is, 1 makes it the source run; blue is towards "
    "the source, red away from it."
)

show_paths(page, pair, metric, base, source)

raw = patching["raw"].isel(batch=0)
given = at.model(pair.base)[0, at.pos].numpy()
page.check(
    "the unpatched base run is what the model itself gives",
    abs(base - (given[at.target] - given[at.contrast])),
    1e-3,
)
if "pos" in raw.dims:
    unreached = np.concatenate(
        [raw.to_numpy()[:, at.pos + 1 :].ravel(), raw.to_numpy()[:, : changed[0]].ravel(), [base]]
    )
    page.check(
        "places before the first change and after the scored position have no effect",
        np.abs(unreached - base).max(),
        1e-4,
    )
page.close()
