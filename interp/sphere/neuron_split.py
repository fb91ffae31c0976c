"""What each neuron's write does to the point on the sphere.

A neuron writes a multiple of one vector, its row of W_out, at every position. So its split needs
no write: two products give the row's part along each state's x^ and along the course of the whole
MLP, and Pythagoras the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import xarray as xr

from interp.direct import need_mlp
from interp.engine import Trace, traced
from interp.inputs import Input
from interp.logit_question import positions
from interp.norms import state_names
from interp.sites import Site
from interp.sphere.laws import direction, row_norm
from interp.sphere.split import Frame, Split, labelled_split
from interp.sphere.states import sphere_norms

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def neuron_split(
    model: HookedTransformer, input: Input | Trace, layer: int, *, pos: int | None = None
) -> xr.Dataset:
    """How the write of every neuron of a layer divides, as `update_split` does for components.

    Args:
        pos: one position (negative counts from the end); None for all.

    Returns:
        The variables of `update_split` over [component, batch, pos]: `L0N0`, `L0N1` ... (kind
        neuron) and `0_mlp_bias` (b_out). Their `mean` and `radial` sum to those of `0_mlp_out`,
        their `along` to its `tangential`. NaN shares for a neuron that is exactly silent.

        `tangential` is exact to the rounding of the whole write's length, so it has few digits
        left for a neuron that writes almost straight along the stream.

    Raises:
        InputError: unreadable input; a layer or position that does not exist; a model without
            MLPs or normalisation.

    Cost: one forward pass and two [pos, d_model, neuron] products; memory for 7 * d_mlp numbers a
    position.
    """
    need_mlp(model)
    readers, state = sphere_norms(model), 2 * layer + 1
    Site("mlp_post", layer).check(model.cfg, 1)
    run = traced(model, input, [Site(kind, layer) for kind in ("resid_mid", "mlp_post", "mlp_out")])
    chosen = positions(pos, run.ids.shape[1])
    x, post, whole = (run[kind, layer][:, chosen] for kind in ("resid_mid", "mlp_post", "mlp_out"))
    norm = readers[state]
    mlp: Any = model.blocks[layer].mlp
    frame = Frame.at(x, norm)
    course = direction(frame.tangent(whole))
    # The bias is one more neuron, which always fires at 1.
    rows = torch.cat([mlp.W_out, mlp.b_out[None]]).detach()
    fires = torch.cat([post, torch.ones_like(post[..., :1])], dim=-1)
    written = norm.centred(rows)
    length, outward = row_norm(written), frame.heading @ written.mT
    across = ((length - outward) * (length + outward)).clamp(min=0).sqrt()
    lost = (rows - written).mean(-1) * rows.shape[1] ** 0.5
    parts = Split(
        fires * lost,
        fires * outward,
        fires.abs() * across,
        frame.length[..., None].expand_as(fires),
        norm.eps,
        rows.shape[1],
    )
    values = parts.quantities(fires * (course @ written.mT)).movedim(-1, 1)
    at = state_names(model.cfg)[state]
    labels = [(f"L{layer}N{neuron}", "neuron", layer, at) for neuron in range(len(rows) - 1)]
    labels.append((f"{layer}_mlp_bias", "mlp_bias", layer, at))
    return labelled_split(model, values, labels, run.ids, chosen)
