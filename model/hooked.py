"""GPT -> HookedTransformer. The only file of `model` that imports transformer_lens at its head."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig

from .checkpoint import Run, is_ours, read_weights, tensors_sha256
from .config import GPTConfig
from .conversion import convert
from .errors import ModelError
from .gpt import GPT, Block

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def load(
    path: str | Path,
    step: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> HookedTransformer:
    """The HookedTransformer of a run at a step, of one weights file, or of what others wrote.

    `cfg.model_name` is the run's name, `cfg.checkpoint_value` the step, and
    `model.checkpoint_hash` the hash of its weights. What `orrery train` did not write is converted
    in memory; nothing is proven then, see `certify`.

    Args:
        settings: what a checkpoint of other code does not say; see `convert`.

    Raises:
        ModelError: when there is no run, step or readable weights file, or it cannot be converted.
    """
    path = Path(path)
    if path.exists() and not is_ours(path):
        conversion = convert(path, **settings)
        if step is not None:
            raise ModelError(f"{path} has no steps to choose from: leave the step out.")
        found = conversion.gpt.to(dtype), conversion.tokenizer
        return dated(to_hooked(*found, name=path.resolve().stem), conversion.source.step)
    if settings:
        raise ModelError(f"{path} says its settings itself: leave {', '.join(settings)} out.")
    if path.is_file():
        weights, tokenizer, name = read_weights(path), None, path.stem
    else:
        run = Run.open(path)
        weights, tokenizer, name = run.weights(step), run.tokenizer(), run.name
    model = dated(to_hooked(weights.to_gpt(dtype), tokenizer, name=name), weights.step)
    hashed(model, weights.sha256)
    return model


def hashed(model: HookedTransformer, sha256: str) -> None:
    """Note on a model which weights it holds, as `model.checkpoint_hash`."""
    model.checkpoint_hash = sha256  # type: ignore[assignment]  (no tensor, no module)


def dated(model: HookedTransformer, step: int) -> HookedTransformer:
    """The model, told at which step its weights were."""
    model.cfg.checkpoint_label_type = "step"
    model.cfg.checkpoint_value = step
    return model


def to_hooked(
    gpt: GPT,
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    name: str = "custom",
    share_weights: bool = False,
) -> HookedTransformer:
    """A GPT as a HookedTransformer: the same function, in the same precision, on its device.

    The weights are copied, and nothing is folded or centred, so every hook holds what the GPT
    computes there. Its parameters ask for no gradient. The tokenizer is copied too, because
    TransformerLens changes the one it is given.

    Args:
        share_weights: make views of the GPT's own memory instead of copies; for reading only.

    Cost: one copy of the weights, none when they are shared.
    """
    weight = gpt.embed.weight
    model = _empty(hooked_config(gpt.config, weight.dtype, weight.device, name), tokenizer)
    put_weights(model, gpt, share_weights=share_weights)
    if not share_weights:
        hashed(model, tensors_sha256(gpt.state_dict()))
    return model


def put_weights(model: HookedTransformer, gpt: GPT, *, share_weights: bool = False) -> None:
    """Give a HookedTransformer of the GPT's configuration the GPT's weights.

    Its parameters become new ones: what was read from the old ones stays as it was.
    """
    state = hooked_state_dict(gpt)
    if not share_weights:
        # a clone in memory order of its own: two parameters must never be one storage
        state = {k: v.clone(memory_format=torch.contiguous_format) for k, v in state.items()}
    # the causal mask and its fill value are buffers that TransformerLens makes itself
    state |= {k: v for k, v in model.state_dict().items() if k.endswith((".mask", ".IGNORE"))}
    model.load_state_dict(state, strict=True, assign=True)
    model.eval().requires_grad_(False)


def _empty(
    config: HookedTransformerConfig, tokenizer: PreTrainedTokenizerFast | None
) -> HookedTransformer:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="HookedTransformer is deprecated")
        model = HookedTransformer(config, tokenizer=copy.deepcopy(tokenizer), move_to_device=True)
    if model.tokenizer is not None:
        # TransformerLens names end and begin tokens that this vocabulary does not have
        model.tokenizer.eos_token = model.tokenizer.bos_token = model.tokenizer.pad_token
    return model


def hooked_config(
    config: GPTConfig, dtype: torch.dtype, device: torch.device, name: str = "custom"
) -> HookedTransformerConfig:
    """Every setting that the function depends on, none left to TransformerLens' defaults."""
    return HookedTransformerConfig(
        model_name=name,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        d_model=config.d_model,
        d_head=config.d_head,
        d_mlp=config.d_mlp or None,
        d_vocab=config.d_vocab,
        d_vocab_out=config.d_vocab,
        n_ctx=config.n_ctx,
        act_fn=config.act_fn,
        attn_only=config.attn_only,
        eps=config.eps,
        use_attn_scale=True,
        attn_scale=config.attn_scale,  # type: ignore[arg-type]  (settled by GPTConfig: never None)
        scale_attn_by_inverse_layer_idx=config.scale_attn_by_inverse_layer_idx,
        normalization_type="LN",
        positional_embedding_type="standard",
        attention_dir="causal",
        default_prepend_bos=False,
        init_weights=False,
        dtype=dtype,
        device=str(device),
    )


