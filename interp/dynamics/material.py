"""What the default measures are taken on, the same at every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.attention import repeated_blocks
from interp.corpus import Corpus, windows
from interp.dynamics.edges import edge_strengths
from interp.engine import trace
from interp.errors import InputError
from interp.ngrams import NGrams

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

N_BLOCKS = 16


@dataclass(frozen=True, eq=False)
class Final:
    """The model that training ended with, as far as earlier ones are compared with it.

    Its numbers follow from its weights, so only their hash takes part in a `fingerprint`.
    """

    checkpoint: str
    log_probs: Float[Tensor, "window pos token"] = field(compare=False)
    edges: xr.DataArray = field(compare=False)


@dataclass(frozen=True, eq=False)
class Material:
    """Windows to measure on, and what to compare the model with.

    Attributes:
        held_out: ids [window, pos] that the model was not trained on.
        is_text: False when nothing is known of the model's text and `held_out` is random blocks,
            each read twice.
        train: ids [window, pos] of the training text, for fitting tuned lenses; None fits none.
        tuned_steps: of each fit.
        ngrams: of the training text; None compares with the uniform distribution only.
        final: the model at the end of training.
    """

    held_out: np.ndarray
    is_text: bool
    train: np.ndarray | None
    tuned_steps: int
    ngrams: NGrams | None
    final: Final


def training_material(
    final: HookedTransformer,
    held_out: Corpus | None = None,
    *,
    train: Corpus | None = None,
    tuned_steps: int = 60,
    ngrams: NGrams | None = None,
    n_windows: int = 128,
) -> Material:
    """The material for `training_measures`.

    Args:
        final: the model at the end of training; it is read now and not kept.
        held_out: text or ids that were not trained on. Without it, random blocks read twice: then
            losses and divergences are those on random tokens, and say little of a text model.
        train: text or ids of the training text, for tuned lenses.
        n_windows: how many windows of each are used, spread evenly.

    Raises:
        InputError: a model without a checkpoint hash, n-grams of another vocabulary, or whatever
            `interp.corpus.windows` raises.

    Cost: one forward pass over `held_out`, one edge attribution; memory of window * pos * d_vocab
    numbers.
    """
    cfg, checkpoint = final.cfg, getattr(final, "checkpoint_hash", None)
    if checkpoint is None:
        raise InputError(
            "The final model carries no checkpoint hash, so its results could not be known again: "
            "load it from a run with model.load."
        )
    if ngrams is not None and ngrams.d_vocab != cfg.d_vocab:
        raise InputError(
            f"The n-grams are of {ngrams.d_vocab} tokens and the model's vocabulary has "
            f"{cfg.d_vocab}: count them with the model's own tokenizer."
        )
    blocks = repeated_blocks(cfg.d_vocab, cfg.n_ctx // 2, N_BLOCKS, seed=0)
    rows = windows(final, blocks if held_out is None else held_out, at_most=n_windows).rows
    fitted = None if train is None else windows(final, train, at_most=n_windows).rows
    ids = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(final.unembed.W_U.device)
    return Material(
        held_out=np.ascontiguousarray(rows),
        is_text=held_out is not None,
        train=None if fitted is None else np.ascontiguousarray(fitted),
        tuned_steps=tuned_steps,
        ngrams=ngrams,
        final=Final(
            checkpoint=str(checkpoint),
            log_probs=trace(final, ids, sites=[]).logits.log_softmax(-1),
            edges=edge_strengths(final, ids),
        ),
    )
