"""What LayerNorm does to lengths, exactly, with epsilon (no gain, no bias).

Each function is one closed form. Symbols are defined in `interp.sphere`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from interp.norms import mean_removed


def row_norm(x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows"]:
    """|x| along the last axis, without overflow or underflow for extreme rows."""
    norm = x.norm(dim=-1)
    # Squares of rows within these bounds are in range; other rows are rare and cost a second look.
    low, high = torch.finfo(x.dtype).tiny ** 0.25, torch.finfo(x.dtype).max ** 0.25
    if bool(((norm > low) & (norm < high)).all()):
        return norm
    largest = x.abs().amax(-1, keepdim=True)
    safe = torch.where(largest > 0, largest, torch.ones_like(largest))
    return (x / safe).norm(dim=-1) * safe[..., 0]


def direction(x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
    """x / |x|; NaN for a row of zeros, which points nowhere."""
    norm = row_norm(x)[..., None]
    # A subnormal norm has lost digits: such a row is first brought to order one.
    if bool((norm > torch.finfo(x.dtype).tiny ** 0.25).all()):
        return x / norm
    scaled = x / x.abs().amax(-1, keepdim=True)
    return scaled / scaled.norm(dim=-1, keepdim=True)


def kappa_of(centred: Float[Tensor, "*rows d_model"], eps: float) -> Float[Tensor, "*rows"]:
    """kappa = eps / sigma^2 of centred rows; infinite for a constant row."""
    return eps / centred.square().mean(-1)


def predicted_radius(kappa: Float[Tensor, "*rows"], d_model: int) -> Float[Tensor, "*rows"]:
    """|y| = sqrt(d) (1 + kappa)^(-1/2), below sqrt(d) for every eps > 0."""
    return d_model**0.5 * (1 + kappa).rsqrt()


def radius_deficit(kappa: Float[Tensor, "*rows"], d_model: int) -> Float[Tensor, "*rows"]:
    """sqrt(d) - |y|, in the form that does not cancel.

    sqrt(d) kappa / (sqrt(1+kappa) (1 + sqrt(1+kappa))); about sqrt(d) kappa / 2 while kappa is
    below 0.01. A constant row (infinite kappa) falls short by all of sqrt(d).
    """
    root = (1 + kappa).sqrt()
    share = torch.where(kappa.isinf(), torch.ones_like(kappa), kappa / (root * (1 + root)))
    return d_model**0.5 * share


def sigma_from_rho(rho: Float[Tensor, "*rows"], eps: float) -> Float[Tensor, "*rows"]:
    """The standard deviation that the radius gives away: sigma^2 = eps rho^2 / (1 - rho^2).

    Exact in exact arithmetic. In float32 the radius has forgotten sigma once sigma is above
    about 3, because 1 - rho^2 is then below rounding.
    """
    return (eps * rho.square() / ((1 - rho) * (1 + rho))).sqrt()


def before_layernorm(
    y: Float[Tensor, "*rows d_model"], eps: float
) -> Float[Tensor, "*rows d_model"]:
    """The inverse of LayerNorm on mean-free vectors: x~ = y sqrt(eps / (1 - rho^2)).

    LayerNorm maps the hyperplane of mean-free vectors one-to-one onto the open ball of radius
    sqrt(d): for eps > 0 only the mean is lost.
    """
    rho = row_norm(y)[..., None] / y.shape[-1] ** 0.5
    return y * (eps / ((1 - rho) * (1 + rho))).sqrt()


def rescaling_distance(
    x: Float[Tensor, "*rows d_model"], factor: float, eps: float
) -> Float[Tensor, "*rows"]:
    """|LN(c x) - LN(x)| for c > 0: purely radial, because the direction does not change.

    sqrt(d) |c sigma / sqrt(c^2 sigma^2 + eps) - sigma / sqrt(sigma^2 + eps)|, as the difference
    of two deficits.
    """
    d_model, centred = x.shape[-1], mean_removed(x)
    kappa = kappa_of(centred, eps)
    return (radius_deficit(kappa, d_model) - radius_deficit(kappa / factor**2, d_model)).abs()


def chord(
    x: Float[Tensor, "*rows d_model"], update: Float[Tensor, "*rows d_model"], eps: float
) -> Float[Tensor, "*rows d_model"]:
    """LN(x + u) - LN(x) = (u~ - (s' - s) y) / s', with s' the scale of x + u.

    s' - s is taken from (s'^2 - s^2) / (s' + s), so a small update keeps its digits.
    """
    centred, moved = mean_removed(x), mean_removed(update)
    before = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    after = ((centred + moved).square().mean(-1, keepdim=True) + eps).sqrt()
    growth = (moved * (2 * centred + moved)).mean(-1, keepdim=True) / (after + before)
    return (moved - growth * (centred / before)) / after
