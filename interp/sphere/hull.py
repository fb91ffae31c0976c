"""Which points of a cloud some direction prefers to all others: the vertices of its hull.

A query q selects key i when q . k_i > q . k_j for every other j. Over unit queries the best
margin, max over q of min over j of q . (k_i - k_j), equals the distance from 0 to the convex hull
of the differences k_j - k_i. So both sides can be certified: any point of that hull bounds the
margin from above, and any query bounds it from below.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError


@dataclass(frozen=True, eq=False)
class Margins:
    """Bounds on the margin by which each point can be preferred, per unit query.

    Attributes:
        lower, upper: the margin lies between them. `lower` is 0 where no winning query was found.
        spread: the largest distance from the point to another: the unit of the tolerance.
        tolerance: a point is selectable when lower > tolerance * spread, and unselectable when
            upper <= tolerance * spread. Duplicates of a point tie with it: unselectable.
    """

    lower: Float[Tensor, "cloud point"]
    upper: Float[Tensor, "cloud point"]
    spread: Float[Tensor, "cloud point"]
    tolerance: float

    @property
    def selectable(self) -> Bool[Tensor, "cloud point"]:
        """Some query prefers the point: certified by that query."""
        return self.lower > self.tolerance * self.spread

    @property
    def unselectable(self) -> Bool[Tensor, "cloud point"]:
        """No query prefers the point by more than the tolerance: certified by a hull point."""
        return self.upper <= self.tolerance * self.spread

    @property
    def undecided(self) -> Bool[Tensor, "cloud point"]:
        """The search was stopped before either bound could decide."""
        return ~(self.selectable | self.unselectable)


def selection_margins(
    clouds: Float[Tensor, "cloud point d"], *, tolerance: float = 1e-6, max_steps: int = 500
) -> Margins:
    """Whether each point of each cloud can be selected, certified either way.

    The minimum-norm point of each point's hull of differences by Wolfe's algorithm (1976,
    "Finding the nearest point in a polytope"), all problems side by side; a problem leaves as
    soon as one of its bounds decides it.

    Args:
        tolerance: of the margin, as a share of the point's distance to the farthest other; at
            least 1e-7, below which inner products cannot tell.
        max_steps: most steps a problem; what is open then is `undecided`.

    Raises:
        InputError: a tolerance below 1e-7.

    Cost: one Gram matrix of each cloud; then, for each open problem and step, a linear system of
    at most d+2 unknowns and one row of points. Float64 inside, whatever comes in.
    """
    if tolerance < 1e-7:
        raise InputError(
            f"tolerance={tolerance} came, but inner products cannot tell margins below 1e-7 from "
            "none: choose at least 1e-7."
        )
    _, n, d = clouds.shape
    points = clouds.double()
    points = points - points.mean(1, keepdim=True)
    gram = points @ points.mT
    square = gram.diagonal(dim1=1, dim2=2)
    distance = (square[:, :, None] + square[:, None, :] - 2 * gram).clamp(min=0)
    spread = distance.amax(-1).sqrt()
    low, high = torch.zeros_like(spread).flatten(), torch.full_like(spread, torch.inf).flatten()
    if n > 1:  # else there is nothing to be preferred to
        limit = tolerance * spread.flatten()
        search = _Search.start(gram, distance, slots=min(n - 1, d + 1) + 1)
        for _ in range(max_steps):
            at = search.problem
            margin, norm = search.bounds()
            low[at], high[at] = torch.maximum(low[at], margin), torch.minimum(high[at], norm)
            undecided = (high[at] > limit[at]) & (low[at] <= limit[at])
            # At the least norm both bounds meet; what they leave open then is rounding.
            moving = margin < norm - 1e-9 * spread.flatten()[at]
            if not (undecided & moving).any():
                break
            search = search.only(undecided & moving)
            search.step()
    else:
        low = torch.full_like(low, torch.inf)
    return Margins(low.reshape(spread.shape), high.reshape(spread.shape), spread, tolerance)


@dataclass(eq=False)
class _Search:
    """Wolfe's algorithm on many problems at once, from inner products alone.

    Problem p asks for the point of least norm in the hull of k_j - k_i, i = own[p]. It holds a
    few vertices j in slots, with weights that make the current point x.
    """

    gram: Float[Tensor, "cloud point point"]
    problem: Int[Tensor, " problem"]
    cloud: Int[Tensor, " problem"]
    own: Int[Tensor, " problem"]
    vertex: Int[Tensor, "problem slot"]
    weight: Float[Tensor, "problem slot"]
    used: Bool[Tensor, "problem slot"]
    reach: Float[Tensor, "problem point"]  # (k_j - k_i) . x
    norm_squared: Float[Tensor, " problem"]

    @classmethod
    def start(cls, gram: Tensor, distance: Tensor, slots: int) -> _Search:
        """Every problem at its nearest other point."""
        n_clouds, n, _ = gram.shape
        problem = torch.arange(n_clouds * n, device=gram.device)
        own = problem % n
        others = distance.flatten(0, 1).scatter(1, own[:, None], torch.inf)
        vertex = torch.zeros(len(problem), slots, dtype=torch.long, device=gram.device)
        used = torch.zeros_like(vertex, dtype=torch.bool)
        vertex[:, 0], used[:, 0] = others.argmin(1), True
        weight = used.to(gram)
        search = cls(gram, problem, problem // n, own, vertex, weight, used, others, others[:, 0])
        search._look()
        return search

    def only(self, kept: Bool[Tensor, " problem"]) -> _Search:
        """The search without the problems that are done."""
        if kept.all():
            return self
        fields = (self.problem, self.cloud, self.own, self.vertex, self.weight, self.used)
        rest = (*fields, self.reach, self.norm_squared)
        return _Search(self.gram, *(field[kept] for field in rest))

    def bounds(self) -> tuple[Float[Tensor, " problem"], Float[Tensor, " problem"]]:
        """The margin of the query -x, at least 0, and |x|."""
        norm = self.norm_squared.clamp(min=0).sqrt()
        best = self.reach.scatter(1, self.own[:, None], torch.inf).amin(1)
        return torch.where(norm > 0, best.clamp(min=0) / norm, 0.0), norm

    def step(self) -> None:
        """Towards the point of least norm in the affine hull of the held vertices.

        Where that lies inside their hull, go there and take up the vertex that reaches least;
        otherwise stop at the hull's edge and drop the vertex whose weight vanished.
        """
        aim = self._affine_minimum()
        outside = self.used & (aim < 0)
        arrived = ~outside.any(1)
        fall = self.weight - aim
        share = torch.where(outside, self.weight / torch.where(outside, fall, 1.0), torch.inf)
        stop, dropped = share.min(1)
        stop = torch.where(arrived, 1.0, stop)
        self.weight = self.weight - stop[:, None] * fall
        left = (~arrived).nonzero()[:, 0]
        self.used[left, dropped[left]] = False
        self.weight = torch.where(self.used, self.weight, 0.0).clamp(min=0)
        self.weight = self.weight / self.weight.sum(1, keepdim=True)
        self._look()
        there = (arrived & ~self.used.all(1)).nonzero()[:, 0]
        least = self.reach.scatter(1, self.own[:, None], torch.inf).argmin(1)
        free = (~self.used).int().argmax(1)
        self.vertex[there, free[there]] = least[there]
        self.used[there, free[there]] = True

    def _affine_minimum(self) -> Float[Tensor, "problem slot"]:
        """Weights, of either sign, of the affine hull's point of least norm."""
        cloud, own = self.cloud[:, None], self.own[:, None]
        to_own = self.gram[cloud, self.vertex, own]
        inner = self.gram[cloud[..., None], self.vertex[:, :, None], self.vertex[:, None, :]]
        inner = inner - to_own[:, :, None] - to_own[:, None, :]
        inner = inner + self.gram[cloud, own, own][..., None]
        size = inner.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        both = self.used[:, :, None] & self.used[:, None, :]
        eye = torch.eye(self.used.shape[1], dtype=inner.dtype, device=inner.device)
        # Adding a constant to every inner product leaves the minimiser and makes it unique.
        system = torch.where(both, inner + size, size * eye)
        solved = torch.linalg.solve_ex(system, self.used.to(inner)[..., None]).result[..., 0]
        return solved / solved.sum(1, keepdim=True)

    def _look(self) -> None:
        """Set `reach` and `norm_squared` from the weights."""
        rows = self.gram[self.cloud[:, None], self.vertex]
        x = (self.weight[..., None] * rows).sum(1) - self.gram[self.cloud, self.own]
        self.reach = x - x.gather(1, self.own[:, None])
        self.norm_squared = (self.weight * self.reach.gather(1, self.vertex)).sum(1)
