"""HookedTransformers in which every parameter is random: a fresh LayerNorm hides mistakes."""

from __future__ import annotations

import string
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformers import PreTrainedTokenizerFast


def letters_tokenizer(d_vocab: int) -> PreTrainedTokenizerFast:
    """One token a letter: "a" is 0, "b" is 1, up to 52 letters; a letter beyond raises."""
    letters = string.ascii_lowercase + string.ascii_uppercase
    vocab = {letter: i for i, letter in enumerate(letters[:d_vocab])}
    tokenizer = Tokenizer(models.WordLevel(vocab))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", clean_up_tokenization_spaces=False
    )


def random_hooked(
    seed: int = 0,
    *,
    n_layers: int = 2,
    n_heads: int = 3,
    d_head: int = 5,
    d_model: int = 16,
    d_mlp: int = 23,
    d_vocab: int = 11,
    n_ctx: int = 7,
    act_fn: str = "gelu",
    normalization_type: str | None = "LN",
    attn_only: bool = False,
    dtype: torch.dtype = torch.float64,
    **cfg: Any,
) -> HookedTransformer:
    """A small model with random weights, biases and LayerNorm parameters, and a letter tokenizer.

    No two of its sizes are equal, so an exchanged axis cannot pass unseen.
    """
    settings: dict[str, Any] = {
        "n_layers": n_layers,
        "n_heads": n_heads,
        "d_head": d_head,
        "d_model": d_model,
        "d_vocab": d_vocab,
        "n_ctx": n_ctx,
        "normalization_type": normalization_type,
        "attn_only": attn_only,
        "dtype": dtype,
        "device": "cpu",
        "model_name": "random",
        "default_prepend_bos": False,
        "init_weights": False,
    }
    if not attn_only:
        settings |= {"d_mlp": d_mlp, "act_fn": act_fn}
    config = HookedTransformerConfig(**settings | cfg)
    tokenizer = letters_tokenizer(config.d_vocab)
    model = HookedTransformer(config, tokenizer=tokenizer, move_to_device=False)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        is_gain = name.endswith(".w")
        # Roughly unit activations everywhere, so that no nonlinearity is asleep or saturated.
        is_matrix = parameter.ndim > 1 and "embed.W_" not in name.replace("unembed", "")
        fan_in = parameter.shape[-2] if is_matrix else 4
        parameter.data = ((1.0 if is_gain else 0.0) + noise / fan_in**0.5).to(dtype)
        parameter.requires_grad_(False)
    return model.eval()


def random_ids(seed: int = 0, *, batch: int = 1, n_pos: int = 7, d_vocab: int = 11) -> torch.Tensor:
    """Random token ids, [batch, n_pos]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, d_vocab, (batch, n_pos), generator=generator)
