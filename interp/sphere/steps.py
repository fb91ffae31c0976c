"""One LayerNorm on one vector, step by step: mean removal, scaling, gain and bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xarray as xr

from interp.engine import trace
from interp.errors import InputError
from interp.inputs import Input, to_ids
from interp.norms import state_names, stream_sites
from interp.replay import scored_positions
from interp.result_sets import labelled_set
from interp.sphere.angles import angle
from interp.sphere.laws import row_norm
from interp.sphere.states import sphere_norms

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

STEPS = ("stream", "mean removed", "scaled", "gain and bias")


def layernorm_steps(
    model: HookedTransformer, input: Input, state: str, *, pos: int = -1
) -> xr.Dataset:
    """What the LayerNorm that reads a stream state does to the vector at one position.

    x -> x~ = x - mean(x) -> y = x~ / sqrt(|x~|^2/d + eps) -> gain * y + bias. A normalisation that
    removes no mean (RMSNorm) or has folded gains leaves that step as it was.

    Args:
        state: of the stream, such as "1_mid" (see `interp.norms.state_names`); each is read by one
            LayerNorm.
        pos: the position (negative counts from the end).

    Returns:
        Over [step, batch, dimension]: `value`, the vector after each step. Over [step, batch]:
        `length`; `mean` of its entries; `turned`, radians from the vector before (NaN for the
        first step, which nothing precedes). Scaling turns nothing.

    Raises:
        InputError: unreadable input, a state or position that does not exist, or a model without
            normalisation.

    Cost: one forward pass.
    """
    readers = dict(zip(state_names(model.cfg), sphere_norms(model), strict=True))
    if state not in readers:
        raise InputError(
            f"State {state!r} came, but the model has {', '.join(readers)}: choose one."
        )
    run = trace(model, to_ids(model, input), sites=stream_sites(model.cfg))
    at = int(scored_positions(run.ids, pos))
    norm = readers[state]
    x = run.stream[list(readers).index(state), :, at]
    centred, scaled = norm.centred(x), norm.normalised(x)
    values = torch.stack([x, centred, scaled, norm(x)])
    turned = angle(values[1:], values[:-1])
    dims = ("step", "batch", "dimension")
    return labelled_set(
        model,
        {
            "value": (values, dims, "stream"),
            "length": (row_norm(values), dims[:2], "stream"),
            "mean": (values.mean(-1), dims[:2], "stream"),
            "turned": (
                torch.cat([torch.full_like(turned[:1], torch.nan), turned]),
                dims[:2],
                "radians",
            ),
        },
        ids=run.ids,
        coords={"step": list(STEPS)},
        state=state,
        pos=at,
    )
