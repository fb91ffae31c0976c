"""The default set: what is measured of a model at each step of its training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import induction_scores
from interp.circuits import copying_scores
from interp.composition import composition_scores
from interp.corpus import Corpus
from interp.dynamics.edges import edge_overlap, edge_strengths
from interp.dynamics.material import Material, training_material
from interp.dynamics.streaming import Series, last_model, through_training
from interp.engine import trace
from interp.heads import head_scores_over
from interp.ngrams import NGrams
from interp.norms import hop_names, state_names, stream_sites
from interp.replay import Progress
from interp.residual import logit_lens
from interp.result_sets import Variable, labelled_set
from interp.sphere import effective_dim, eps_regime, norm_growth, sphere_path
from interp.sphere.angles import angle
from interp.sphere.states import normalized_sites, stream_states
from interp.text_statistics import loss_by_position, ngram_comparison, repeated_block_loss
from interp.tuned_lens import fit_tuned_lens, tuned_lens

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

N_LENS = 32
"""windows that the lenses read: their states are unembedded, which costs memory"""


def training_measures(model: HookedTransformer, material: Material) -> xr.Dataset:
    """Everything that `orrery dynamics` tracks, of one model.

    Returns:
        Numbers: `loss` on the held-out windows; `kl_to_final`, KL(final model || model);
        `in_context`, the loss of late positions minus early ones (`loss_by_position`);
        `second_copy_loss` and `second_minus_first`, on random blocks read twice
        (`repeated_block_loss`); `growth_rate`, `path_length`, `directness` (`norm_growth`,
        `sphere_path`); `lens_depth`, the mean index of the state from which on the logit lens says
        what the model says in the end, and `tuned_lens_depth`, the same for a lens fitted at this
        step (NaN when the material has no training windows); `edge_overlap`, how many of the
        strongest edges are those of the final model (`interp.dynamics.edges`).
        By `order`, 0 for the uniform distribution and n for the n-gram model: `kl_model_ngram`,
        KL(model || n-gram), and `kl_ngram_model`, the other way round.
        By `layer` and `head`: `previous_token`, `duplicate_token` on the held-out windows
        (`head_scores_over`), `induction` and `induction_control` on random blocks read twice
        (`induction_scores`), `copying` (`copying_scores`).
        `k_composition` [source_layer, source_head, layer, head], less chance
        (`composition_scores`).
        By `state`: `kappa`, median of eps / sigma^2; `norm`, mean |x~|; `dimension`, the
        participation ratio, and `mean_cosine` (`effective_dim`); `cosine_to_ones`, mean |cos| of
        the stream with the vector of ones; `lens_kl`, `tuned_lens_kl`, KL(final state || lens).
        By `hop`: `hop_angle`, radians.
        `edge` [sender, receiver], nats (`interp.dynamics.edges`).

    Raises:
        InputError: a model without LayerNorm or of other sizes than the material, or windows of
            one token.

    Cost: about twelve forward passes over the held-out windows, three over 32 of them with an
    unembedding at every state, `tuned_steps` small fits, and what weights alone cost.
    """
    rows = material.held_out
    ids = torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(model.unembed.W_U.device)
    variables = (
        _predictions(model, ids, material)
        | _heads(model, rows)
        | _sphere(model, ids)
        | _lenses(model, ids[:: max(1, len(ids) // N_LENS)][:N_LENS], material)
    )
    edges = edge_strengths(model, ids)
    variables["edge"] = (edges.to_numpy(), ("sender", "receiver"), "nats")
    overlap = np.array(edge_overlap(edges, material.final.edges))
    variables["edge_overlap"] = (overlap, (), "share of edges")
    return labelled_set(
        model,
        variables,
        coords={
            "order": list(range(len(variables["kl_model_ngram"][0]))),
            "state": state_names(model.cfg),
            "hop": hop_names(model.cfg),
            **{name: list(edges[name].to_numpy()) for name in ("sender", "receiver")},
            **{name: list(range(model.cfg.n_layers)) for name in ("source_layer", "layer")},
            **{name: list(range(model.cfg.n_heads)) for name in ("source_head", "head")},
        },
        windows=len(rows),
        length=rows.shape[1],
        is_text=material.is_text,
        tuned_steps=material.tuned_steps if material.train is not None else 0,
        final=material.final.checkpoint,
    )


def track_training(
    series: Series,
    held_out: Corpus | None = None,
    *,
    train: Corpus | None = None,
    tuned_steps: int = 60,
    ngrams: NGrams | None = None,
    n_windows: int = 128,
    steps: Sequence[int] | None = None,
    cache: str | Path | Literal["beside"] | None = "beside",
    progress: Progress | None = None,
) -> xr.Dataset:
    """The default set at every step of a run: `training_measures` through training.

    Args:
        held_out, train, tuned_steps, ngrams, n_windows: see `training_material`; the final model
            is that of the last step that can be read.
        steps, cache, progress: see `through_training`.

    Returns, raises: as `through_training` and `training_material`.

    Cost: for 30 snapshots of the course model a few minutes on two cores (see
    tests/benchmarks/dynamics.py); memory of one model.
    """
    material = training_material(
        last_model(series),
        held_out,
        train=train,
        tuned_steps=tuned_steps,
        ngrams=ngrams,
        n_windows=n_windows,
    )
    return through_training(
        series, training_measures, material, steps=steps, cache=cache, progress=progress
    )


def _predictions(
    model: HookedTransformer, ids: Int[Tensor, "window pos"], material: Material
) -> dict[str, Variable]:
    """What the model says, beside the text, n-grams and the final model."""
    log_q = trace(model, ids, sites=[]).logits.log_softmax(-1)
    final = material.final.log_probs
    kl = {
        name: [value]
        for name, value in zip(
            ("kl_model_ngram", "kl_ngram_model"), _against_uniform(log_q[:, :-1]), strict=True
        )
    }
    if material.ngrams is not None:
        beside = ngram_comparison(model, material.ngrams, material.held_out)
        for name, values in kl.items():
            values.extend(beside[name].to_numpy().tolist())
    positions = loss_by_position(model, material.held_out)
    blocks = repeated_block_loss(model)
    second = blocks["loss"].isel(pos=slice(blocks.attrs["settings"]["block"], None))
    numbers = {
        "loss": positions["loss"].mean(),
        "kl_to_final": float((final.exp() * (final - log_q)).sum(-1).mean()),
        "in_context": positions["in_context"],
        "second_copy_loss": second.mean(),
        "second_minus_first": blocks["second_minus_first"],
    }
    return {
        **{name: (np.array(float(value)), (), "nats") for name, value in numbers.items()},
        **{name: (np.array(values), ("order",), "nats") for name, values in kl.items()},
    }


def _against_uniform(log_q: Float[Tensor, "window pos token"]) -> tuple[float, float]:
    """KL(model || uniform) and KL(uniform || model), means over positions."""
    log_q = log_q.double()
    log_size = math.log(log_q.shape[-1])
    to = (log_q.exp() * log_q).sum(-1).mean() + log_size
    return float(to), float(-log_q.mean() - log_size)


def _heads(model: HookedTransformer, rows: np.ndarray) -> dict[str, Variable]:
    on_text = head_scores_over(model, rows)["value"]
    blocks = induction_scores(model)
    by_head = {
        "previous_token": on_text.sel(score="previous_token"),
        "duplicate_token": on_text.sel(score="duplicate_token"),
        "induction": blocks["value"].sel(score="induction"),
        "induction_control": blocks["control"].sel(score="induction"),
    }
    composition = composition_scores(model)["excess"].sel(kind="K")
    pairs = ("source_layer", "source_head", "layer", "head")
    return {
        **{n: (each.to_numpy(), ("layer", "head"), "probability") for n, each in by_head.items()},
        "copying": (copying_scores(model)["copying"].to_numpy(), ("layer", "head"), "1"),
        "k_composition": (composition.to_numpy(), pairs, "1"),
    }


def _sphere(model: HookedTransformer, ids: Int[Tensor, "window pos"]) -> dict[str, Variable]:
    run = trace(model, ids, sites=[*stream_sites(model.cfg), *normalized_sites(model.cfg)])
    growth, path, cloud = (
        norm_growth(model, run),
        sphere_path(model, run),
        effective_dim(model, run),
    )
    kappa = eps_regime(model, run)["kappa"].sel(quantile=0.5)
    ones = [
        angle(state.x, torch.ones_like(state.x)).cos().abs().mean()
        for state in stream_states(model, run)
    ]
    each = ("batch", "pos")
    by_state: Mapping[str, tuple[np.ndarray, str]] = {
        "kappa": (kappa.to_numpy(), "1"),
        "norm": (growth["norm"].mean(each).to_numpy(), "stream"),
        "dimension": (cloud["participation_ratio"].to_numpy(), "dimensions"),
        "mean_cosine": (cloud["mean_cosine"].to_numpy(), "1"),
        "cosine_to_ones": (torch.stack(ones).cpu().numpy(), "1"),
    }
    return {
        **{name: (values, ("state",), units) for name, (values, units) in by_state.items()},
        "hop_angle": (path["hop_angle"].mean(each).to_numpy(), ("hop",), "radians"),
        "growth_rate": (growth["mean_rate"].to_numpy(), (), "1 / layer"),
        "path_length": (path["length"].mean().to_numpy(), (), "radians"),
        "directness": (path["directness"].mean().to_numpy(), (), "1"),
    }


def _lenses(
    model: HookedTransformer, ids: Int[Tensor, "window pos"], material: Material
) -> dict[str, Variable]:
    results = {"lens": logit_lens(model, ids, top=1), "tuned_lens": None}
    if material.train is not None:
        translators = fit_tuned_lens(
            model, material.train, steps=material.tuned_steps, batch_size=16
        )
        results["tuned_lens"] = tuned_lens(model, ids, translators, top=1)
    unknown = np.full(len(state_names(model.cfg)), np.nan)
    variables: dict[str, Variable] = {}
    for name, lens in results.items():
        kl = unknown if lens is None else lens["kl_to_final"].mean(("batch", "pos")).to_numpy()
        depth = np.nan if lens is None else float(lens["depth"].mean())
        variables[f"{name}_kl"] = (kl, ("state",), "nats")
        variables[f"{name}_depth"] = (np.array(depth), (), "state index")
    return variables
