"""What each update does to the point on the sphere.

An update u at a state x is split into three orthogonal parts,

    |u|^2 = mean^2 + radial^2 + tangential^2:

    mean        along 1: sqrt(d) times the mean of u. LayerNorm removes it.
    radial      u~ . x^, signed: longer or shorter. LayerNorm all but removes it.
    tangential  the rest: it moves the point.

Everything LayerNorm makes of the update follows from these three numbers, |x~| and eps, because
x^ and the tangential direction span the plane in which it moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from interp.components import updates, write_sites
from interp.engine import Trace, traced
from interp.inputs import Input
from interp.norms import Norm, state_names
from interp.result_sets import labelled_set
from interp.sphere.laws import direction, row_norm
from interp.sphere.states import sphere_norms

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


QUANTITIES = {
    "mean": "stream",
    "radial": "stream",
    "tangential": "stream",
    "along": "stream",
    "hop": "radians",
    "killed_linear": "1",
    "killed": "1",
}
"""what is reported of each update, with its unit; see `update_split`"""


@dataclass(frozen=True, eq=False)
class Split:
    """Updates as mean, radial (both signed) and tangential (a length) parts, at states of centred
    length `at`, read by a normalisation with `eps` in `d_model` dimensions."""

    mean: Float[Tensor, "*rows"]
    radial: Float[Tensor, "*rows"]
    tangential: Float[Tensor, "*rows"]
    at: Float[Tensor, "*rows"]
    eps: float
    d_model: int

    @property
    def squared(self) -> Float[Tensor, "*rows"]:
        """|u|^2."""
        return self.mean.square() + self.radial.square() + self.tangential.square()

    def quantities(self, along: Float[Tensor, "*rows"]) -> Float[Tensor, "quantity ..."]:
        """What is reported of each update, in the order of `QUANTITIES`."""
        shares = (self.hop, self.killed_linear, self.killed)
        return torch.stack([self.mean, self.radial, self.tangential, along, *shares])

    @property
    def hop(self) -> Float[Tensor, "*rows"]:
        """The angle the update moves the point: atan2(tangential, |x~| + radial), radians."""
        return torch.atan2(self.tangential, self.at + self.radial)

    @property
    def killed_linear(self) -> Float[Tensor, "*rows"]:
        """The share of |u|^2 that LayerNorm removes to first order: 1 - s^2 |J u|^2 / |u|^2.

        J passes the tangential part at 1/s and the radial part at eps/s^3.
        """
        variance = self.at.square() / self.d_model + self.eps
        passed = self.tangential.square() + (self.radial * self.eps / variance).square()
        return 1 - passed / self.squared

    @property
    def killed(self) -> Float[Tensor, "*rows"]:
        """The share of |u|^2 that LayerNorm removes, exactly:
        1 - s^2 |LN(x+u) - LN(x)|^2 / |u|^2.

        Negative where the update shrinks the stream (s' < s), which magnifies what is left.
        """
        before = (self.at.square() / self.d_model + self.eps).sqrt()
        grown = self.radial * (2 * self.at + self.radial) + self.tangential.square()
        after = (before.square() + grown / self.d_model).clamp(min=self.eps).sqrt()
        # s'-s over s'+s keeps the digits of a small update.
        stretch = grown / self.d_model / (after + before)
        along = (self.radial - self.at * stretch / before) / after
        across = self.tangential / after
        return 1 - before.square() * (along.square() + across.square()) / self.squared


@dataclass(frozen=True, eq=False)
class Frame:
    """States x, seen from where they are on the sphere: what splits the updates made there."""

    norm: Norm
    length: Float[Tensor, "*rows"]
    heading: Float[Tensor, "*rows d_model"]

    @classmethod
    def at(cls, x: Float[Tensor, "*rows d_model"], norm: Norm) -> Frame:
        """The frame of states x. Its heading x^ is NaN where x is constant."""
        centred = norm.centred(x)
        return cls(norm, row_norm(centred), direction(centred))

    def tangent(self, update: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """The tangential part of an update, as a vector."""
        moved = self.norm.centred(update)
        return torch.addcmul(moved, -(moved * self.heading).sum(-1, keepdim=True), self.heading)

    def split(self, update: Float[Tensor, "*rows d_model"]) -> Split:
        """The three parts of an update. RMSNorm loses no mean, so there the first is 0."""
        moved = self.norm.centred(update)
        radial = (moved * self.heading).sum(-1)
        tangential = row_norm(torch.addcmul(moved, -radial[..., None], self.heading))
        d_model = update.shape[-1]
        lost = update.mean(-1) * d_model**0.5 if self.norm.kind == "LN" else 0 * radial
        return Split(lost, radial, tangential, self.length, self.norm.eps, d_model)


def update_split(model: HookedTransformer, input: Input | Trace) -> xr.Dataset:
    """How every update in the model divides: the sublayers', the heads', the biases'.

    Each component is measured at the state its sublayer reads: `0_attn_out` (the whole update),
    its parts `L0H0` ... and `0_attn_bias` (see `interp.components`), then `0_mlp_out`.

    Returns:
        Over [component, batch, pos]: `mean` and `radial`, signed, and `tangential`, a length, in
        the stream's unit: mean^2 + radial^2 + tangential^2 = |u|^2. `along`, the tangential part
        in the direction in which the whole sublayer moves the point: an attention's parts sum to
        its `tangential`. `hop`, radians, the angle that the update alone would make.
        `killed_linear` and `killed`, the share of |u|^2 that LayerNorm removes, to first order
        and exactly. `kind` (attn, head, attn_bias, mlp), `layer` and `state` are coordinates.

        Mean shares are about the model as trained: once the writing weights are centred (as
        TransformerLens does by default) they are zero by construction.
        NaN at constant states, which have no radial direction, and for shares of zero updates.

    Raises:
        InputError: unreadable input; a model without normalisation.

    Cost: one forward pass, a [d_head, d_model] product for each head and position, and a few
    passes over each update; memory of one update at a time.
    """
    readers = sphere_norms(model)
    run = traced(model, input, write_sites(model.cfg))
    names, stream = state_names(model.cfg), run.stream
    rows, components = [], []
    at, frame, course = -1, None, None
    for update in updates(run):
        assert update.state is not None
        if update.state != at:
            # The first update at a state is its sublayer's whole one.
            at = update.state
            frame = Frame.at(stream[at], readers[at])
            course = direction(frame.tangent(update.value))
        assert frame is not None
        assert course is not None
        rows.append(frame.split(update.value).quantities((update.value * course).sum(-1)))
        components.append((update.label, update.kind, update.layer, names[at]))
    return labelled_split(model, torch.stack(rows, dim=1), components, run.ids)


def labelled_split(
    model: HookedTransformer,
    values: Float[Tensor, "quantity component batch pos"],
    components: Sequence[tuple[str, str, int | None, str]],
    ids: Int[Tensor, "batch n_ctx"],
    pos: Sequence[int] | None = None,
) -> xr.Dataset:
    """A Dataset of splits.

    Args:
        components: label, kind, layer and state of each.
        pos: the positions in `values`; all of the prompt's by default.
    """
    component, kind, layer, state = zip(*components, strict=True)
    dims = ("component", "batch", "pos")
    return labelled_set(
        model,
        {
            name: (value, dims, unit)
            for (name, unit), value in zip(QUANTITIES.items(), values, strict=True)
        },
        ids=ids,
        coords={
            "component": list(component),
            "kind": ("component", list(kind)),
            "layer": ("component", list(layer)),
            "state": ("component", list(state)),
            **({} if pos is None else {"pos": list(pos)}),
        },
    )
