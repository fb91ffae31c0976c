"""The proof that a GPT and its HookedTransformer are the same function, hook by hook.

The GPT's own side is read off its modules while it runs: what goes into and comes out of each.
Only what no module holds is computed here, from the definition (Vaswani et al. 2017, eq. 1, for
scores and pattern; Ba et al. 2016, eq. 3, for a LayerNorm's scale and normalized vector).

Both models run on the same weights in memory, and a weight is held in another precision only
while its module runs: a proof in float64 needs room for the largest single weight, not for two
more models.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from .errors import ModelError
from .generation import generate
from .gpt import GPT, Block, next_token_loss
from .tokenizer import encode

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer
    from transformers import PreTrainedTokenizerFast

TOLERANCE: Mapping[torch.dtype, float] = {torch.float32: 2e-5, torch.float64: 1e-10}
"""The largest |difference| allowed at a site, times the largest |value| there when that is above
1: rounding grows with the numbers that are rounded."""

LOGITS, LOSS = "logits", "loss"

_MOST_PRODUCTS = 2**31
"""multiplications of one forward pass over all windows of a proof: seconds on two cores"""


@dataclasses.dataclass(frozen=True)
class Proof:
    """The largest differences found, and what was assumed.

    Attributes:
        differences: one row a site, in forward order; columns `float32` and `float64` hold the
            largest |difference| over all inputs, `float32_allowed` and `float64_allowed` what was
            allowed.
        assumptions: the settings that weights alone do not tell.
        compared: what ids were fed, by source, as text for people.
    """

    differences: pd.DataFrame
    assumptions: Mapping[str, str]
    compared: Mapping[str, str]

    @property
    def failures(self) -> list[str]:
        """The sites that are off, the first one first."""
        return failures(self.differences)

    @property
    def holds(self) -> bool:
        return not self.failures

    def by_kind(self) -> pd.DataFrame:
        """The largest differences over the layers of each kind of site."""
        return by_kind(self.differences)


def prove(
    gpt: GPT,
    ids: Mapping[str, Int[Tensor, "batch pos"]],
    *,
    hooked: HookedTransformer | None = None,
) -> Proof:
    """Compare a GPT with its HookedTransformer at every site, in float32 and in float64.

    Args:
        ids: what to feed, by the name of its source; see `proof_ids`.
        hooked: the HookedTransformer to prove; the GPT's own conversion when not given.

    Cost: two forward passes of each model for each entry of `ids`, every site kept; no second
    copy of the weights.
    """
    from .hooked import to_hooked

    theirs = to_hooked(gpt, share_weights=True) if hooked is None else hooked

    def both(batch: Tensor, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        expected, found = gpt_sites(gpt, batch, dtype), hooked_sites(theirs, batch, dtype)
        if expected.keys() != found.keys():
            odd = sorted(expected.keys() ^ found.keys())
            raise ModelError(
                f"the two models do not have the same sites: {', '.join(odd)} is in one only."
            )
        return expected, found

    return Proof(compare(both, ids), assumptions(gpt), _describe(ids))


def by_kind(differences: pd.DataFrame) -> pd.DataFrame:
    """The largest differences over the layers of each kind of site."""
    kinds = differences.index.str.replace(r"^blocks\.\d+\.", "blocks.*.", regex=True)
    return pd.DataFrame(differences.groupby(kinds, sort=False).max())


def failures(differences: pd.DataFrame) -> list[str]:
    """The sites of a Proof's `differences` that are off, the first one first."""
    off = pd.Series(False, index=differences.index)
    for dtype in TOLERANCE:
        name = _name(dtype)
        off |= ~(differences[name] <= differences[f"{name}_allowed"])
    return list(differences.index[off])


def compare(
    sites: Callable[[Tensor, torch.dtype], tuple[dict[str, Tensor], dict[str, Tensor]]],
    ids: Mapping[str, Int[Tensor, "batch pos"]],
) -> pd.DataFrame:
    """The `differences` of a Proof between what two models hold at the sites of the first.

    Args:
        sites: what each of the two holds, given ids and a precision.
    """
    columns: dict[str, dict[str, float]] = {}
    for dtype, tolerance in TOLERANCE.items():
        worst: dict[str, float] = {}
        allowed: dict[str, float] = {}
        for batch in ids.values():
            expected, found = sites(batch, dtype)
            for site, value in expected.items():
                difference = max_difference(value, found[site])
                worst[site] = max(worst.get(site, 0.0), difference)
                scale = max(1.0, value[value.isfinite()].abs().max().item())
                allowed[site] = max(allowed.get(site, 0.0), tolerance * scale)
            del expected, found  # before the next ones are made
        columns |= {_name(dtype): worst, f"{_name(dtype)}_allowed": allowed}
    return pd.DataFrame(columns).rename_axis("site")


