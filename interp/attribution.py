"""Attribution patching: estimates of activation patching for all sites at once, from gradients.

To first order a patch changes the metric by (source - base) times the gradient at the base run
(Nanda 2023; Syed, Rager & Conmy 2023, arXiv:2310.10348). That is exact where the model is linear
and wrong where it is not: behind a saturated softmax the gradient vanishes although a patch would
move the attention, and paths of opposite sign cancel in it. The two corrections of AtP* (Kramár
et al. 2024, arXiv:2403.00745) mend these two. `interp.patching` gives the exact numbers; on small
models it is quick enough to be the first thing to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.engine import Trace
from interp.errors import InputError
from interp.forward import attention_scores, causal
from interp.gradients import along_path, gradients
from interp.grid import Grid, Over, grid
from interp.inputs import Contrast
from interp.metrics import Metric, as_metric
from interp.packing import on
from interp.patching import both_runs
from interp.results import labelled
from interp.sites import SITE_KINDS, Site, whole_site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def attribution_patching(
    model: HookedTransformer,
    contrast: Contrast,
    metric: Metric | Callable[[Tensor], Tensor],
    kinds: str | Collection[str],
    *,
    over: Over | None = None,
    window: int = 1,
    method: str = "atp",
    steps: int = 5,
) -> xr.DataArray:
    """An estimate of how much each cell of `activation_patching` would change the metric.

    Args:
        model, contrast, metric, kinds, over, window: as in `activation_patching`; kinds and
            layers that are patched together add up.
        method: "atp" is first order at the base run; "ig" averages the gradient over `steps`
            inputs between base and source; "atp*" recomputes the softmax for patches of q and k,
            and averages the estimate's size over backward passes that each leave one layer out.
        steps: of "ig".

    Returns:
        DataArray with dimensions batch and those of `over`: the estimated change, or for "atp*"
        its size (never negative).

    Raises:
        InputError: what `activation_patching` refuses; a metric without a gradient; attention
            scores, whose difference at unseen keys is undefined.

    Cost: two forward passes and one backward pass for "atp", whatever the number of cells; as
    many backward passes as layers for "atp*", as `steps` for "ig".
    """
    scored = as_metric(metric)
    cells = grid(model.cfg, contrast.base.shape[1], kinds, over, window)
    if "attn_scores" in cells.kinds:
        raise InputError(
            "Attention scores were to be attributed, but they are minus infinity at unseen keys: "
            "use 'pattern', or 'q' and 'k'."
        )
    source, base = both_runs(model, contrast)
    sites = [site for kind in cells.kinds for site in _sites(model, kind)]
    corrected = {"q", "k"} if method == "atp*" else set()
    needed = {*sites, *(whole_site("pattern", s.layer) for s in sites if s.kind in corrected)}
    if method == "ig":
        slopes = along_path(source, base, scored, needed, steps)
        found = {site: g.mean(0, keepdim=True) for site, g in slopes.gradients.items()}
    elif method == "atp":
        found = gradients(source, base, scored, needed).gradients
    elif method == "atp*":
        # A model of one layer has no other layer to leave out.
        layers = list(range(model.cfg.n_layers)) if model.cfg.n_layers > 1 else None
        found = gradients(source, base, scored, needed, dropped=layers).gradients
    else:
        raise InputError(
            f"Method {method!r} was asked for, but 'atp', 'atp*' and 'ig' exist: choose one."
        )

    def estimate(site: Site) -> Float[Tensor, "variant batch ..."]:
        if site.kind in corrected:
            return _through_softmax(source, base, site, found, "pos" not in cells.axes)
        return _products(source, base, site, found[site])

    by_kind = [_gathered(cells, kind, estimate, model.cfg.n_layers) for kind in cells.kinds]
    values = torch.stack(by_kind).sum(0)
    n_others = max(model.cfg.n_layers - 1, 1)
    values = values.abs().sum(0) / n_others if method == "atp*" else values[0]
    return labelled(
        model,
        values,
        ("batch", *cells.axes),
        name=f"estimated change of {scored.name}",
        units=scored.units,
        ids=base.ids,
        coords=cells.axes,
        method=method,
        steps=steps if method == "ig" else None,
        kinds=cells.kinds,
        over=tuple(cells.axes),
        window=window,
        scored_position=scored.pos,
    )


def _sites(model: HookedTransformer, kind: str) -> list[Site]:
    if not SITE_KINDS[kind].has_layer:
        return [whole_site(kind)]
    return [whole_site(kind, layer) for layer in range(model.cfg.n_layers)]


def _products(source: Trace, base: Trace, site: Site, gradient: Tensor) -> Tensor:
    """Difference times gradient for each cell of a site, [variant, batch, *axes]."""
    products = (source[site] - base[site]) * gradient
    return products.sum(-1) if SITE_KINDS[site.kind].vector else products


def _through_softmax(
    source: Trace, base: Trace, site: Site, found: Mapping[Site, Tensor], together: bool
) -> Float[Tensor, "variant batch pos head"]:
    """The first correction of AtP*: the pattern that a patched q or k would really give, times
    the gradient there. A patched query moves its own row only, so positions add up; patched keys
    share rows, so patching all of them together is computed as such (and put at position 0)."""
    assert site.layer is not None
    scale = base.weights.blocks[site.layer].attn_scale
    gradient = found[whole_site("pattern", site.layer)]
    pattern = base["pattern", site.layer]
    visible = causal(base.ids.shape[1], base.ids.device)
    q, k = base["q", site.layer], base["k", site.layer]
    if site.kind == "q":
        new = attention_scores(source["q", site.layer], k, visible, scale).softmax(-1)
        return ((new - pattern) * gradient).sum(-1).transpose(-1, -2)
    other = attention_scores(q, source["k", site.layer], visible, scale)
    if together:
        whole = ((other.softmax(-1) - pattern) * gradient).sum((-1, -2))
        out = whole.new_zeros(*whole.shape[:2], q.shape[1], whole.shape[-1])
        out[:, :, 0] = whole
        return out
    scores = attention_scores(q, k, visible, scale)
    moved = []
    for key in range(q.shape[1]):
        patched = scores.clone()
        patched[..., key] = other[..., key]
        moved.append(((patched.softmax(-1) - pattern) * gradient).sum((-1, -2)))
    return torch.stack(moved, dim=2)


def _gathered(
    cells: Grid, kind: str, estimate: Callable[[Site], Tensor], n_layers: int
) -> Float[Tensor, "variant batch ..."]:
    """The estimates of one kind summed over every axis that is not swept, in the grid's order."""
    axes = SITE_KINDS[kind].axes
    if SITE_KINDS[kind].has_layer:
        values = torch.stack([estimate(whole_site(kind, layer)) for layer in range(n_layers)], 2)
        axes = ("layer", *axes)
    else:
        values = estimate(whole_site(kind))
    for axis in [axis for axis in axes if axis not in cells.axes]:
        values = values.sum(2 + axes.index(axis))
        axes = tuple(other for other in axes if other != axis)
    if "layer" in axes:
        at = 2 + axes.index("layer")
        values = values.unfold(at, cells.window, 1).sum(-1)
    for axis, indices in cells.axes.items():
        values = values.index_select(2 + axes.index(axis), on(values.device, indices))
    return values.permute(0, 1, *(2 + axes.index(axis) for axis in cells.axes))
