"""Path patching: one edge of the model's graph at a time, exactly.

What a sender wrote in the source run goes into one receiver's input only; everything the sender
feeds besides stays as it was, and so does every component between the two. From the receiver on
the change runs free (Wang et al. 2022, arXiv:2211.00593; Goldowsky-Dill et al. 2023,
arXiv:2304.05969). The receiver reads the changed stream through its real LayerNorm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from interp.engine import Trace
from interp.graph import (
    Receiver,
    Sender,
    edge_mask,
    named,
    place_of,
    received,
    receivers_of,
    senders_of,
    written,
)
from interp.inputs import Contrast
from interp.metrics import Metric, as_metric
from interp.packing import Edit, on, taken
from interp.patching import both_runs
from interp.replay import DEFAULT_MEMORY, Progress, replay_rows, scored_positions
from interp.results import labelled
from interp.sites import whole_site
from interp.sweep import runs_at

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def path_patching(
    model: HookedTransformer,
    contrast: Contrast,
    metric: Metric | Callable[[Tensor], Tensor],
    *,
    senders: Sequence[str] | None = None,
    receivers: Sequence[str] | None = None,
    batch_size: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The exact effect of every edge between the chosen senders and receivers.

    Args:
        model: the model.
        contrast: source and base prompts.
        metric: as in `interp.patching.activation_patching`.
        senders, receivers: names as in `interp.graph`; all of them if left out.
        batch_size, max_memory, progress: as in `activation_patching`.

    Returns:
        Dataset with dimensions batch, sender and receiver: `raw`, the metric of the run with that
        one edge patched; `change`, raw minus base; both NaN where a sender comes after the
        receiver. `base` and `source` are the metric of the unpatched runs.

    Raises:
        InputError: a name that the model does not have, or what `activation_patching` refuses.

    Cost: two forward passes, and one replay from the receiver's layer on for each edge.
    """
    scored = as_metric(metric)
    source, base = both_runs(model, contrast)
    writers = named(senders_of(model.cfg), None if senders is None else list(senders))
    readers = named(receivers_of(model.cfg), None if receivers is None else list(receivers))
    raw = edge_effects(
        source,
        base,
        scored,
        writers,
        readers,
        batch_size=batch_size,
        max_memory=max_memory,
        progress=progress,
    )
    runs = runs_at(base, source, scored.pos)
    everyone = torch.arange(len(base.ids), device=base.ids.device)
    of_base = scored(runs.base, everyone, runs)
    assert runs.source is not None
    of_source = scored(runs.source, everyone, runs)
    result = labelled(
        model,
        raw,
        ("batch", "sender", "receiver"),
        name=scored.name,
        units=scored.units,
        ids=base.ids,
        coords={
            "sender": [node.name for node in writers],
            "receiver": [node.name for node in readers],
        },
        ablation="values of the source run",
        scored_position=scored.pos,
    )
    units = {"units": scored.units}
    change = raw - of_base[:, None, None]
    return xr.Dataset(
        {
            "raw": result.variable,
            "change": (result.dims, change.cpu().numpy(), units),
            "base": (("batch",), of_base.cpu().numpy(), units),
            "source": (("batch",), of_source.cpu().numpy(), units),
        },
        coords=result.coords,
        attrs=result.attrs | {"metric": scored.name},
    )


def edge_effects(
    source: Trace,
    base: Trace,
    metric: Metric,
    senders: list[Sender],
    receivers: list[Receiver],
    *,
    batch_size: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Float[Tensor, "batch sender receiver"]:
    """The metric with each single edge patched, NaN where there is no edge."""
    n_batch = len(base.ids)
    edges = place_of(edge_mask(senders, receivers)).numpy()
    change = written(source, senders) - written(base, senders)
    edits = []
    for r, receiver in enumerate(receivers):
        rows = (edges[:, 1] == r).nonzero()[0]
        if len(rows):
            heard = taken(change, edges[rows, 0])
            edits.append(_edit(base, receiver, heard, rows))
    runs = runs_at(base, source, metric.pos)
    kept = replay_rows(
        base,
        np.tile(np.arange(n_batch), len(edges)),
        edits,
        scored_positions(base.ids, metric.pos),
        lambda logits, batch: metric(logits, batch, runs),
        batch_size=batch_size,
        max_memory=max_memory,
        progress=progress,
    )
    effects = kept.new_full((n_batch, len(senders), len(receivers)), torch.nan)
    sender, receiver = (on(kept.device, i) for i in edges.T)
    effects[:, sender, receiver] = kept.view(len(edges), n_batch).T
    return effects


def _edit(
    base: Trace,
    receiver: Receiver,
    change: Float[Tensor, "edge batch pos d_model"],
    rows: Int[np.ndarray, " edge"],
) -> Edit:
    """What the receiver's site holds when its input changes; each edge and prompt is a row."""
    changed = change.any(dim=-1).nonzero(as_tuple=True)
    stream = base.values[receiver.stream][changed[1:]] + change[changed]
    edge, batch, pos = (i.cpu().numpy() for i in changed)
    row = rows[edge] * len(base.ids) + batch
    if receiver.site is None:
        return Edit(receiver.stream, row, (pos,), stream)
    value, layer = received(base.weights, receiver, stream), receiver.stream.layer
    if receiver.site.kind == "mlp_pre":
        assert layer is not None
        mlp = base.weights.blocks[layer].mlp
        assert mlp is not None
        value = torch.addmm(mlp.b_out, mlp.act_fn(value), mlp.W_out)
        return Edit(whole_site("mlp_out", layer), row, (pos,), value)
    head = np.full_like(pos, receiver.site.head or 0)
    return Edit(receiver.site.whole, row, (pos, head), value)
