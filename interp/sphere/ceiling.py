"""How sure of each token the model can possibly be, on a sphere of limited radius.

The last normalised state y lies in the ball of radius sqrt(d), so no token's probability can
exceed its maximum over that ball, whatever the prompt. The log-odds of token v,

    f(y) = -log sum over w != v of exp((A_w - A_v) . y + c0_w - c0_v),

are concave in y and grow with the probability, so the maximum is one convex problem, and the
log-odds, unlike the probability, never saturate. With eps > 0 the ball is open and the maximum a
limit that is not attained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.inputs import vocabulary
from interp.readout import readout
from interp.result_sets import labelled_set
from interp.sphere.states import sphere_norms

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


@dataclass(frozen=True, eq=False)
class Ceiling:
    """The maxima of log-odds over a ball.

    Attributes:
        log_odds: at `at`, the best point found: a lower bound of the maximum.
        gap: by concavity the maximum is at most log_odds + gap.
        multiplier: lambda >= 0 with gradient = lambda * at; 0 for a maximum inside the ball.
        residual: |gradient - lambda * at|, over the longest A_w - A_v: 0 at the maximum.
    """

    log_odds: Float[Tensor, " token"]
    at: Float[Tensor, "token dimension"]
    gap: Float[Tensor, " token"]
    multiplier: Float[Tensor, " token"]
    residual: Float[Tensor, " token"]


def log_odds_ceiling(
    A: Float[Tensor, "dimension d_vocab"],
    c0: Float[Tensor, " d_vocab"],
    tokens: Int[Tensor, " token"],
    radius: float,
    *,
    max_steps: int = 100,
    gap: float = 1e-10,
) -> Ceiling:
    """Maximise the log-odds of some tokens over the ball, each on its own.

    Newton's method for a concave function on a ball: the quadratic model is maximised on the ball
    exactly (by its eigenvectors), then a line search. Ends one step after every gap is below
    `gap` times 1 + |log-odds|: the gap goes as the square of the residual.

    Cost, a step: for each token the products for a [dimension, dimension] Hessian over the
    vocabulary, and its eigendecomposition.
    """
    own = A[:, tokens].mT
    y = torch.zeros(len(tokens), len(A), dtype=A.dtype, device=A.device)
    value, share = _odds(A, c0, tokens, y)
    closed = False
    for _ in range(max_steps):
        mean = share @ A.mT
        gradient = own - mean
        if closed:
            break
        closed = bool((_gap(gradient, y, radius) <= gap * (1 + value.abs())).all())
        curvature = torch.einsum("dv,tv,ev->tde", A, share, A)
        curvature = curvature - mean[:, :, None] * mean[:, None, :]
        towards = _ball_maximum(curvature, gradient, y, radius) - y
        y, value, share = _climb(A, c0, tokens, y, towards, gradient, value, share)
    gradient = own - share @ A.mT
    multiplier = ((gradient * y).sum(-1) / radius**2).clamp(min=0)
    longest = (A.square().sum(0).max().sqrt() * 2).clamp(min=torch.finfo(A.dtype).tiny)
    residual = (gradient - multiplier[:, None] * y).norm(dim=-1) / longest
    return Ceiling(value, y, _gap(gradient, y, radius), multiplier, residual)


def _odds(A: Tensor, c0: Tensor, tokens: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each token's log-odds at its y, and the other tokens' shares of what stands against it."""
    row = torch.arange(len(tokens), device=A.device)
    logits = y @ A + c0
    own = logits[row, tokens].clone()
    logits[row, tokens] = -torch.inf
    against = logits.logsumexp(-1)
    return own - against, (logits - against[:, None]).exp()


