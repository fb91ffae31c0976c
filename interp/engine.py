"""Running a model and keeping what every site holds.

`trace` is a pure function of the model's weights. It registers no hook and changes nothing on the
model, so any number of threads may trace one model at once, and an interrupt leaves no trace.
Hooks that you have put on the model yourself are not seen by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.inputs import Input, to_ids
from interp.shell import Shell
from interp.sites import SITE_KINDS, Site, sites_of
from interp.weights import Weights, lay_out, obstacles

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


@dataclass(frozen=True, eq=False)
class Trace:
    """What each site held while a model read some prompts.

    `trace[Site("z", 1)]`, or `trace["z", 1]` for short, is a tensor with the batch axis first and
    the axes of `interp.sites` behind it; a Site with indices gives that part.

    Attributes:
        model: the model that was run.
        ids: what it read.
        values: the kept sites.
        final: what the unembedding reads.
    """

    model: HookedTransformer
    ids: Int[Tensor, "batch pos"]
    values: Mapping[Site, Tensor]
    final: Float[Tensor, "batch pos d_model"]
    program: Weights | Shell

    @property
    def weights(self) -> Weights:
        """The weights it ran with, for analyses that compute with them.

        Raises:
            InputError: the model is of a kind that these do not know.
        """
        if isinstance(self.program, Weights):
            return self.program
        raise InputError(
            f"This analysis computes with the weights of plain GPT models, but the model has "
            f"{', '.join(obstacles(self.model.cfg))}: use activation_patching or ablation, which "
            "run any HookedTransformer."
        )

    def __getitem__(self, site: Site | str | tuple[str, int]) -> Tensor:
        if isinstance(site, str):
            site = Site(site)
        address = site if isinstance(site, Site) else Site(*site)
        if address.whole not in self.values:
            address.check(self.model.cfg, self.ids.shape[1])
            raise InputError(
                f"This trace did not keep {address.kind!r}: add it to the `sites` it was made with."
            )
        address.check(self.model.cfg, self.ids.shape[1])
        return part(self.values[address.whole], address)

    def prompts(self, start: int, stop: int) -> Trace:
        """The trace of some of the prompts, without a copy."""
        values = _Prompts(self.values, slice(start, stop))
        ids, final = self.ids[start:stop], self.final[start:stop]
        return Trace(self.model, ids, values, final, self.program)

    @cached_property
    def logits(self) -> Float[Tensor, "batch pos d_vocab_out"]:
        """Logits at every position, computed at first use."""
        return self.logits_at(slice(None))

    def logits_at(
        self, pos: slice | Int[Tensor, " scored"]
    ) -> Float[Tensor, "batch scored d_vocab_out"]:
        """Logits at some positions only."""
        return self.program.unembed(self.final[:, pos])

    @cached_property
    def stream(self) -> Float[Tensor, "state batch pos d_model"]:
        """The residual stream before each sublayer and at the end: 2 n_layers + 1 states
        (n_layers + 1 without MLPs), in the order of TransformerLens' `accumulated_resid`."""
        cfg = self.model.cfg
        kinds = ("resid_pre",) if cfg.attn_only else ("resid_pre", "resid_mid")
        inner = [self[kind, layer] for layer in range(cfg.n_layers) for kind in kinds]
        return torch.stack([*inner, self["resid_post", cfg.n_layers - 1]])


class _Prompts(Mapping[Site, Tensor]):
    """Some prompts' part of what sites held, cut out when it is asked for."""

    def __init__(self, values: Mapping[Site, Tensor], prompts: slice) -> None:
        self._values, self._prompts = values, prompts

    def __getitem__(self, site: Site) -> Tensor:
        return self._values[site][self._prompts]

    def __contains__(self, site: object) -> bool:
        return site in self._values

    def __iter__(self) -> Iterator[Site]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def part(value: Tensor, site: Site) -> Tensor:
    """The part of a whole site's tensor that a Site with indices addresses."""
    index: list[int | slice] = [slice(None)]
    for axis in SITE_KINDS[site.kind].axes:
        at = site.pos if axis == "query_pos" else getattr(site, axis)
        index.append(slice(None) if at is None else at)
    return value[tuple(index)]


def trace(
    model: HookedTransformer,
    input: Input,
    *,
    sites: Collection[Site] | None = None,
    grad: bool = False,
) -> Trace:
    """Run the model on the input and keep what each site holds.

    Args:
        model: any HookedTransformer. With learned positions, LayerNorm (or none) and a plain MLP
            (or none) it runs as plain matrix products; others (rotary, RMS, gated MLP, parallel
            blocks ...) through hooks on a private copy, which is several times slower.
        input: text or ids, see `interp.inputs.to_ids`.
        sites: whole sites to keep; every site when left out. Memory is what they hold: about
            batch x pos x (20 d_model + 2 d_mlp + 2 n_heads x pos) numbers a layer for all.
        grad: keep the autograd graph from the embedding on, so that
            `torch.autograd.grad(f(t.logits), [t["z", 1], ...])` works. Parameters get none.

    Returns:
        A Trace. Equal to HookedTransformer's own cache up to rounding, about 1e-14 in float64
        and 1e-5 in float32; equal up to the same rounding whichever other sites are kept.

    Raises:
        InputError: input that `to_ids` refuses, or a site that the model does not have.
    """
    ids = to_ids(model, input)
    kept = frozenset(sites_of(model.cfg))
    if sites is not None:
        for site in sites:
            if site not in kept:  # with indices, or wrong
                site.check(model.cfg, ids.shape[1])
        kept = frozenset(site.whole for site in sites)
    values: dict[Site, Tensor] = {}

    def keep(site: Site, value: Tensor) -> Tensor:
        if grad and site.kind == "embed":
            value = value.detach().requires_grad_()
        if site in kept:
            values[site] = value
        return value

    with torch.set_grad_enabled(grad):
        program = program_of(model)
        final = program.run(ids, keep, None if grad else kept)
    return Trace(model, ids, values, final, program)


def program_of(model: HookedTransformer) -> Weights | Shell:
    """What runs the model: plain matrix products, or hooks on a private copy where it must be."""
    return Shell(model) if obstacles(model.cfg) else lay_out(model)


def traced(model: HookedTransformer, input: Input | Trace, sites: Collection[Site]) -> Trace:
    """A trace of the input that keeps `sites`; a trace that came is used as it is.

    Raises:
        InputError: unreadable input; a trace of another model.
    """
    if not isinstance(input, Trace):
        return trace(model, input, sites=sites)
    if input.model is not model:
        raise InputError(
            f"A trace of model {input.model.cfg.model_name!r} came with model "
            f"{model.cfg.model_name!r}: trace the model that is asked about."
        )
    return input
