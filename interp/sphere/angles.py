"""Angles and tangents on a sphere, in forms that keep their digits (no arccos)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from interp.sphere.laws import direction


def angle(
    a: Float[Tensor, "*rows d_model"], b: Float[Tensor, "*rows d_model"]
) -> Float[Tensor, "*rows"]:
    """The angle between two vectors, radians in [0, pi]; NaN where one of them is zero.

    2 atan2(|a^ - b^|, |a^ + b^|) on unit vectors (Kahan 2006, "How Futile are Mindless
    Assessments of Roundoff"): accurate near 0 and near pi, where arccos loses half its digits.
    """
    return angle_between_units(direction(a), direction(b))


def angle_between_units(
    a: Float[Tensor, "*rows d_model"], b: Float[Tensor, "*rows d_model"]
) -> Float[Tensor, "*rows"]:
    """`angle` of vectors that are unit vectors already (or NaN)."""
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


def tangent_towards(
    here: Float[Tensor, "*rows d_model"], there: Float[Tensor, "*rows d_model"]
) -> Float[Tensor, "*rows d_model"]:
    """The unit tangent at `here` of the great circle that leads to `there`.

    Both are unit vectors. NaN where the two are equal or opposite: no direction, or all.
    """
    cosine = (here * there).sum(-1, keepdim=True)
    # Subtracting the nearer of +here and -here first leaves a short vector, whose component
    # along `here` can then be removed without cancellation.
    away = torch.addcmul(there, torch.where(cosine < 0, 1.0, -1.0).to(here), here)
    return direction(torch.addcmul(away, -(away * here).sum(-1, keepdim=True), here))


def turn(
    before: Float[Tensor, "*rows d_model"],
    here: Float[Tensor, "*rows d_model"],
    after: Float[Tensor, "*rows d_model"],
) -> Float[Tensor, "*rows"]:
    """The turn at `here` of the path before -> here -> after, radians in [0, pi].

    The tangent on arrival (the one on departure, parallel-transported along the great circle)
    against the next departure: 0 goes straight on, pi comes back. NaN where a hop has length 0.
    """
    return angle_between_units(-tangent_towards(here, before), tangent_towards(here, after))


def curvature(points: Float[Tensor, "*rows pos d_model"]) -> Float[Tensor, "*rows inner"]:
    """The angle between successive differences of a sequence of points, radians.

    (Henaff et al. 2019; for language models Hosseini & Fedorenko 2023, 2311.04930.) One value for
    each inner point; NaN where two neighbours coincide.
    """
    step = direction(points.diff(dim=-2))
    return angle_between_units(step[..., :-1, :], step[..., 1:, :])
