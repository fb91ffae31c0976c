"""Weights: what a head's matrices say without any input, and where in the prompt they say it."""

import numpy as np
import streamlit as st
import torch

import interp
from interp import figures
from interp.inputs import to_ids
from literal import literal
from token_choice import choose_token
from worksheet import Worksheet

CIRCUITS = ("QK", "OV")
MOST_WORDS = 256
"""a larger vocabulary is shown by the prompt's own tokens"""


def choose_pair(circuit: str):
    def choose(cell: list) -> None:
        st.session_state["circuit"] = circuit
        st.session_state["pair_token"], st.session_state["pair_other"] = map(int, cell[:2])

    return choose


def choose_head(cell: list) -> None:
    st.session_state["layer"], st.session_state["head"] = map(int, cell[:2])


def choose_place(cell: list) -> None:
    st.session_state["pos"] = int(cell[0])


page = Worksheet()
at = page.selection
head = (at.layer, at.head)
st.markdown(
    f"Head L{at.layer}H{at.head} is two matrices on tokens. QK says which key a query likes, OV "
    "what attending to a token does to each logit. Click a cell to find its pair in the prompt."
)
with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
    fold_ln = st.toggle(
        "Fold LayerNorm in", True, key="fold_ln", bind="query-params",
        help="On: the weights as the head sees the stream, with the gains of LayerNorm and "
        "without the mean. Off: the matrices as they stand in the checkpoint.",
    )  # fmt: skip
folding = {} if fold_ln else {"fold_ln": False}

patterns = page.ask("patterns", interp.attention_patterns, at.prompt)
looked_at = int(patterns.to_numpy()[0, at.layer, at.head, at.pos].argmax())
ids = to_ids(at.model, at.prompt)[0].tolist()
every = list(range(len(at.vocabulary)))
if len(every) > MOST_WORDS:
    every = sorted({*ids, at.target, at.contrast})[:MOST_WORDS]
some = {} if len(every) == len(at.vocabulary) else {"tokens": every}

with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
    circuit = st.segmented_control(
        "A pair of", CIRCUITS, key="circuit", bind="query-params", default="QK", required=True,
    )  # fmt: skip
    if circuit == "QK":
        usual = ids[at.pos], ids[looked_at]
        labels = "Query: the token that looks", "Key: the token looked at"
    else:
        usual = ids[looked_at], at.target
        labels = "The token attended to", "The logit moved"
    pair = tuple(
        choose_token(key, label, at.vocabulary, every, id)
        for key, label, id in zip(("pair_token", "pair_other"), labels, usual, strict=True)
    )

columns = st.columns(2)
tables = {}
for column, name in zip(columns, CIRCUITS, strict=True):
    with column:
        tables[name] = page.ask(name, interp.circuit_table, *head, name, **some, **folding)
        page.draw(
            f"{name}_map",
            figures.circuit_map,
            tables[name],
            **({"selected": pair} if name == circuit else {}),
            on_click=choose_pair(name),
            alt=f"The {name} circuit of layer {at.layer}, head {at.head}, token by token.",
        )

words = [literal(repr(at.vocabulary[id])) for id in pair]
cell = float(tables[circuit].sel(token=pair[0], other_token=pair[1]))
st.subheader("The pair in the prompt", anchor=False)
verb = "likes" if circuit == "QK" else "when attended to moves the logit of"
st.markdown(
    f"{words[0]} {verb} {words[1]} by **{cell:+.3f}** before LayerNorm's scales"
    + ("" if fold_ln else ", by the matrices as they stand")
    + "."
)
places = page.ask("places", interp.pair_places, at.prompt, *head, circuit, *map(at.token, pair))
if places.sizes["place"]:
    page.draw(
        "pair",
        figures.pair_bars,
        places,
        on_click=choose_place,
        alt=f"Attention of layer {at.layer}, head {at.head} wherever the pair meets.",
    )
    st.caption(
        f"The pair meets {places.sizes['place']} times. The bar is all of the attention; the "
        "number is what these weights alone give there, with the prompt's LayerNorm scales: "
        + ("the part of the score from the two embeddings." if circuit == "QK" else
           "what the token's embedding adds to that logit.")
    )  # fmt: skip
else:
    st.info(
        "The pair does not meet in this prompt: no "
        + ("query that holds the first comes after a key that holds the second."
           if circuit == "QK" else
           "token before the second can look back at the first.")
    )  # fmt: skip

left, right = st.columns([2, 3])
with left:
    st.subheader("Singular values", anchor=False)
    spectra = page.ask("spectra", interp.circuit_spectra, **folding)
    page.draw(
        "singular_values",
        figures.head_spectra,
        spectra,
        *head,
        alt=f"Singular values of both circuits of layer {at.layer}, head {at.head}, among all.",
    )
    copying = page.ask("copying", interp.copying_scores)
    own = copying.sel(layer=at.layer, head=at.head)
    st.caption(
        f"Copying score {float(own['copying']):+.2f} (1 raises what it attends to, −1 lowers it); "
        f"{float(own['own_token_first']):.0%} of tokens raise themselves most."
    )
with right:
    st.subheader("Composition", anchor=False)
    scores = page.ask("scores", interp.composition_scores, **folding)
    if at.model.cfg.n_layers > 1:
        page.draw(
            "composition",
            figures.composition_map,
            scores,
            *head,
            on_click=choose_head,
            alt=f"How much layer {at.layer}, head {at.head} reads from earlier heads, and later "
            "heads from it, above chance.",
        )
        st.caption(
            f"‖W_OV M‖ / ‖W_OV‖‖M‖ less chance, {float(scores['baseline']):.3f}. Blue: written "
            "where it is read."
        )
    else:
        st.info("The model has one layer, so no head can read from another.")


def total(name: str) -> float:
    return float((spectra[name].sel(layer=at.layer, head=at.head) ** 2).sum())


whole = interp.circuits.head_weights(at.model, fold_ln=fold_ln)
for name, matrix in (("QK", whole.QK), ("OV", whole.OV)):
    here = torch.as_tensor(matrix[at.layer, at.head].AB)
    page.check(
        f"the squares of {name}'s singular values sum to those of its entries",
        abs(total(name) - float(here.square().sum())) / max(total(name), 1e-12),
        1e-4,
    )
if circuit == "QK" and places.sizes["place"]:
    split = interp.score_split(at.model, at.prompt, *head)
    of_tokens = split.sel(query_component="embed", key_component="embed").isel(batch=0)
    there = of_tokens.to_numpy()[places["query_pos"], places["key_pos"]]
    page.check(
        "the cell over both scales is the embeddings' part of the score",
        np.abs(there - places["weight"].to_numpy()).max(),
        1e-3,
    )
page.close()