def hooked_state_dict(gpt: GPT) -> dict[str, Tensor]:
    """A GPT's weights under TransformerLens' names and shapes, as views of its memory.

    Every bias that the GPT does not have is there as zeros.
    """
    config = gpt.config
    state = {
        "embed.W_E": gpt.embed.weight,
        "pos_embed.W_pos": gpt.pos_embed.weight,
        "ln_final.w": gpt.ln_final.weight,
        "ln_final.b": _bias(gpt.ln_final),
        "unembed.W_U": gpt.unembed.weight.T,
        "unembed.b_U": _bias(gpt.unembed),
    }
    for layer, block in enumerate(gpt.layers):
        parts = _attention(block, config) | _layer_norm("ln1", block.ln1)
        if block.ln2 is not None and block.mlp is not None:
            parts |= _layer_norm("ln2", block.ln2)
            parts |= {
                "mlp.W_in": block.mlp.in_proj.weight.T,
                "mlp.b_in": _bias(block.mlp.in_proj),
                "mlp.W_out": block.mlp.out_proj.weight.T,
                "mlp.b_out": _bias(block.mlp.out_proj),
            }
        state |= {f"blocks.{layer}.{name}": tensor for name, tensor in parts.items()}
    return {name: tensor.detach() for name, tensor in state.items()}


def split_heads(
    weight: Float[Tensor, "head_times_d_head d_model"], n_heads: int
) -> Float[Tensor, "head d_head d_model"]:
    """The rows of a projection by head."""
    return weight.unflatten(0, (n_heads, -1))


def _attention(block: Block, config: GPTConfig) -> dict[str, Tensor]:
    qkv_proj, out_proj = block.attn.qkv_proj, block.attn.out_proj
    parts = {
        "attn.W_O": split_heads(out_proj.weight.T, config.n_heads),
        "attn.b_O": _bias(out_proj),
    }
    for letter, weight, bias in zip(
        "QKV", qkv_proj.weight.chunk(3), _bias(qkv_proj).chunk(3), strict=True
    ):
        parts[f"attn.W_{letter}"] = split_heads(weight, config.n_heads).transpose(1, 2)
        parts[f"attn.b_{letter}"] = bias.view(config.n_heads, config.d_head)
    return parts


def _layer_norm(name: str, ln: torch.nn.LayerNorm) -> dict[str, Tensor]:
    return {f"{name}.w": ln.weight, f"{name}.b": _bias(ln)}


def _bias(module: torch.nn.Linear | torch.nn.LayerNorm) -> Tensor:
    """Its bias, or zeros in its place."""
    return module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias
