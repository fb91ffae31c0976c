"""The local learning coefficient: how flat the loss is around the weights that training found.

    lambda = n beta (E[L(w)] - L(w*)),    w sampled near w* by SGLD

(Lau et al. 2023, "Quantifying degeneracy in singular models via the learning coefficient",
arXiv:2308.12108; Hoogland et al. 2024, "The Developmental Landscape of In-Context Learning",
arXiv:2402.02364.) A regular minimum in d dimensions has d/2; each direction that the loss does
not feel takes away from that. The estimate depends on how it is sampled: keep the settings the
same when checkpoints are compared, and look at the spread over chains.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.corpus import Corpus, windows
from interp.errors import InputError
from interp.replay import Progress
from interp.result_sets import labelled_set

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

Loss = Callable[[], Tensor]


def sgld(
    parameters: Sequence[Tensor],
    loss: Loss,
    *,
    n_beta: float,
    step_size: float,
    localisation: float,
    steps: int,
    generator: torch.Generator,
    progress: Callable[[], None] | None = None,
) -> Float[Tensor, " step"]:
    """Losses along one chain of stochastic gradient Langevin dynamics, which moves `parameters`.

        w <- w - e/2 (n beta grad L(w) + g (w - w*)) + sqrt(e) N(0, 1)

    with e the step size and g the localisation (Welling & Teh 2011; Lau et al. 2023, eq. 17).

    Args:
        parameters: leaves that require a gradient; they begin at w*.
        loss: of the parameters as they are, one number, which may be of another batch each time.
    """
    start = [p.detach().clone() for p in parameters]
    losses = []
    for _ in range(steps):
        value = loss()
        losses.append(value.detach())
        slopes = torch.autograd.grad(value, list(parameters))
        with torch.no_grad():
            for p, slope, centre in zip(parameters, slopes, start, strict=True):
                pull = n_beta * slope + localisation * (p - centre)
                noise = torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device)
                p.add_(step_size**0.5 * noise - step_size / 2 * pull)
        if progress is not None:
            progress()
    return torch.stack(losses)


def local_learning_coefficient(
    model: HookedTransformer,
    corpus: Corpus,
    *,
    n_beta: float | None = None,
    step_size: float = 1e-6,
    localisation: float = 100.0,
    steps: int = 200,
    burn_in: int = 100,
    chains: int = 4,
    batch_size: int = 32,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The local learning coefficient of a model on a text, with its spread over chains.

    L is the mean loss a token; L(w*) is estimated on the batches that the chain itself reads.

    Args:
        corpus: best the training text; see `interp.corpus.windows`.
        n_beta: n / log n by default, n being the windows of the corpus.
        step_size, localisation: of `sgld`.
        steps, burn_in: of each chain, and how many of them are not counted.

    Returns:
        `llc` [chain]; `loss` [chain, draw], minus the start's loss on the same batch, nats; `mean`
        and `spread`, the standard deviation over chains (NaN for one). attrs hold the settings.

    Raises:
        InputError: fewer than 1 chain, batch or counted step, a step size that is not above 0, a
            chain whose loss is not finite, or whatever `windows` raises.

    Cost: one forward and backward pass, and one forward pass, over a batch for each step of each
    chain; memory of two models.
    """
    if chains < 1 or batch_size < 1 or not 0 <= burn_in < steps or not step_size > 0:
        raise InputError(
            f"chains={chains}, batch_size={batch_size}, steps={steps}, burn_in={burn_in}, "
            f"step_size={step_size} came, but at least 1 chain, 1 window and 1 step after burn-in, "
            "and a step size above 0, are needed."
        )
    text = windows(model, corpus)
    n_beta = len(text) / math.log(max(len(text), 3)) if n_beta is None else n_beta
    rows = []
    for chain in range(chains):
        generator = torch.Generator().manual_seed(seed * 1000 + chain)
        moving = copy.deepcopy(model)
        moving.requires_grad_(True)
        baseline: list[Tensor] = []

        def loss(
            moving: HookedTransformer = moving,
            generator: torch.Generator = generator,
            baseline: list[Tensor] = baseline,
        ) -> Tensor:
            drawn = torch.randint(len(text), (batch_size,), generator=generator)
            ids = text.at(drawn.numpy())
            with torch.no_grad():
                baseline.append(model(ids, return_type="loss"))
            return moving(ids, return_type="loss")

        def tick(chain: int = chain, baseline: list[Tensor] = baseline) -> None:
            if progress is not None:
                progress(chain * steps + len(baseline), chains * steps)

        losses = sgld(
            [p for p in moving.parameters() if p.requires_grad],
            loss,
            n_beta=n_beta,
            step_size=step_size,
            localisation=localisation,
            steps=steps,
            generator=generator,
            progress=tick,
        )
        rows.append(losses - torch.stack(baseline))
    excess = torch.stack(rows)
    if not bool(excess.isfinite().all()):
        raise InputError(
            f"A chain left the finite numbers with step_size={step_size} and n_beta={n_beta:.3g}: "
            "choose smaller ones."
        )
    llc = n_beta * excess[:, burn_in:].mean(1)
    result = labelled_set(
        model,
        {"llc": (llc, ("chain",), "1"), "loss": (excess, ("chain", "draw"), "nats")},
        n_beta=n_beta,
        step_size=step_size,
        localisation=localisation,
        steps=steps,
        burn_in=burn_in,
        batch_size=batch_size,
        seed=seed,
    )
    spread = float(llc.std()) if chains > 1 else math.nan
    return result.assign(mean=float(llc.mean()), spread=spread)
