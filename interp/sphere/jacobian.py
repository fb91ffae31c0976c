"""LayerNorm's derivative, in closed form: a [d_model, d_model] matrix that is never made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.engine import Trace
from interp.inputs import Input
from interp.norms import Norm, state_names
from interp.result_sets import labelled_set
from interp.sphere.states import stream_states

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


@dataclass(frozen=True, eq=False)
class Jacobian:
    """dy/dx of a normalisation at states x: J = (1/s) (P - y y^T / d), symmetric.

    Its spectrum: `tangential` 1/s on the directions orthogonal to x^ and 1, in which the point
    moves; `radial` eps/s^3 on x^, not 0 while eps > 0; 0 on 1 (LayerNorm only). At a constant
    state it is P / sqrt(eps). With gain the derivative is diag(gain) J.
    """

    norm: Norm
    y: Float[Tensor, "*rows d_model"]
    s: Float[Tensor, "*rows 1"]

    @classmethod
    def at(cls, x: Float[Tensor, "*rows d_model"], norm: Norm) -> Jacobian:
        """The derivative at states x."""
        return cls(norm, norm.normalised(x), norm.scale(x))

    def __matmul__(self, v: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """J v for each row. Cost: a few passes over v."""
        along = (self.y * v).mean(-1, keepdim=True)
        return (self.norm.centred(v) - self.y * along) / self.s

    @property
    def tangential(self) -> Float[Tensor, "*rows"]:
        """1/s: the gain of everything that moves the point."""
        return 1 / self.s[..., 0]

    @property
    def radial(self) -> Float[Tensor, "*rows"]:
        """eps/s^3: the gain of what only makes the stream longer or shorter."""
        return self.norm.eps / self.s[..., 0] ** 3

    @property
    def n_tangential(self) -> int:
        """How many dimensions have the tangential gain: d-2, or d-1 without a mean to lose."""
        return self.y.shape[-1] - (2 if self.norm.kind == "LN" else 1)

    @property
    def trace(self) -> Float[Tensor, "*rows"]:
        """(d-2)/s + eps/s^3, the divergence of LayerNorm at x."""
        return self.n_tangential * self.tangential + self.radial


def layernorm_gains(model: HookedTransformer, input: Input | Trace) -> xr.Dataset:
    """What each LayerNorm multiplies a small change by, at each state.

    Returns:
        Over [state, batch, pos], in 1 / stream units: `tangential` 1/s, `radial` eps/s^3 and
        `trace` of the Jacobian before gain. attrs["n_tangential"] is how many dimensions have the
        tangential gain.

    Raises:
        InputError: unreadable input; a model without normalisation.

    Cost: one forward pass and two passes over the stream.
    """
    run = stream_states(model, input)
    jacobians = [Jacobian(state.norm, state.y, state.s) for state in run]
    dims = ("state", "batch", "pos")
    result = labelled_set(
        model,
        {
            name: (torch.stack([getattr(J, name) for J in jacobians]), dims, "1 / stream")
            for name in ("tangential", "radial", "trace")
        },
        ids=run.ids,
        coords={"state": state_names(model.cfg)},
    )
    return result.assign_attrs(n_tangential=jacobians[0].n_tangential)