def _climb(
    A: Tensor,
    c0: Tensor,
    tokens: Tensor,
    y: Tensor,
    towards: Tensor,
    gradient: Tensor,
    value: Tensor,
    share: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The first of y + towards, y + towards/2 ... that rises enough; y itself if none does."""
    rise = (gradient * towards).sum(-1)
    rounding = 1e-13 * (1 + value.abs())
    step = torch.ones_like(value)
    tried, tried_share = _odds(A, c0, tokens, y + towards)
    for _ in range(40):
        # A rise below rounding cannot be seen: there the Newton point is as good as any.
        short = (tried < value + 1e-4 * step * rise) & (step * rise > rounding)
        if not short.any():
            break
        step = torch.where(short, step / 2, step)
        tried, tried_share = _odds(A, c0, tokens, y + step[:, None] * towards)
    better = tried >= value - 10 * rounding
    return (
        torch.where(better[:, None], y + step[:, None] * towards, y),
        torch.where(better, tried, value),
        torch.where(better[:, None], tried_share, share),
    )


def _gap(gradient: Tensor, y: Tensor, radius: float) -> Tensor:
    """How much a concave function can still rise on the ball, by its tangent at y."""
    return (radius * gradient.norm(dim=-1) - (gradient * y).sum(-1)).clamp(min=0)


def _ball_maximum(
    curvature: Float[Tensor, "token dimension dimension"],
    gradient: Float[Tensor, "token dimension"],
    y: Float[Tensor, "token dimension"],
    radius: float,
) -> Float[Tensor, "token dimension"]:
    """The maximum over the ball of the model gradient . (z-y) - (z-y) curvature (z-y) / 2.

    It is z = (curvature + mu)^-1 (gradient + curvature y), with mu >= 0 such that |z| <= radius.
    """
    values, axes = torch.linalg.eigh(curvature)
    values = values.clamp(min=0)
    pull = gradient + (curvature @ y[..., None])[..., 0]
    along = (axes.mT @ pull[..., None])[..., 0]
    # |z| falls as mu grows; mu = |pull| / radius is certainly enough. Bisect on the logarithm.
    high = along.norm(dim=-1) / radius + torch.finfo(values.dtype).tiny
    low = high * 1e-18

    def length(mu: Tensor) -> Tensor:
        return (along / (values + mu[:, None])).norm(dim=-1)

    inside = length(low) <= radius
    for _ in range(100):
        middle = (low * high).sqrt()
        outside = length(middle) > radius
        low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
    mu = torch.where(inside, low, high)
    return (axes @ (along / (values + mu[:, None]))[..., None])[..., 0]


def confidence_ceiling(
    model: HookedTransformer, tokens: list[int] | None = None, *, batch_size: int = 64
) -> xr.Dataset:
    """The highest probability that any state on the sphere can give each token.

    Args:
        tokens: ids; all by default.
        batch_size: how many tokens are solved side by side.

    Returns:
        Over [token]: `log_odds` and `probability`, the ceiling; `gap`, by how much the true
        ceiling's log-odds can at most be higher; `residual`, of the Karush-Kuhn-Tucker condition
        gradient = lambda y; `interior`, whether the maximum lies inside the ball. `direction`
        [token, d_model] is the state y that attains it.

    Raises:
        InputError: a model without normalisation; ids outside the vocabulary.

    Cost: some ten steps, each of d_vocab * r^2 + r^3 for a token, with r the rank of the
    directions, at most min(d_model, d_vocab). Seconds for characters; for a vocabulary of 50,000
    choose the tokens. Float64 inside.
    """
    sphere_norms(model)
    d_vocab = model.cfg.d_vocab
    ids = list(range(d_vocab)) if tokens is None else tokens
    if not ids or not all(0 <= token < d_vocab for token in ids):
        raise InputError(
            f"Token ids {ids} came, but ids go from 0 to {d_vocab - 1}: choose among them."
        )
    read = readout(model)
    A, c0 = read.A.double(), read.c0.double()
    # Only differences of columns count. In the space that they span, the Hessian is smallest.
    apart = A - A.mean(1, keepdim=True)
    axes, spans, _ = torch.linalg.svd(apart, full_matrices=False)
    axes = axes[:, spans > spans[0] * 1e-12]
    radius = model.cfg.d_model**0.5
    solved = [
        log_odds_ceiling(axes.mT @ apart, c0, torch.tensor(ids[i : i + batch_size]), radius)
        for i in range(0, len(ids), batch_size)
    ]
    together = {
        name: torch.cat([getattr(part, name) for part in solved])
        for name in ("log_odds", "gap", "residual", "at")
    }
    at, log_odds = together["at"], together["log_odds"]
    on_sphere = at.norm(dim=-1) >= radius * (1 - 1e-6)
    names = vocabulary(model)
    return labelled_set(
        model,
        {
            "log_odds": (log_odds, ("token",), "nats"),
            "probability": (log_odds.sigmoid(), ("token",), "probability"),
            "gap": (together["gap"], ("token",), "nats"),
            "residual": (together["residual"], ("token",), "1"),
            "interior": (~on_sphere, ("token",), "1"),
            "direction": (at @ axes.mT, ("token", "d_model"), "normalised stream"),
        },
        coords={"token": ids, "tokens": ("token", [names[token] for token in ids])},
    )
