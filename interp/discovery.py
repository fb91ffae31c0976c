"""Circuits: running only some edges of the model's graph, and choosing which.

In such a run every kept edge carries what its sender computes here and every other edge carries
what it carried in the source run, so with all edges kept it is the base run and with none the
source run. Faithfulness swings with what cut edges carry, with granularity and with the metric
(Miller, Chughtai & Saunders 2024, arXiv:2407.08734): results name them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.forward import attention_scores, causal, linear, mix_values
from interp.graph import edge_mask, received, receivers_of, senders_of, written
from interp.inputs import Contrast
from interp.metrics import Metric, as_metric
from interp.patching import both_runs
from interp.replay import DEFAULT_MEMORY, Progress, scored_positions
from interp.results import labelled
from interp.sweep import runs_at

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

AnyMetric = Metric | Callable[[Tensor], Tensor]


class CircuitRuns:
    """Runs of one contrast with any set of edges kept."""

    def __init__(
        self,
        model: HookedTransformer,
        contrast: Contrast,
        metric: AnyMetric,
        max_memory: int = DEFAULT_MEMORY,
    ) -> None:
        self.metric = as_metric(metric)
        self.source, self.base = both_runs(model, contrast)
        self.senders, self.receivers = senders_of(model.cfg), receivers_of(model.cfg)
        self.edges = edge_mask(self.senders, self.receivers).to(self.base.ids.device)
        self._cut = written(self.source, self.senders)
        runs = runs_at(self.base, self.source, self.metric.pos)
        everyone = torch.arange(len(self.base.ids), device=self.base.ids.device)
        self._runs = runs
        self.of_base = self.metric(runs.base, everyone, runs)
        assert runs.source is not None
        self.of_source = self.metric(runs.source, everyone, runs)
        a_run = self._cut.numel() * (2 + model.cfg.n_heads) * self._cut.element_size()
        self._at_once = max(1, max_memory // a_run)

    def __call__(
        self, kept: Bool[Tensor, "circuit sender receiver"]
    ) -> Float[Tensor, "circuit batch"]:
        """The metric of each circuit. Cost: about one forward pass for each circuit, and 2
        d_model operations for each edge and token."""
        return torch.cat([self._few(some) for some in kept.split(self._at_once)])

    def faithfulness(self, kept: Bool[Tensor, "circuit sender receiver"]) -> Tensor:
        """How much of the way from the source run to the base run each circuit goes, over all
        pairs together: 1 is as good as the whole model."""
        change = (self(kept) - self.of_source).sum(-1)
        return change / (self.of_base - self.of_source).sum()

    def _few(self, kept: Bool[Tensor, "circuit sender receiver"]) -> Tensor:
        base, source, weights = self.base, self.source, self.base.weights
        n_batch, n_pos = base.ids.shape
        cfg = weights.cfg
        use = kept.to(base.final.dtype)
        # What each sender writes here beyond what it wrote in the source run.
        beyond = base.final.new_zeros(len(kept), len(self.senders), n_batch, n_pos, cfg.d_model)
        for s, kind in enumerate(("embed", "pos_embed")):
            beyond[:, s] = base[kind] - source[kind]
        readers = {node.name: r for r, node in enumerate(self.receivers)}
        writers = {node.name: s for s, node in enumerate(self.senders)}

        def reads(name: str) -> Float[Tensor, "circuit batch pos d_out"]:
            r = readers[name]
            node = self.receivers[r]
            stream = torch.einsum("csbpd,cs->cbpd", beyond, use[:, :, r])
            return received(weights, node, stream + source.values[node.stream])

        for layer, block in enumerate(weights.blocks):
            heads = range(cfg.n_heads)
            q, k, v = (
                torch.stack([reads(f"L{layer}H{head}.{kind}") for head in heads], -2).flatten(0, 1)
                for kind in "qkv"
            )
            scores = attention_scores(q, k, causal(n_pos, q.device), block.attn_scale)
            z = mix_values(scores.softmax(-1), v)
            for head in heads:
                s = writers[f"L{layer}H{head}"]
                W = block.W_O[head * cfg.d_head : (head + 1) * cfg.d_head]
                out = (z[:, :, head] @ W).unflatten(0, (len(kept), n_batch))
                beyond[:, s] = out - self._cut[s]
            if (mlp := block.mlp) is not None:
                s = writers[f"{layer}_mlp_out"]
                out = linear(mlp.act_fn(reads(f"{layer}_mlp_in")), mlp.W_out, mlp.b_out)
                beyond[:, s] = out - self._cut[s]
        logits = reads("logits")[:, :, scored_positions(base.ids, self.metric.pos)].flatten(0, 1)
        batch = torch.arange(n_batch, device=logits.device).repeat(len(kept))
        return self.metric(logits, batch, self._runs).unflatten(0, (len(kept), n_batch))


def circuit_curve(
    model: HookedTransformer,
    contrast: Contrast,
    metric: AnyMetric,
    scores: xr.DataArray,
    sizes: Sequence[int] | None = None,
    *,
    max_memory: int = DEFAULT_MEMORY,
) -> xr.Dataset:
    """Faithfulness and completeness of the circuits made of the highest-scoring edges.

    Args:
        model, contrast, metric: as in `interp.paths.path_patching`; what cut edges carry comes
            from the source run.
        scores: [sender, receiver] or [batch, sender, receiver] (averaged), such as
            `edge_attribution` or the `change` of `path_patching`; the largest sizes count.
        sizes: how many edges to keep; powers of two up to all edges if left out.

    Returns:
        Dataset along `edges`: `faithfulness`, how much of the way from source to base the circuit
        goes; `completeness`, how much of it the rest of the model goes without the circuit (0 for
        a complete circuit); and their areas, integrated over the share of edges kept, in attrs.

    Raises:
        InputError: scores of another model, a size out of range, or source and base runs whose
            metrics are equal, which leaves nothing to be faithful to.

    Cost: about two forward passes for each size.
    """
    runs = _runs(model, contrast, metric, max_memory)
    order = _by_size(scores, runs)
    n_edges = len(order)
    counts = [2**i for i in range(n_edges.bit_length())] if sizes is None else list(sizes)
    counts = sorted({*counts, n_edges} if sizes is None else counts)
    if not counts or counts[0] < 0 or counts[-1] > n_edges:
        raise InputError(
            f"Circuit sizes {counts} were asked for, but the model has {n_edges} edges: choose "
            f"sizes from 0 to {n_edges}."
        )
    kept = torch.stack([_keep(order[:count], runs) for count in counts])
    faithful, rest = runs.faithfulness(kept), runs.faithfulness(runs.edges & ~kept)
    share = np.array(counts) / n_edges
    result = _along(model, runs, "edges", counts, faithful, "faithfulness")
    return xr.Dataset(
        {
            "faithfulness": result.variable,
            "completeness": (("edges",), rest.cpu().numpy(), {"units": "1"}),
        },
        coords=result.coords,
        attrs=result.attrs | {"area": float(np.trapezoid(faithful.cpu().numpy(), share))},
    )


def minimality(
    model: HookedTransformer,
    contrast: Contrast,
    metric: AnyMetric,
    kept: Sequence[tuple[str, str]],
    *,
    max_memory: int = DEFAULT_MEMORY,
) -> xr.DataArray:
    """How much faithfulness each edge of a circuit carries: what is lost when it alone is cut.

    Args:
        model, contrast, metric: as in `circuit_curve`.
        kept: the circuit's edges as (sender, receiver) names.

    Returns:
        DataArray along `edge`, with coordinates sender and receiver.
    """
    runs = _runs(model, contrast, metric, max_memory)
    places = torch.tensor([_place(edge, runs) for edge in kept], device=runs.edges.device)
    whole = _keep(places.view(-1, 2), runs)
    without = whole.repeat(len(kept), 1, 1)
    without[torch.arange(len(kept)), places[:, 0], places[:, 1]] = False
    lost = runs.faithfulness(whole[None]) - runs.faithfulness(without)
    result = _along(model, runs, "edge", range(len(kept)), lost, "faithfulness lost")
    senders, receivers = zip(*kept, strict=True)
    return result.assign_coords(sender=("edge", list(senders)), receiver=("edge", list(receivers)))


def prune_edges(
    model: HookedTransformer,
    contrast: Contrast,
    metric: AnyMetric,
    *,
    threshold: float,
    max_memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> xr.DataArray:
    """A circuit by pruning, after ACDC (Conmy et al. 2023, arXiv:2304.14997): from the last
    receiver to the first, cut an edge for good when that moves the metric by less than the
    threshold.

    Args:
        model, contrast, metric: as in `circuit_curve`; ACDC's metric is
            `kl_divergence("base")`.
        threshold: the largest change, averaged over pairs, that an edge may make and be cut.

    Returns:
        Boolean DataArray [sender, receiver], true for edges that stay.

    Cost: about one forward pass for each edge, one after another.
    """
    runs = _runs(model, contrast, metric, max_memory)
    kept = runs.edges.clone()
    now = runs(kept[None])[0]
    done, in_all = 0, int(runs.edges.sum())
    for r in reversed(range(len(runs.receivers))):
        for s in reversed(range(len(runs.senders))):
            if not runs.edges[s, r]:
                continue
            kept[s, r] = False
            without = runs(kept[None])[0]
            if float((without - now).abs().mean()) < threshold:
                now = without
            else:
                kept[s, r] = True
            done += 1
            if progress is not None:
                progress(done, in_all)
    return labelled(
        model,
        kept,
        ("sender", "receiver"),
        name="edges that stay",
        units="1",
        coords={
            "sender": [node.name for node in runs.senders],
            "receiver": [node.name for node in runs.receivers],
        },
        threshold=threshold,
        metric=runs.metric.name,
        ablation="values of the source run",
    )


def _runs(
    model: HookedTransformer, contrast: Contrast, metric: AnyMetric, max_memory: int
) -> CircuitRuns:
    runs = CircuitRuns(model, contrast, metric, max_memory)
    if float((runs.of_base - runs.of_source).sum().abs()) == 0:
        raise InputError(
            f"{runs.metric.name} is the same in the source and the base run, so there is nothing "
            "to be faithful to: choose other prompts or another metric."
        )
    return runs


def _by_size(scores: xr.DataArray, runs: CircuitRuns) -> Int[Tensor, "edge two"]:
    """Sender and receiver of every edge, the largest score first."""
    names = ([node.name for node in runs.senders], [node.name for node in runs.receivers])
    if not {"sender", "receiver"} <= set(scores.dims):
        raise InputError(
            f"Edge scores came with axes {tuple(map(str, scores.dims))}, but sender and receiver "
            "are needed: use edge_attribution or the change of path_patching."
        )
    other = [dim for dim in scores.dims if dim not in ("sender", "receiver")]
    table = scores.mean(other).transpose("sender", "receiver")
    if (table.sender.to_numpy().tolist(), table.receiver.to_numpy().tolist()) != names:
        raise InputError(
            "Edge scores came for other senders or receivers than the model has: make them with "
            "this model and all of its nodes."
        )
    size = torch.from_numpy(table.to_numpy()).abs().to(runs.edges.device)
    size = size.nan_to_num(0.0).masked_fill(~runs.edges, -1)
    order = size.flatten().argsort(descending=True, stable=True)[: int(runs.edges.sum())]
    n_receivers = len(runs.receivers)
    return torch.stack([order // n_receivers, order % n_receivers], dim=-1)


def _keep(places: Int[Tensor, "edge two"], runs: CircuitRuns) -> Bool[Tensor, "sender receiver"]:
    kept = torch.zeros_like(runs.edges)
    kept[places[:, 0], places[:, 1]] = True
    return kept


def _place(edge: tuple[str, str], runs: CircuitRuns) -> tuple[int, int]:
    senders = [node.name for node in runs.senders]
    receivers = [node.name for node in runs.receivers]
    sender, receiver = edge
    if sender in senders and receiver in receivers:
        place = senders.index(sender), receivers.index(receiver)
        if runs.edges[place]:
            return place
    raise InputError(
        f"Edge {sender} -> {receiver} does not exist in this model: senders are "
        f"{', '.join(senders)}; receivers {', '.join(receivers)}, each after its senders."
    )


def _along(
    model: HookedTransformer,
    runs: CircuitRuns,
    dim: str,
    at: Sequence[int],
    values: Tensor,
    name: str,
) -> xr.DataArray:
    return labelled(
        model,
        values,
        (dim,),
        name=name,
        units="1",
        ids=runs.base.ids,
        coords={dim: list(at)},
        metric=runs.metric.name,
        ablation="values of the source run",
        scored_position=runs.metric.pos,
    )
