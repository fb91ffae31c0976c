"""The tuned lens: a lens that has learned each depth's own dialect.

The logit lens reads a middle state with weights made for the last one. The tuned lens first
moves it by an affine map of its own, x -> x + x W + b, fitted so that what is read comes close to
what the model says in the end (Belrose et al. 2023, arXiv:2303.08112). The last state needs none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from interp.corpus import Corpus, Windows, windows
from interp.engine import trace
from interp.errors import InputError
from interp.inputs import Input
from interp.norms import state_names, stream_sites
from interp.readout import Readout, readout
from interp.replay import Progress
from interp.residual import read_states

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


@dataclass(frozen=True, eq=False)
class Translators:
    """The affine map of each state but the last: x -> x + x W + b. Zeros are the logit lens."""

    W: Float[Tensor, "state d_model d_model_out"]
    b: Float[Tensor, "state d_model"]

    def __call__(
        self, stream: Float[Tensor, "states batch pos d_model"]
    ) -> Float[Tensor, "states batch pos d_model"]:
        """All states of a model translated, the last one left as it is."""
        inner = stream[:-1]
        moved = torch.einsum("sbtd,sde->sbte", inner, self.W) + self.b[:, None, None]
        return torch.cat([inner + moved, stream[-1:]])

    def save(self, path: str | Path) -> None:
        """Write as one safetensors file, best `tuned_lens.safetensors` beside the run's weights."""
        from safetensors.torch import save_file

        save_file({"W": self.W.contiguous(), "b": self.b.contiguous()}, path)

    @classmethod
    def load(cls, path: str | Path) -> Translators:
        """Read what `save` wrote.

        Raises:
            InputError: a file that is missing or holds something else.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(path)
            return cls(tensors["W"], tensors["b"])
        except (OSError, SafetensorError, KeyError) as error:
            raise InputError(
                f"{str(path)!r} came as a tuned lens, but it cannot be read as one ({error}): "
                "give a file that Translators.save wrote."
            ) from error


def identity_translators(model: HookedTransformer) -> Translators:
    """The start of fitting: translators that change nothing."""
    n_states, d = len(state_names(model.cfg)) - 1, model.cfg.d_model
    like = model.unembed.W_U.detach()
    return Translators(like.new_zeros(n_states, d, d), like.new_zeros(n_states, d))


def fit_tuned_lens(
    model: HookedTransformer,
    corpus: Corpus,
    *,
    steps: int = 500,
    batch_size: int = 32,
    lr: float = 1e-3,
    length: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Translators:
    """Fit a translator for each state: least KL(final || lens), over random windows of a corpus.

    Adam with a rate that falls linearly to 0; all states at once from one forward pass a step.

    Args:
        corpus: best the training text; see `interp.corpus.windows`.
        steps: of `batch_size` windows each.
        lr: the rate at the start.
        length: tokens in a window; n_ctx by default.
        progress: called with the steps done and the steps in all; see `progress_bar`.

    Raises:
        InputError: steps or batch size below 1, a rate that is not above 0, or whatever
            `windows` raises.

    Cost: about 3 unembeddings of every state a step; memory of states * batch * pos * d_vocab
    numbers. In one process only.
    """
    if steps < 1 or batch_size < 1 or not lr > 0:
        raise InputError(
            f"steps={steps}, batch_size={batch_size}, lr={lr} came, but at least 1 step of 1 "
            "window and a rate above 0 are needed."
        )
    text, read = windows(model, corpus, length=length), readout(model)
    start = identity_translators(model)
    W, b = (x.clone().requires_grad_() for x in (start.W, start.b))
    adam = torch.optim.Adam([W, b], lr=lr)
    falling = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 1 - step / steps)
    for step, stream in enumerate(_streams(model, text, steps, batch_size, seed), start=1):
        loss = _divergence(read, Translators(W, b)(stream)).sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
        falling.step()
        if progress is not None:
            progress(step, steps)
    return Translators(W.detach(), b.detach())


def _streams(
    model: HookedTransformer, text: Windows, steps: int, batch_size: int, seed: int
) -> Iterator[Float[Tensor, "state batch pos d_model"]]:
    generator, sites = torch.Generator().manual_seed(seed), stream_sites(model.cfg)
    for _ in range(steps):
        drawn = torch.randint(len(text), (batch_size,), generator=generator)
        yield trace(model, text.at(drawn.numpy()), sites=sites).stream


def _divergence(
    read: Readout, states: Float[Tensor, "state batch pos d_model"]
) -> Float[Tensor, " inner"]:
    """KL(final || lens) of each state but the last, mean over tokens."""
    final = read(states[-1]).log_softmax(-1).detach()
    log_probs = read(states[:-1]).log_softmax(-1)
    return (final.exp() * (final - log_probs)).sum(-1).mean((1, 2))


def tuned_lens(
    model: HookedTransformer,
    input: Input,
    translators: Translators,
    *,
    target: str | int | None = None,
    top: int = 5,
    logits: bool = False,
) -> xr.Dataset:
    """`logit_lens` through fitted translators: what each depth knows, in its own words.

    Args:
        translators: from `fit_tuned_lens`, of this model or an earlier step of it.
        target, top, logits: as in `logit_lens`.

    Returns:
        What `logit_lens` returns, with attrs["settings"]["lens"] = "tuned".

    Raises:
        InputError: as `logit_lens`, or translators of a model of another shape.

    Cost: that of `logit_lens` and one [d_model, d_model] product a state.
    """
    wanted = identity_translators(model).W.shape
    if translators.W.shape != wanted:
        raise InputError(
            f"Translators of shape {tuple(translators.W.shape)} came, but this model needs "
            f"{tuple(wanted)}: fit them on this model."
        )
    return read_states(
        model, input, translators, target=target, top=top, logits=logits, lens="tuned"
    )
