"""From the last stream state to logits, as one affine map of the normalised vector y.

    logits = y A + c0,   A = P diag(gain) W_U,   c0 = bias W_U + b_U

P removes the mean (y has none, so it costs nothing and makes A's columns comparable). Whoever
asks what a direction of the stream does to a logit asks A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from interp.norms import Norm, final_norm

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


@dataclass(frozen=True, eq=False)
class Readout:
    """The final normalisation and the unembedding of one model, for some tokens or all."""

    norm: Norm
    A: Float[Tensor, "d_model token"]
    c0: Float[Tensor, " token"]

    def __call__(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows token"]:
        """The logits of stream states x, each with its own statistics."""
        return self.norm.normalised(x) @ self.A + self.c0


def readout(
    model: HookedTransformer, target: int | None = None, contrast: int | None = None
) -> Readout:
    """The map from stream to logits: of all tokens, of one, or of a difference.

    Args:
        target: a token id; None keeps every token (contrast must then be None).
        contrast: a token id whose logit is subtracted from the target's.

    Cost: one copy of W_U's chosen columns.
    """
    norm = final_norm(model)
    W_U, b_U = model.unembed.W_U.detach(), model.unembed.b_U.detach()
    if target is not None:
        columns, shift = W_U[:, target : target + 1], b_U[target : target + 1]
        if contrast is not None:
            columns = columns - W_U[:, contrast : contrast + 1]
            shift = shift - b_U[contrast : contrast + 1]
        W_U, b_U = columns, shift
    gained = norm.gain[:, None] * W_U
    A = norm.centred(gained.mT).mT
    return Readout(norm, A, norm.bias @ W_U + b_U)
