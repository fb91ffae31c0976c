"""A long text as windows of tokens, streamed in batches over one process or several.

Under `accelerate launch` (or torchrun) each process takes every n-th batch, and what the processes
found is put together at the end, so every process returns what one process alone would have: the
same numbers up to the order of summation. On several GPUs, put the model on its process's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from interp.errors import InputError
from interp.inputs import Input, text_ids, to_ids
from interp.replay import Progress

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

# A text, one long row of ids (which may be memory-mapped), or windows that are cut already.
Corpus: TypeAlias = Input | np.ndarray

Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class Windows:
    """Consecutive pieces of a corpus, of equal length and without overlap.

    Attributes:
        rows: token ids; a view of the corpus where it came as one long row.
        device: where batches go.
    """

    rows: Integer[np.ndarray, "window pos"]
    device: torch.device

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def length(self) -> int:
        """Tokens in a window."""
        return self.rows.shape[1]

    def at(self, index: slice | Sequence[int] | np.ndarray) -> Int[Tensor, "batch pos"]:
        """Some of the windows as a batch."""
        return torch.from_numpy(np.asarray(self.rows[index], dtype=np.int64)).to(self.device)

    def batches(
        self, batch_size: int, progress: Progress | None = None
    ) -> Iterator[tuple[int, Int[Tensor, "batch pos"]]]:
        """This process's batches, each with the index of its first window.

        Args:
            batch_size: windows in a batch; the last may be shorter.
            progress: called after each batch with the windows done (by all processes, if they
                keep step) and the windows in all.

        Raises:
            InputError: a batch size below 1.
        """
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size} came, but a batch holds at least 1 window.")
        index, count = process()
        for first in range(index * batch_size, len(self), count * batch_size):
            yield first, self.at(slice(first, first + batch_size))
            if progress is not None:
                done = (first // batch_size - index + count) * batch_size
                progress(min(done, len(self)), len(self))


def windows(
    model: HookedTransformer,
    corpus: Corpus,
    *,
    length: int | None = None,
    at_most: int | None = None,
) -> Windows:
    """A corpus cut into windows. What is left over at its end is not used.

    Args:
        corpus: a text or one long row of ids, to be cut; or ids as [window, pos], or a list of
            equally long texts, taken as they are.
        length: tokens in a window; the model's n_ctx by default.
        at_most: use this many windows only, spread evenly over the corpus.

    Raises:
        InputError: a corpus shorter than one window, a length that the model cannot read, an
            unknown character, an id outside the vocabulary, or `at_most` below 1.
    """
    n_ctx, d_vocab = model.cfg.n_ctx, model.cfg.d_vocab
    rows = _rows(model, corpus)
    if rows.ndim == 1:
        length = n_ctx if length is None else length
        if not 1 <= length <= n_ctx:
            raise InputError(
                f"Windows of {length} tokens were asked for, but the model reads 1 to {n_ctx}: "
                "choose a length in that range."
            )
        if len(rows) < length:
            raise InputError(
                f"The corpus has {len(rows)} tokens, but one window takes {length}: give a longer "
                "text or a smaller length."
            )
        rows = rows[: len(rows) // length * length].reshape(-1, length)
    elif length not in (None, rows.shape[1]):
        raise InputError(
            f"The corpus came cut into windows of {rows.shape[1]} tokens and length={length}: "
            "leave the length out."
        )
    if at_most is not None:
        if at_most < 1:
            raise InputError(f"at_most={at_most} came, but at least 1 window is needed.")
        if at_most < len(rows):
            rows = rows[np.linspace(0, len(rows) - 1, at_most).round().astype(int)]
    if rows.min() < 0 or rows.max() >= d_vocab:
        raise InputError(
            f"The corpus holds ids from {rows.min()} to {rows.max()}, but the vocabulary goes from "
            f"0 to {d_vocab - 1}: was it written for another tokenizer?"
        )
    return Windows(rows, model.unembed.W_U.device)


def _rows(model: HookedTransformer, corpus: Corpus) -> np.ndarray:
    """Token ids, [token] of a text to be cut or [window, pos]."""
    if isinstance(corpus, str):
        return text_ids(model, corpus).numpy()
    if isinstance(corpus, Tensor):
        corpus = corpus.cpu().numpy()
    if isinstance(corpus, np.ndarray):
        if not np.issubdtype(corpus.dtype, np.integer) or corpus.ndim not in (1, 2):
            raise InputError(
                f"The corpus came as {corpus.dtype} with {corpus.ndim} axes, but whole-number ids "
                "as [token] or [window, pos] are allowed."
            )
        if not corpus.size:
            raise InputError("The corpus is empty, but at least one window is needed.")
        return corpus
    if len(corpus) and isinstance(corpus[0], int | np.integer):
        return np.asarray(corpus)
    return to_ids(model, corpus).cpu().numpy()


def process() -> tuple[int, int]:
    """Which process this is, and how many work on the same corpus."""
    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return 0, 1
        from accelerate import PartialState

        PartialState()  # joins the group that the launcher's variables describe
    return group.get_rank(), group.get_world_size()


def from_all(part: Part) -> list[Part]:
    """What each process has found, in the order of the processes; [part] when there is one."""
    _, count = process()
    if count == 1:
        return [part]
    parts: list[Any] = [None] * count
    torch.distributed.all_gather_object(parts, part)
    return parts