def proof_ids(
    gpt: GPT,
    tokenizer: PreTrainedTokenizerFast | None = None,
    text: str | None = None,
    *,
    n_windows: int = 3,
    seed: int = 0,
) -> dict[str, Int[Tensor, "batch pos"]]:
    """Ids to prove on: text, or what the model itself writes, and random ids, in whole contexts.

    Of a large model fewer and shorter windows are taken, down to one of 16 tokens.

    Raises:
        ModelError: when the text is empty, holds a character outside the vocabulary, or is given
            without a tokenizer.
    """
    n_ctx, d_vocab = gpt.config.n_ctx, gpt.config.d_vocab
    most_tokens = max(16, _MOST_PRODUCTS // sum(p.numel() for p in gpt.parameters()))
    n_windows = max(1, min(n_windows, most_tokens // n_ctx))
    n_ctx = min(n_ctx, most_tokens)
    generator = torch.Generator().manual_seed(seed)
    random_ids = torch.randint(d_vocab, (n_windows, n_ctx), generator=generator)
    if text is None:
        start = random_ids[:, :1].to(gpt.device)
        # token by token is the slow way through a model
        n_new = min(n_ctx, max(8, most_tokens // 4)) - 1
        return {
            "text sampled from the model": generate(gpt, start, n_new, seed=seed).clone(),
            "random ids": random_ids.to(gpt.device),
        }
    if tokenizer is None:
        raise ModelError("the run has no tokenizer to read a text with: leave the text out.")
    if not text:
        raise ModelError("the text is empty: give one that holds at least one token.")
    text_ids = encode(tokenizer, text)
    starts = torch.linspace(0, max(len(text_ids) - n_ctx, 0), n_windows).long().unique()
    windows = torch.stack([text_ids[start : start + n_ctx] for start in starts])
    return {"the text given": windows.to(gpt.device), "random ids": random_ids.to(gpt.device)}


def assumptions(gpt: GPT) -> dict[str, str]:
    config = gpt.config
    biases = {
        "query, key, value": config.qkv_bias,
        "attention output, MLP, LayerNorm": config.bias,
        "unembedding": config.unembed_bias,
    }
    return {
        "activation": "none (attention-only)" if config.attn_only else config.act_fn,
        "LayerNorm epsilon": f"{config.eps:g}",
        "attention scale": f"scores divided by {config.attn_scale:g}",
        "embedding and unembedding": "tied" if config.tied_embeddings else "untied",
        "biases": "; ".join(
            f"{part}: {'yes' if there else 'no, zeros in their place'}"
            for part, there in biases.items()
        ),
        "dropout": f"{config.dropout:g} while training, off here",
        "beginning-of-sequence token": "none",
    }


@torch.no_grad()
def gpt_sites(
    gpt: GPT, ids: Int[Tensor, "batch pos"], dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """What the GPT computes at every site, by TransformerLens' hook names, plus logits and loss.

    The modules of a shell that shares the weights are watched, so `gpt` itself gets no hook.

    Args:
        dtype: the precision to compute in; the weights' own when not given.
    """
    shell = _shell(gpt, dtype)
    inputs: dict[nn.Module, Tensor] = {}
    outputs: dict[nn.Module, Tensor] = {}

    def watch(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        inputs[module], outputs[module] = args[0], output

    for module in shell.modules():
        if not list(module.children()):
            module.register_forward_hook(watch)
    logits = shell(ids)

    sites = {
        "hook_embed": outputs[shell.embed],
        "hook_pos_embed": outputs[shell.pos_embed].expand(len(ids), -1, -1),
    }
    readers = [block.ln1 for block in shell.layers[1:]] + [shell.ln_final]
    for layer, (block, reader) in enumerate(zip(shell.layers, readers, strict=True)):
        local = _attention_sites(block, inputs, outputs) | _mlp_sites(block, inputs, outputs)
        local["hook_resid_post"] = inputs[reader]
        sites |= {f"blocks.{layer}.{name}": value for name, value in local.items()}
    sites |= _layer_norm_sites("ln_final", shell.ln_final, inputs[shell.ln_final])
    sites |= {
        "unembed.hook_in": inputs[shell.unembed],
        "unembed.hook_out": outputs[shell.unembed],
        LOGITS: logits,
    }
    if ids.shape[1] > 1:
        sites[LOSS] = next_token_loss(logits[:, :-1], ids[:, 1:])
    return sites


def _attention_sites(
    block: Block, inputs: Mapping[nn.Module, Tensor], outputs: Mapping[nn.Module, Tensor]
) -> dict[str, Tensor]:
    attn, config = block.attn, block.attn.config
    z = inputs[attn.out_proj].unflatten(-1, (config.n_heads, config.d_head))
    q, k, v = (x.view_as(z) for x in outputs[attn.qkv_proj].chunk(3, dim=-1))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / attn.scale
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=z.device).triu(1)
    scores = scores.masked_fill(future, -torch.inf)
    return {
        "hook_resid_pre": inputs[block.ln1],
        **_layer_norm_sites("ln1", block.ln1, inputs[block.ln1]),
        "attn.hook_q": q,
        "attn.hook_k": k,
        "attn.hook_v": v,
        "attn.hook_attn_scores": scores,
        "attn.hook_pattern": scores.softmax(dim=-1),
        "attn.hook_z": z,
        "hook_attn_out": outputs[attn.out_dropout],
    }


def _mlp_sites(
    block: Block, inputs: Mapping[nn.Module, Tensor], outputs: Mapping[nn.Module, Tensor]
) -> dict[str, Tensor]:
    if block.mlp is None or block.ln2 is None:
        return {}
    return {
        "hook_resid_mid": inputs[block.ln2],
        **_layer_norm_sites("ln2", block.ln2, inputs[block.ln2]),
        "mlp.hook_pre": outputs[block.mlp.in_proj],
        "mlp.hook_post": inputs[block.mlp.out_proj],
        "hook_mlp_out": outputs[block.mlp.out_dropout],
    }


def _layer_norm_sites(
    name: str, ln: nn.LayerNorm, x: Float[Tensor, "batch pos d_model"]
) -> dict[str, Tensor]:
    scale = (x.var(dim=-1, unbiased=False, keepdim=True) + ln.eps).sqrt()
    normalized = (x - x.mean(dim=-1, keepdim=True)) / scale
    return {f"{name}.hook_scale": scale, f"{name}.hook_normalized": normalized}


@torch.no_grad()
def hooked_sites(
    model: HookedTransformer, ids: Int[Tensor, "batch pos"], dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """What TransformerLens' own cache holds at every hook that fires, plus logits and loss.

    Args:
        dtype: the precision to compute in; the weights' own when not given.
    """
    shell = _shell(model, dtype)
    if dtype is not None:
        shell.cfg.dtype = dtype  # LayerNorm rounds to it
    (logits, loss), cache = shell.run_with_cache(ids, return_type="both", return_cache_object=False)
    sites = {**cache, LOGITS: logits}
    if ids.shape[1] > 1:
        sites[LOSS] = loss
    return sites


def max_difference(a: Tensor, b: Tensor) -> float:
    """The largest |a - b|; equal infinities differ by 0, and a shape or a NaN by infinity."""
    if a.shape != b.shape:
        return float("inf")
    difference = torch.where(a == b, 0.0, (a - b).abs())
    return difference.nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()


Model = TypeVar("Model", bound=nn.Module)


def _shell(model: Model, dtype: torch.dtype | None) -> Model:
    """A model of its own, without the caller's hooks, on the very same weights.

    Each weight is cast to `dtype` while its module runs, and put back after.
    """
    memo: dict[int, Any] = {id(p): nn.Parameter(p.data, False) for p in model.parameters()}
    memo |= {id(b): b for b in model.buffers()}
    memo |= {id(t): t for t in [getattr(model, "tokenizer", None)]}
    shell = copy.deepcopy(model, memo).eval()
    kept: dict[nn.Parameter, Tensor] = {}

    def cast(module: nn.Module, _: Any) -> None:
        for parameter in module.parameters(recurse=False):
            kept[parameter] = parameter.data
            parameter.data = parameter.data.to(dtype)

    def put_back(module: nn.Module, _: Any, __: Any) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.data = kept.pop(parameter)

    for module in shell.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        if dtype is not None and module._parameters:
            module.register_forward_pre_hook(cast)
            module.register_forward_hook(put_back)
    return shell


def _describe(ids: Mapping[str, Tensor]) -> dict[str, str]:
    return {source: " x ".join(map(str, batch.shape)) for source, batch in ids.items()}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
