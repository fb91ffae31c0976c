"""The GPT: one class for the course GPT and nanoGPT.

Axes: batch, pos (tokens of a sequence), head, and the widths d_model, d_head, d_mlp, d_vocab.
The residual stream is [batch, pos, d_model] from the embedding to the final LayerNorm.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .config import GPTConfig
from .errors import ModelError

IGNORE_INDEX = -1
"""A target with this id takes no part in the loss."""

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


LONG = 512
"""Keys beyond which a CPU is better off with the kernel that never forms a pattern."""


class KeyValueCache:
    """Each layer's keys and values of the tokens read so far, [batch, head, pos, d_head]."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, ...]] = []

    @property
    def n_pos(self) -> int:
        return self.layers[0][0].shape[2] if self.layers else 0


class Attention(nn.Module):
    """Causal multi-head self-attention with query, key and value in one projection."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        assert config.attn_scale is not None
        self.scale = config.attn_scale
        if config.scale_attn_by_inverse_layer_idx:
            self.scale *= layer + 1
        self.qkv_proj = nn.Linear(config.d_model, 3 * config.d_model, bias=config.qkv_bias)
        self.out_proj = nn.Linear(config.d_model, config.d_model, bias=config.bias)
        self.out_dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        past: tuple[Tensor, ...] = (),
    ) -> tuple[Float[Tensor, "batch pos d_model"], tuple[Tensor, ...]]:
        """What the heads write to the stream, and their keys and values."""
        z, present = self.mix(x, past)
        return self.out_dropout(self.out_proj(z)), present

    def mix(
        self,
        x: Float[Tensor, "batch pos d_model"],
        past: tuple[Tensor, ...] = (),
    ) -> tuple[Float[Tensor, "batch pos d_model"], tuple[Tensor, ...]]:
        """Each head's values mixed by its pattern, side by side, and its keys and values."""
        batch, n_pos, d_model = x.shape
        heads = (batch, n_pos, 3, self.config.n_heads, self.config.d_head)
        q, k, v = (y.transpose(1, 2) for y in self.qkv_proj(x).view(heads).unbind(2))
        if past:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        z = _attention(q, k, v, 1 / self.scale, self.config.dropout if self.training else 0.0)
        return z.transpose(1, 2).reshape(batch, n_pos, d_model), (k, v)


