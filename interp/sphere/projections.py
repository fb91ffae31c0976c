"""Three-dimensional pictures of points on a high-dimensional sphere, that say how far they lie.

Every picture is of unit vectors x^. Each function returns coordinates and `captured`, the share
of each point's length (or of its direction from the pole) that three dimensions hold: 1 means the
point stands where it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.sphere.angles import angle, tangent_towards


@dataclass(frozen=True, eq=False)
class Picture:
    """Coordinates of points, and how much of each they hold."""

    coordinates: Float[Tensor, "point 3"]
    captured: Float[Tensor, " point"]


def principal_axes(
    vectors: Float[Tensor, "point d_model"], n_axes: int
) -> Float[Tensor, "n_axes d_model"]:
    """The leading uncentred principal axes, orthonormal; axes beyond the rank are zero.

    Signs are fixed so that each axis' largest entry is positive: the same points always give the
    same picture.
    """
    values, columns = torch.linalg.eigh(vectors.mT @ vectors)
    values, axes = values.flip(0)[:n_axes], columns.mT.flip(0)[:n_axes]
    if len(values) < n_axes:
        missing = n_axes - len(values)
        values = torch.cat([values, values.new_zeros(missing)])
        axes = torch.cat([axes, axes.new_zeros(missing, axes.shape[1])])
    noise = torch.finfo(values.dtype).eps * vectors.shape[1] * values[0]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return axes * torch.where(largest < 0, -1.0, 1.0) * (values > noise)[:, None]


def ball(points: Float[Tensor, "point d_model"]) -> Picture:
    """The orthogonal projection onto the three principal axes, inside the unit ball.

    Drawn distances never exceed true ones. Points are not pushed out to the surface: that would
    inflate the distances between points that three dimensions hold badly.
    """
    coordinates = points @ principal_axes(points, 3).mT
    return Picture(coordinates, coordinates.norm(dim=-1))


def around_pole(
    points: Float[Tensor, "point d_model"],
    pole: Float[Tensor, " d_model"],
    radius: Callable[[Tensor], Tensor],
) -> Picture:
    """Each point at `radius(angle to the pole)`, in the direction in which the pole sees it.

    Distances to the pole are exact, all others are not. Directions are projected on the three
    principal ones; `captured` is how much of the direction that holds.
    """
    theta = angle(points, pole.expand_as(points))
    heading = tangent_towards(pole.expand_as(points), points).nan_to_num()
    flat = heading @ principal_axes(heading, 3).mT
    captured = flat.norm(dim=-1)
    unit = flat / captured.clamp(min=torch.finfo(flat.dtype).tiny)[:, None]
    # The pole itself, and its opposite, have no direction: the first is drawn exactly.
    captured = torch.where(theta == 0, torch.ones_like(captured), captured)
    return Picture(unit * radius(theta)[:, None], captured)


def equidistant(points: Float[Tensor, "point d_model"], pole: Float[Tensor, " d_model"]) -> Picture:
    """Azimuthal equidistant: the drawn radius is the angle to the pole, radians."""
    return around_pole(points, pole, lambda theta: theta)


def lambert(points: Float[Tensor, "point d_model"], pole: Float[Tensor, " d_model"]) -> Picture:
    """The drawn radius is the true chord to the pole, 2 sin(theta / 2).

    On the 2-sphere this is Lambert's equal-area map. On a higher sphere it keeps no areas, only
    the chord to the pole.
    """
    return around_pole(points, pole, lambda theta: 2 * (theta / 2).sin())


def equal_volume(points: Float[Tensor, "point d_model"]) -> Picture:
    """The 3-sphere of the four principal axes, mapped so that equal volumes stay equal.

    Points are projected to four dimensions and renormalised there; `captured` is their length
    before that. The pole is the first principal axis, and the drawn radius
    (3 (theta - sin theta cos theta) / 2)^(1/3), at most (3 pi / 2)^(1/3) = 1.6765.
    """
    inside = points @ principal_axes(points, 4).mT
    captured = inside.norm(dim=-1)
    theta = torch.atan2(inside[:, 1:].norm(dim=-1), inside[:, 0])
    # theta - sin cos = 2/3 theta^3 near 0, where the difference would cancel.
    cap = torch.where(theta < 1e-2, theta**3 * 2 / 3, theta - theta.sin() * theta.cos())
    outward = inside[:, 1:]
    length = outward.norm(dim=-1).clamp(min=torch.finfo(outward.dtype).tiny)
    return Picture(outward / length[:, None] * (1.5 * cap).pow(1 / 3)[:, None], captured)


@dataclass(frozen=True)
class Distortion:
    """How a picture's distances compare with the true angles, over all pairs of its points.

    Attributes:
        stress: Kruskal's stress-1 of drawn distances against the true ones that the picture aims
            at, 0 for a perfect picture.
        pearson, spearman: correlation of drawn distances with true angles.
        worst_pair: the two points whose distance is most wrong.
        worst_true, worst_drawn: their true and drawn distance.
        n_points: how many points the pairs were formed from.
    """

    stress: float
    pearson: float
    spearman: float
    worst_pair: tuple[int, int]
    worst_true: float
    worst_drawn: float
    n_points: int


def distortion(
    points: Float[Tensor, "point d_model"],
    coordinates: Float[Tensor, "point 3"],
    *,
    chords: bool,
    limit: int = 256,
) -> Distortion:
    """Compare a picture with the sphere, over all pairs of up to `limit` evenly spaced points.

    Args:
        chords: whether the picture aims at chords |a - b| (ball, lambert) or at angles.
    """
    chosen = torch.linspace(0, len(points) - 1, min(limit, len(points))).round().long()
    true_chord = torch.cdist(
        points[chosen], points[chosen], compute_mode="donot_use_mm_for_euclid_dist"
    )
    drawn_all = torch.cdist(
        coordinates[chosen], coordinates[chosen], compute_mode="donot_use_mm_for_euclid_dist"
    )
    first, second = torch.triu_indices(len(chosen), len(chosen), offset=1)
    chord, drawn = true_chord[first, second], drawn_all[first, second]
    angles = 2 * (chord / 2).clamp(max=1).asin()
    true = chord if chords else angles
    if not len(true):
        return Distortion(0.0, torch.nan, torch.nan, (0, 0), 0.0, 0.0, len(chosen))
    off = (true - drawn).abs()
    worst = int(off.argmax())
    return Distortion(
        stress=float((off.square().sum() / true.square().sum()).sqrt()),
        pearson=_correlation(drawn, angles),
        spearman=_correlation(_ranks(drawn), _ranks(angles)),
        worst_pair=(int(chosen[first[worst]]), int(chosen[second[worst]])),
        worst_true=float(true[worst]),
        worst_drawn=float(drawn[worst]),
        n_points=len(chosen),
    )


def _ranks(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Ranks from 0, ties sharing their mean."""
    _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).to(values.dtype)
    return (ends - (counts.to(values.dtype) + 1) / 2)[inverse]


def _correlation(a: Float[Tensor, " n"], b: Float[Tensor, " n"]) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1]) if len(a) > 1 else torch.nan
