"""The question that every attribution to logits answers: of which token, on what, where.

A named token, or the difference of two, gives results without a token axis; None means all tokens
and gives them one, `token`, behind the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.engine import Trace, traced
from interp.errors import InputError
from interp.inputs import Input, to_id
from interp.readout import Readout, readout
from interp.result_sets import labelled_set
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


@dataclass(frozen=True, eq=False)
class LogitQuestion:
    """A traced input, what is asked of its logits, and how the answers are labelled.

    Attributes:
        run: a trace that kept the last stream state and what else was asked for.
        read: the readout of the token, of the difference, or of all tokens.
        chosen: the positions that are read.
        target, contrast: as the question named them; `ids` are theirs, in that order.
    """

    run: Trace
    read: Readout
    chosen: list[int]
    target: str | int | None
    contrast: str | int | None
    ids: list[int]

    @cached_property
    def x(self) -> Float[Tensor, "batch pos d_model"]:
        """The last stream state at the chosen positions."""
        last = Site("resid_post", self.run.model.cfg.n_layers - 1)
        return self.at(self.run[last])

    @cached_property
    def scale(self) -> Float[Tensor, "batch pos 1"]:
        """The final normalisation's s there."""
        return self.read.norm.scale(self.x)

    @property
    def axes(self) -> tuple[str, ...]:
        """The last axes of an answer that has them."""
        return ("batch", "pos", "token") if self.target is None else ("batch", "pos")

    def at(self, value: Tensor) -> Tensor:
        """The chosen positions of a site [batch, pos, ...]; no copy when all are."""
        return value if len(self.chosen) == value.shape[1] else value[:, self.chosen]

    def asked(self, logits: Float[Tensor, "*rows d_vocab"]) -> Float[Tensor, "*rows token"]:
        """What is asked of whole rows of logits: all of them, one, or a difference."""
        if not self.ids:
            return logits
        first = logits[..., self.ids[:1]]
        return first if len(self.ids) == 1 else first - logits[..., self.ids[1:]]

    def said(self, value: Tensor) -> Tensor:
        """A value [..., token] as an answer: without its last axis when one token is meant."""
        return value if self.target is None else value[..., 0]

    def answer(
        self,
        variables: Mapping[str, tuple[Tensor, Sequence[str], str]],
        coords: Mapping[str, Any] | None = None,
        pos: str = "pos",
    ) -> xr.Dataset:
        """`labelled_set` with the prompt, the positions and the question."""
        return labelled_set(
            self.run.model,
            variables,
            ids=self.run.ids,
            coords={**(coords or {}), pos: np.array(self.chosen)},
            target=self.target,
            contrast=self.contrast,
        )


def ask(
    model: HookedTransformer,
    input: Input | Trace,
    target: str | int | None,
    contrast: str | int | None,
    pos: int | None,
    sites: Sequence[Site],
) -> LogitQuestion:
    """Trace the input with `sites` and the last stream state, and note what is asked.

    Raises:
        InputError: unreadable input, an unknown token, a contrast without a target, a position
            outside the prompt.
    """
    if target is None and contrast is not None:
        raise InputError(
            "A contrast came without a target, but only a target's logit can be compared with "
            "another: give the target too."
        )
    ids = [to_id(model, token) for token in (target, contrast) if token is not None]
    last = Site("resid_post", model.cfg.n_layers - 1)
    run = traced(model, input, [*sites, last])
    chosen = positions(pos, run.ids.shape[1])
    return LogitQuestion(run, readout(model, *ids), chosen, target, contrast, ids)


def positions(pos: int | None, n_pos: int) -> list[int]:
    """The positions meant by `pos`: all for None, one otherwise, negative from the end.

    Raises:
        InputError: a position outside the prompt.
    """
    if pos is None:
        return list(range(n_pos))
    if not -n_pos <= pos < n_pos:
        raise InputError(
            f"Position {pos} came, but the prompt has {n_pos} tokens: choose 0 to {n_pos - 1}, or "
            "a negative position from the end."
        )
    return [pos % n_pos]
