"""Gradients of a metric at every site, from one batched forward and backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.engine import Trace
from interp.errors import InputError
from interp.metrics import Metric
from interp.replay import scored_positions
from interp.sites import Site
from interp.sweep import runs_at


@dataclass(frozen=True, eq=False)
class Slopes:
    """What sites held in some runs, and the metric's gradient there, each with the axes variant,
    batch and those of the site."""

    values: Mapping[Site, Tensor]
    gradients: Mapping[Site, Tensor]


def gradients(
    source: Trace,
    base: Trace,
    metric: Metric,
    sites: Iterable[Site],
    *,
    embed: Float[Tensor, "variant batch pos d_model"] | None = None,
    dropped: list[int] | None = None,
) -> Slopes:
    """The gradient of the metric at each site, at the base run or at variants of it.

    Args:
        source, base: the unedited runs; the metric may compare with both.
        metric: what is differentiated, once for each prompt.
        sites: whole sites.
        embed: variants of the base run that read these token embeddings in place of their own.
        dropped: variants of the base run in each of which the backward pass ignores what one
            layer's sublayers do with the stream (GradDrop of Kramár et al. 2024,
            arXiv:2403.00745).

    Raises:
        InputError: the metric has no gradient, such as a rank.

    Cost: about three forward passes for each variant.
    """
    n_batch = len(base.ids)
    n_variants = len(embed) if embed is not None else len(dropped) if dropped is not None else 1
    ids = base.ids.repeat(n_variants, 1)
    wanted = set(sites)
    held: dict[Site, Tensor] = {}

    def tap(site: Site, value: Tensor) -> Tensor:
        if site.kind == "embed":
            value = value if embed is None else embed.flatten(0, 1)
            value = value.detach().requires_grad_()
        elif site.kind == "pos_embed":
            value = value.detach().clone().requires_grad_()
        elif dropped is not None and site.kind in ("attn_out", "mlp_out"):
            blocked = torch.tensor(dropped, device=value.device) == site.layer
            rows = blocked.repeat_interleave(n_batch)[:, None, None]
            value = torch.where(rows, value.detach(), value)
        if site in wanted:
            held[site] = value
        return value

    with torch.enable_grad():
        final = base.program.run(ids, tap)
        scored = scored_positions(base.ids, metric.pos)
        logits = base.program.unembed(final[:, scored])
        batch = torch.arange(n_batch, device=ids.device).repeat(n_variants)
        total = metric(logits, batch, runs_at(base, source, metric.pos)).sum()
    if not total.requires_grad:
        raise InputError(
            f"Metric {metric.name!r} has no gradient, but gradient methods follow one: use a "
            "logit difference, a probability or a KL divergence."
        )
    order = list(held)
    found = torch.autograd.grad(total, [held[site] for site in order], allow_unused=True)
    values = {site: held[site].detach() for site in order}
    slopes = {
        site: torch.zeros_like(values[site]) if gradient is None else gradient
        for site, gradient in zip(order, found, strict=True)
    }
    shape = (n_variants, n_batch)
    return Slopes(
        {site: value.unflatten(0, shape) for site, value in values.items()},
        {site: slope.unflatten(0, shape) for site, slope in slopes.items()},
    )


def along_path(
    source: Trace, base: Trace, metric: Metric, sites: Iterable[Site], steps: int
) -> Slopes:
    """Gradients at inputs between base and source, for integrated gradients: at the midpoints of
    `steps` equal stretches of the straight line between the token embeddings."""
    if steps < 1:
        raise InputError(
            f"Integrated gradients came with steps={steps}, but at least 1 is needed: 5 is usual."
        )
    at = (torch.arange(steps, device=base.ids.device) + 0.5) / steps
    start, stop = base["embed"], source["embed"]
    between = start + at.to(start.dtype)[:, None, None, None] * (stop - start)
    return gradients(source, base, metric, sites, embed=between)
