"""Attribution: which component wrote how much of the logit difference."""

import numpy as np
import streamlit as st

import interp
from interp import figures
from literal import literal
from worksheet import Worksheet

SCALES = ("frozen", "exact")
DETAILS = ("heads", "sublayers")


def open_component(bar: list) -> None:
    name = str(bar[0])
    if name.endswith("_attn_out"):
        st.session_state["detail"] = "heads"
    elif name in can_open:
        st.session_state["opened"] = name


def open_head(cell: list) -> None:
    st.session_state["opened"] = f"L{int(cell[0])}H{int(cell[1])}"


page = Worksheet()
at = page.selection
st.markdown(
    f"Every component adds a vector to the residual stream. Read by the unembedding, its share of "
    f"{literal(at.difference)} at position {at.pos} is a number, and the numbers sum to the whole."
)
with st.container(horizontal=True, gap="large"):
    scale = st.segmented_control(
        "LayerNorm", SCALES, key="scale", bind="query-params", required=True, default="frozen",
        help="Frozen: the final LayerNorm divides by what it did, and the parts add up. Exact: "
        "what the logits would lose without the component, the scale moving too.",
    )  # fmt: skip
    detail = st.segmented_control(
        "Bars for", DETAILS, key="detail", bind="query-params", required=True, default="heads",
        disabled=scale == "exact",
    )  # fmt: skip
    order = st.segmented_control(
        "Order", ["as written", "by size"], key="order", bind="query-params", required=True,
        default="as written", disabled=scale == "exact",
    )  # fmt: skip

question = at.prompt, at.token(at.target), at.token(at.contrast)
parts = page.ask("parts", interp.direct_logit_attribution, *question)
here = parts["part"].isel(batch=0).sel(pos=at.pos)
kinds = dict(zip(map(str, here["component"].to_numpy()), here["kind"].to_numpy(), strict=True))
can_open = [name for name, kind in kinds.items() if kind in ("head", "mlp")]
largest = max(can_open, key=lambda name: abs(float(here.sel(component=name))))
if st.session_state.get("opened") not in (None, *can_open):
    st.session_state["opened"] = None
opened = st.session_state.get("opened") or largest

effects = None
left, right = st.columns([3, 2])
with left:
    if scale == "exact":
        effects = page.ask("effects", interp.direct_effect, *question)
        page.draw(
            "effects_bars",
            figures.effect_bars,
            effects,
            at.pos,
            selected=opened,
            on_click=open_component,
            alt=f"The direct effect of each component at position {at.pos}, frozen and exact.",
        )
    else:
        page.draw(
            "bars",
            figures.attribution_bars,
            parts,
            at.pos,
            by_size=order == "by size",
            **({"whole_sublayers": True} if detail == "sublayers" else {}),
            selected=opened,
            on_click=open_component,
            alt=f"The part that each component wrote of the logit difference at position {at.pos}.",
        )
with right:
    page.draw(
        "heads",
        figures.attribution_heads,
        parts,
        at.pos,
        on_click=open_component,
        alt=f"The same parts by layer and head at position {at.pos}.",
    )
    st.caption("Blue pushes towards the target, red towards the contrast. Click to open one.")
    opened = st.selectbox(
        "Open", [None, *can_open], key="opened", bind="query-params",
        format_func=lambda name: f"the largest: {largest}" if name is None else name,
    ) or largest  # fmt: skip

st.subheader(f"Inside {opened}", anchor=False)
sources = page.ask("sources", interp.source_attribution, *question, pos=at.pos)
head = tuple(map(int, opened[1:].split("H"))) if kinds[opened] == "head" else None
if head is not None:
    page.draw(
        "inside",
        figures.source_bars,
        sources,
        *head,
        at.pos,
        alt=f"What head {opened} wrote, by the position that it read it from.",
    )
    of_opened = sources.sel(layer=head[0], head=head[1]).sum("key_pos")
else:
    neurons = page.ask("neurons", interp.neuron_attribution, *question, pos=at.pos)
    layer = int(opened.split("_")[0])
    page.draw(
        "inside",
        figures.neuron_parts,
        neurons,
        layer,
        at.pos,
        alt=f"What the neurons of layer {layer} wrote, the largest by themselves.",
    )
    own = neurons.sel(layer=layer)
    of_opened = own["part"].sum("neuron") + own["bias"]
st.subheader("By source position", anchor=False)
page.draw(
    "from_where",
    figures.source_map,
    sources,
    at.pos,
    **({"selected": head} if head else {}),
    on_click=open_head,
    alt=f"What every head wrote at position {at.pos}, by the position that it read it from.",
)
st.subheader("At every position", anchor=False)
page.draw(
    "positions",
    figures.attribution_positions,
    parts,
    pos=at.pos,
    alt="The part that each component wrote at every position.",
)

logit, remainder = (parts[name].isel(batch=0).to_numpy() for name in ("logit", "remainder"))
page.check(
    f"{parts.sizes['component']} parts sum to the logit difference {logit[at.pos]:+.4f}",
    np.abs(remainder).max(),
    1e-3,
)
page.check(
    f"what is inside {opened} sums to its part {float(here.sel(component=opened)):+.4f}",
    abs(float(of_opened.squeeze()) - float(here.sel(component=opened))),
    1e-3,
)
of_heads = sources.sum("key_pos").to_numpy().ravel()
page.check(
    "each head's sources sum to its part",
    np.abs(of_heads - here.to_numpy()[here["kind"].to_numpy() == "head"]).max(),
    1e-3,
)
if effects is not None:
    page.check(
        "the frozen effects are the parts",
        np.abs(effects["frozen"].to_numpy() - parts["part"].to_numpy()[:-1]).max(),
        1e-3,
    )
page.close()