class MLP(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        assert config.d_mlp
        self.in_proj = nn.Linear(config.d_model, config.d_mlp, bias=config.bias)
        self.act_fn = ACTIVATIONS[config.act_fn]
        self.out_proj = nn.Linear(config.d_mlp, config.d_model, bias=config.bias)
        self.out_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        return self.out_dropout(self.out_proj(self.neurons(x)))

    def neurons(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_mlp"]:
        """The hidden units after the activation function."""
        return self.act_fn(self.in_proj(x))


class Block(nn.Module):
    """Two pre-norm sublayers: attention, then the MLP (none when attention-only)."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.ln1 = _layer_norm(config)
        self.attn = Attention(config, layer)
        self.ln2, self.mlp = (
            (None, None) if config.attn_only else (_layer_norm(config), MLP(config))
        )

    def forward(
        self,
        resid: Float[Tensor, "batch pos d_model"],
        past: tuple[Tensor, ...] = (),
    ) -> tuple[Float[Tensor, "batch pos d_model"], tuple[Tensor, ...]]:
        if self.training and not self.attn.config.dropout and not past:
            return self._fused(resid)
        attn_out, present = self.attn(self.ln1(resid), past)
        resid = resid + attn_out
        if self.mlp is not None and self.ln2 is not None:
            resid = resid + self.mlp(self.ln2(resid))
        return resid, present

    def _fused(
        self, resid: Float[Tensor, "batch pos d_model"]
    ) -> tuple[Float[Tensor, "batch pos d_model"], tuple[Tensor, ...]]:
        """The same without a tensor for each sublayer's output: training is bound by memory."""
        z, present = self.attn.mix(self.ln1(resid))
        resid = _add_projected(resid, z, self.attn.out_proj)
        if self.mlp is not None and self.ln2 is not None:
            resid = _add_projected(resid, self.mlp.neurons(self.ln2(resid)), self.mlp.out_proj)
        return resid, present


class GPT(nn.Module):
    """A pre-norm GPT with learned positions.

    `GPT(config)` draws its weights from torch's global random state, as `config.init_mode` says.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.d_vocab, config.d_model)
        self.pos_embed = nn.Embedding(config.n_ctx, config.d_model)
        self.embed_dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.ln_final = _layer_norm(config)
        self.unembed = nn.Linear(config.d_model, config.d_vocab, bias=config.unembed_bias)
        if config.init_mode == "gpt2":
            self._init_gpt2()
        if config.tied_embeddings:
            self.unembed.weight = self.embed.weight

    def _init_gpt2(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                to_stream = name.endswith("out_proj.weight")
                std = 0.02 / math.sqrt(2 * self.config.n_layers) if to_stream else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(
        self,
        ids: Int[Tensor, "batch pos"],
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch pos d_vocab"]:
        """Logits at every position.

        Args:
            ids: token ids; with a cache, those that follow what it holds.
            cache: keys and values of the tokens before `ids`, extended in place.

        Raises:
            ModelError: when the sequence is longer than n_ctx. Positions are learned, so a
                longer context needs a model trained for it.
        """
        n_past = cache.n_pos if cache else 0
        n_pos = n_past + ids.shape[1]
        if n_pos > self.config.n_ctx:
            raise ModelError(
                f"the sequence has {n_pos} tokens and the model's context is "
                f"n_ctx={self.config.n_ctx}: shorten it, or train a model with a longer context."
            )
        positions = torch.arange(n_past, n_pos, device=ids.device)
        resid = self.embed_dropout(self.embed(ids) + self.pos_embed(positions))
        presents = []
        for layer, block in enumerate(self.blocks):
            resid, present = block(resid, cache.layers[layer] if n_past and cache else ())
            presents.append(present)
        if cache is not None:
            cache.layers = presents
        return self.unembed(self.ln_final(resid))

    @property
    def layers(self) -> list[Block]:
        """The blocks, as what they are."""
        return [block for block in self.blocks if isinstance(block, Block)]

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device


def next_token_loss(
    logits: Float[Tensor, "batch pos d_vocab"], targets: Int[Tensor, "batch pos"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats over the targets that are not `IGNORE_INDEX`.

    `targets[b, p]` is the id that follows position p, so a text's targets are its ids moved by
    one.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX)


def parameter_groups(config: GPTConfig) -> dict[str, int]:
    """How many parameters each part holds, without allocating any.

    A tied unembedding counts once, with the embeddings. The sum is every parameter, positions
    included (GPT-2's 124M does so too; nanoGPT reports its sizes without the positions).
    """
    with torch.device("meta"):
        gpt = GPT(config)
    groups: dict[str, list[nn.Module | None]] = {
        "embeddings": [gpt.embed, gpt.pos_embed],
        "attention": [block.attn for block in gpt.layers],
        "MLPs": [block.mlp for block in gpt.layers],
        "block LayerNorms": [ln for block in gpt.layers for ln in (block.ln1, block.ln2)],
        "final LayerNorm and unembedding": [gpt.ln_final, gpt.unembed],
    }
    seen: set[int] = set()
    return {
        name: sum(_count_new(module, seen) for module in parts if module is not None)
        for name, parts in groups.items()
    }


def _count_new(module: nn.Module, seen: set[int]) -> int:
    new = [p for p in module.parameters() if id(p) not in seen]
    seen.update(map(id, new))
    return sum(p.numel() for p in new)


def _attention(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head key d_head"],
    v: Float[Tensor, "batch head key d_head"],
    scale: float,
    dropout: float,
) -> Float[Tensor, "batch head pos d_head"]:
    """Causal attention of the last positions to all of them.

    On a CPU torch's bfloat16 kernel takes ten times as long as its float32 one, and up to some
    length two products and a softmax take less than either.
    """
    if q.dtype != torch.bfloat16 or q.device.type != "cpu":
        return _attention_kernel(q, k, v, scale, dropout)
    n_pos, n_keys = q.shape[2], k.shape[2]
    if n_keys > LONG:
        with torch.autocast("cpu", enabled=False):
            return _attention_kernel(q.float(), k.float(), v.float(), scale, dropout).to(q.dtype)
    visible = _causal_mask(n_keys - n_pos, n_pos, q.device)
    unseen = torch.zeros_like(visible, dtype=q.dtype).masked_fill(~visible, -torch.inf)
    q_rows, k_columns, v_rows = (x.flatten(0, 1) for x in (q, k.mT, v))
    pattern = torch.baddbmm(unseen, q_rows, k_columns, alpha=scale).softmax(dim=-1)
    return torch.bmm(F.dropout(pattern, dropout), v_rows).unflatten(0, q.shape[:2])


def _attention_kernel(q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float) -> Tensor:
    n_pos, n_past = q.shape[2], k.shape[2] - q.shape[2]
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=_causal_mask(n_past, n_pos, q.device) if n_past and n_pos > 1 else None,
        is_causal=not n_past,
        scale=scale,
        dropout_p=dropout,
    )


def _add_projected(
    resid: Float[Tensor, "batch pos d_model"],
    x: Float[Tensor, "batch pos d_in"],
    proj: nn.Linear,
) -> Float[Tensor, "batch pos d_model"]:
    """resid + proj(x); the stream stays in its own precision when products run in a lower one."""
    if torch.is_autocast_enabled(resid.device.type):
        return resid + proj(x)
    out = torch.addmm(resid.flatten(0, 1), x.flatten(0, 1), proj.weight.T).view_as(resid)
    return out if proj.bias is None else out.add_(proj.bias)


def _layer_norm(config: GPTConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.d_model, eps=config.eps, bias=config.bias)


def _causal_mask(n_past: int, n_new: int, device: torch.device) -> Tensor:
    return torch.ones(n_new, n_past + n_new, dtype=torch.bool, device=device).tril(n_past)
