"""The slow way round, for models whose forward pass `interp.forward` cannot express.

A shell is a private copy of a HookedTransformer's modules that shares every weight with it and has
no tokenizer and no hooks but its own. Edits are made with TransformerLens' hooks on the shell,
many runs in one batch, so the numbers are TransformerLens' own and the user's model is untouched.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.forward import Tap
from interp.sites import Site, sites_of, whole_site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


class Shell:
    """Runs one model through hooks; one call at a time, whichever threads they come from."""

    def __init__(self, model: HookedTransformer) -> None:
        self.cfg = model.cfg
        self._model: HookedTransformer = _private_copy(model)
        self._model.tokenizer = None
        self._model.setup()
        self._lock = threading.Lock()

    def run(
        self, ids: Int[Tensor, "batch pos"], tap: Tap, sites: Collection[Site] | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """As `interp.forward.forward`: what the unembedding reads, with `tap` at the sites."""
        shell, final = self._model, []

        def at(site: Site):
            return site.hook_name, lambda value, hook: tap(site, value)

        wanted = sites_of(self.cfg) if sites is None else sites
        there = [site for site in wanted if site.hook_name in shell.hook_dict]
        last = whole_site("resid_post", self.cfg.n_layers - 1)
        end = getattr(shell, "ln_final", None) or shell.hook_dict[last.hook_name]
        with self._lock, shell.hooks(fwd_hooks=[at(site) for site in there]):
            handle = end.register_forward_hook(lambda module, given, out: final.append(out))
            try:
                shell(ids, return_type=None)
            finally:
                handle.remove()
        return final[0]

    def unembed(self, final: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_vocab_out"]:
        """Logits of what `run` returned."""
        logits = self._model.unembed(final)
        cap = self.cfg.output_logits_soft_cap
        return logits if cap is None or cap <= 0 else cap * torch.tanh(logits / cap)


def _private_copy(module: Any) -> Any:
    """The module with its own hooks (none) and submodules, and the same parameters."""
    twin = copy.copy(module)
    # nn.Module's copy shares these dictionaries; a hook set on one would be set on the other.
    for name, value in vars(module).items():
        if name.startswith("_") and name.endswith("hooks") and isinstance(value, dict):
            vars(twin)[name] = OrderedDict()
    for name in ("fwd_hooks", "bwd_hooks"):
        if name in vars(twin):
            vars(twin)[name] = []
    if "ctx" in vars(twin):
        vars(twin)["ctx"] = {}
    twin._parameters = module._parameters.copy()
    twin._buffers = module._buffers.copy()
    twin._modules = {
        name: None if child is None else _private_copy(child)
        for name, child in module._modules.items()
    }
    return twin
