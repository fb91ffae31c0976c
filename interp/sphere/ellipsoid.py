"""After gain and bias the sphere is an ellipsoid: its centre, axes and plane.

y lies in the ball of radius sqrt(d) orthogonal to 1; gain * y + bias lies in an ellipsoid around
the bias (Riechers 2024, "Geometry and Dynamics of LayerNorm", 2405.04134). With G = diag(gain):
semi-axes sqrt(d) times the singular values of G P, in the hyperplane whose normal is 1/gain, not
1. Folding the gain into what reads it makes the ellipsoid the sphere again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.norms import Norm, state_names
from interp.result_sets import labelled_set
from interp.sphere.angles import angle
from interp.sphere.laws import direction
from interp.sphere.states import layernorms

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


@dataclass(frozen=True, eq=False)
class Ellipsoid:
    """The image of the sphere under one LayerNorm's gain and bias.

    Attributes:
        centre: the bias.
        semi_axes: lengths, longest first; d-1 of them. One zero gain only turns the hyperplane;
            each further one flattens an axis to 0.
        axes: unit vectors, one a row, of the semi-axes.
        normal: the unit normal of the hyperplane that it lies in.
    """

    centre: Float[Tensor, " d_model"]
    semi_axes: Float[Tensor, " axis"]
    axes: Float[Tensor, "axis d_model"]
    normal: Float[Tensor, " d_model"]

    def depth(self, out: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows"]:
        """How far out LayerNorm outputs lie, 1 on the ellipsoid: exactly rho of the state.

        NaN with a flattened axis: what it held cannot be seen in the output.
        """
        along = (out - self.centre) @ self.axes.mT
        return (along / self.semi_axes).square().sum(-1).sqrt()


def ellipsoid(norm: Norm) -> Ellipsoid:
    """The ellipsoid of one LayerNorm. Cost: one [d_model, d_model] singular value decomposition.

    Done on a basis of 1's complement: P itself would add a zero singular value that could not be
    told from an axis that zero gains flatten.
    """
    d_model = len(norm.gain)
    axes, stretch, _ = torch.linalg.svd(norm.gain[:, None] * norm.basis(), full_matrices=False)
    # 1/gain up to a factor: products of the others, which stay finite with one zero gain.
    smallest = norm.gain.abs().argmin()
    if norm.gain[smallest] == 0:
        normal = torch.zeros_like(norm.gain)
        normal[smallest] = 1.0
    else:
        normal = norm.gain[smallest] / norm.gain
    return Ellipsoid(norm.bias, d_model**0.5 * stretch, axes.mT, direction(normal))


def gain_ellipsoid(model: HookedTransformer) -> xr.Dataset:
    """The ellipsoid on which each LayerNorm of the model puts its output.

    Returns:
        `semi_axis` [state, axis], longest first; `centre` and `normal` [state, d_model];
        `condition` [state], longest over shortest semi-axis (1: a sphere; infinite with a
        flattened axis); `smallest_gain` [state], min |gain|; `tilt` [state], the angle in radians
        between the hyperplane's normal and 1. `state` is the one that the LayerNorm reads.

        A folded model's ellipsoids are spheres around 0: look at the model as it was trained.

    Raises:
        InputError: a model without LayerNorm.

    Cost: one [d_model, d_model] decomposition for each LayerNorm.
    """
    readers = layernorms(model, "the hyperplane of the ellipsoid")
    shapes = [ellipsoid(norm) for norm in readers]
    semi_axes = torch.stack([shape.semi_axes for shape in shapes])
    normals = torch.stack([shape.normal for shape in shapes])
    tilt = angle(normals, torch.ones_like(normals))
    return labelled_set(
        model,
        {
            "semi_axis": (semi_axes, ("state", "axis"), "normalised stream"),
            "centre": (torch.stack([n.bias for n in readers]), ("state", "d_model"), "stream"),
            "normal": (normals, ("state", "d_model"), "1"),
            "condition": (semi_axes[:, 0] / semi_axes[:, -1], ("state",), "1"),
            "smallest_gain": (torch.stack([n.gain.abs().min() for n in readers]), ("state",), "1"),
            "tilt": (torch.minimum(tilt, torch.pi - tilt), ("state",), "radians"),
        },
        coords={"state": state_names(model.cfg)},
    )
