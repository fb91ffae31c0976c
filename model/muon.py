"""Muon: momentum whose step is an orthogonal matrix.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks". The step is scaled
to the root mean square of AdamW's (Liu et al. 2025, arXiv:2502.16982, eq. 4), so that one learning
rate serves both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Jordan et al.'s quintic: steepest at 0, and every singular value in (0, 1] lands near 1."""

ADAMW_RMS = 0.2
"""The usual root mean square of an AdamW step, in learning rates (Liu et al. 2025)."""


class Muon(torch.optim.Optimizer):
    """Momentum with each matrix's step replaced by the orthogonal matrix nearest to it.

    Matrices of one shape are orthogonalised in one batch. Cost of a step: 30 rows^2 cols + 10
    rows^3 FLOP a matrix (rows the shorter side), whatever the batch.

    Args:
        params: 2-D parameters, or groups of them. A group's `n_stacked` says how many matrices
            each of its parameters stacks along its rows; a fused query-key-value projection
            stacks 3.
        momentum: Nesterov momentum.
        weight_decay: decoupled, as in AdamW.
        dtype: what to orthogonalise in, the parameters' own if None. bfloat16 will do (Jordan et
            al.), where the hardware has products for it.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "n_stacked": 1}
        super().__init__(params, defaults)
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  (torch overloads it)
        loss = closure() if closure is not None else None
        by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor, dict[str, Any]]]]
        by_shape = defaultdict(list)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in parameters]
            averages = [self._average(p) for p in parameters]
            torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
            directions = torch._foreach_lerp(gradients, averages, group["momentum"])
            for parameter, direction in zip(parameters, directions, strict=True):
                stack = direction.unflatten(0, (group["n_stacked"], -1))
                by_shape[tuple(stack.shape[1:])].append((parameter, stack, group))
        for (rows, cols), members in by_shape.items():
            together = torch.cat([stack for _, stack, _ in members])
            orthogonal = orthogonalise(together, self.dtype).to(together.dtype)
            scale = ADAMW_RMS * math.sqrt(max(rows, cols))
            sizes = [len(stack) for _, stack, _ in members]
            for (parameter, _, group), step in zip(members, orthogonal.split(sizes), strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(step.reshape(parameter.shape), alpha=-group["lr"] * scale)
        return loss

    def _average(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        return state["momentum"]


def orthogonalise(
    matrices: Float[Tensor, "matrix rows cols"],
    dtype: torch.dtype | None = None,
    n_iterations: int = 5,
) -> Float[Tensor, "matrix rows cols"]:
    """U V^T of each matrix's singular value decomposition U S V^T, approximately.

    Newton-Schulz iteration: singular values end between 0.7 and 1.2 instead of at 1, which trains
    as well and needs matrix products only. Those below 1e-3 of the largest stay smaller.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-12)).to(dtype or x.dtype)
    for _ in range(n_iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
