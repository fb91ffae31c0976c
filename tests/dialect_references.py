"""Small GPTs written from the description of each architecture, in float64, with every site.

Nothing here knows how a conversion works: each architecture draws its tensors under its own names
and shapes, and says in plain matrix products, head by head, what is done with them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 3, 3, 48, 17, 61
HEAD = WIDTH // HEADS
Map = Callable[[Tensor], Tensor]


class Draw:
    """Random tensors under the names of a state dict."""

    def __init__(self, seed: int = 0) -> None:
        self.state: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, name: str, *shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=self._generator, dtype=torch.float64)
        spread = 0.5 if len(shape) == 1 else 2 / math.sqrt(shape[-1])
        # a precision that float32 holds exactly, so that one state serves both proofs
        self.state[name] = (spread * drawn + 0.3 * (len(shape) == 1)).float().double()
        return self.state[name]

    def linear(self, name: str, n_out: int, n_in: int, bias: bool = True) -> Map:
        W = self(f"{name}.weight", n_out, n_in)
        b = self(f"{name}.bias", n_out) if bias else 0.0
        return lambda x: torch.einsum("oi,...i->...o", W, x) + b

    def conv1d(self, name: str, n_in: int, n_out: int) -> Map:
        W, b = self(f"{name}.weight", n_in, n_out), self(f"{name}.bias", n_out)
        return lambda x: x @ W + b

    def norm(self, weight: str, bias: str | None, eps: float = 1e-5) -> Norm:
        return Norm(self(weight, WIDTH), self(bias, WIDTH) if bias else torch.tensor(0.0), eps)

    def buffer(self, name: str, *shape: int) -> None:
        self.state[name] = torch.ones(*shape).tril()


@dataclasses.dataclass
class Norm:
    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor, sites: dict[str, Tensor], name: str) -> Tensor:
        centred = x - x.sum(-1, keepdim=True) / WIDTH
        scale = ((centred**2).sum(-1, keepdim=True) / WIDTH + self.eps) ** 0.5
        sites[f"{name}.hook_scale"] = scale
        sites[f"{name}.hook_normalized"] = centred / scale
        return centred / scale * self.weight + self.bias


@dataclasses.dataclass
class Block:
    ln1: Norm
    q: list[Map]
    k: list[Map]
    v: list[Map]
    out: Map
    ln2: Norm
    up: Map
    down: Map


@dataclasses.dataclass
class Reference:
    """An architecture with its weights: `sites(ids)` is everything that it computes."""

    state: dict[str, Tensor]
    embed: Tensor
    pos: Tensor
    blocks: list[Block]
    ln_final: Norm
    unembed: Map
    act: Map
    scale: float = math.sqrt(HEAD)
    by_layer: bool = False

    def sites(self, ids: Tensor) -> dict[str, Tensor]:
        sites = {"hook_embed": self.embed[ids]}
        sites["hook_pos_embed"] = self.pos[: ids.shape[1]].expand(len(ids), -1, -1)
        x = sites["hook_embed"] + sites["hook_pos_embed"]
        for layer, block in enumerate(self.blocks):
            x = self._block(layer, block, x, sites)
        normalized = self.ln_final(x, sites, "ln_final")
        sites["unembed.hook_in"] = normalized
        sites["logits"] = sites["unembed.hook_out"] = logits = self.unembed(normalized)
        chosen = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
        return sites | {"loss": -chosen.mean()}

    def _block(self, layer: int, block: Block, x: Tensor, sites: dict[str, Tensor]) -> Tensor:
        at = f"blocks.{layer}"
        sites[f"{at}.hook_resid_pre"] = x
        y = block.ln1(x, sites, f"{at}.ln1")
        n = x.shape[1]
        future = torch.arange(n)[None, :] > torch.arange(n)[:, None]
        scale = self.scale * (layer + 1 if self.by_layer else 1)
        heads = []
        for q, k, v in zip(block.q, block.k, block.v, strict=True):
            scores = torch.einsum("bid,bjd->bij", q(y), k(y)) / scale
            scores[:, future] = -torch.inf
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            heads.append((q(y), k(y), v(y), scores, weights, weights @ v(y)))
        names = ("q", "k", "v", "attn_scores", "pattern", "z")
        for name, values in zip(names, zip(*heads, strict=True), strict=True):
            axis = 1 if name in ("attn_scores", "pattern") else 2
            sites[f"{at}.attn.hook_{name}"] = torch.stack(values, dim=axis)
        attn_out = block.out(torch.cat([head[-1] for head in heads], dim=-1))
        mid = x + attn_out
        pre = block.up(block.ln2(mid, sites, f"{at}.ln2"))
        post = self.act(pre)
        mlp_out = block.down(post)
        sites |= {
            f"{at}.hook_attn_out": attn_out,
            f"{at}.hook_resid_mid": mid,
            f"{at}.mlp.hook_pre": pre,
            f"{at}.mlp.hook_post": post,
            f"{at}.hook_mlp_out": mlp_out,
            f"{at}.hook_resid_post": mid + mlp_out,
        }
        return mid + mlp_out


def exact_gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def tanh_gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.0)


def columns(f: Map, part: int) -> list[Map]:
    """The heads of one of three that a fused projection computes together."""
    return [
        lambda x, i=part * WIDTH + head * HEAD: f(x)[..., i : i + HEAD] for head in range(HEADS)
    ]


def split(f: Map) -> list[Map]:
    """The heads of a projection."""
    return columns(f, 0)


def course(seed: int = 0, qkv_bias: bool = False) -> Reference:
    draw = Draw(seed)
    embed, pos = draw("tok.weight", VOCAB, WIDTH), draw("pos.weight", CONTEXT, WIDTH)
    blocks = []
    for i in range(LAYERS):
        at = f"blocks.{i}"
        heads: dict[str, list[Map]] = {"query": [], "key": [], "value": []}
        ln1 = draw.norm(f"{at}.ln1.weight", f"{at}.ln1.bias")
        for h in range(HEADS):
            for part, maps in heads.items():
                maps.append(draw.linear(f"{at}.attn.heads.{h}.{part}", HEAD, WIDTH, qkv_bias))
            draw.buffer(f"{at}.attn.heads.{h}.tril", CONTEXT, CONTEXT)
        out = draw.linear(f"{at}.attn.proj", WIDTH, WIDTH)
        ln2 = draw.norm(f"{at}.ln2.weight", f"{at}.ln2.bias")
        up = draw.linear(f"{at}.mlp.net.0", 4 * WIDTH, WIDTH)
        down = draw.linear(f"{at}.mlp.net.2", WIDTH, 4 * WIDTH)
        blocks.append(Block(ln1, *heads.values(), out, ln2, up, down))
    ln_final = draw.norm("ln_f.weight", "ln_f.bias")
    head = draw.linear("head", VOCAB, WIDTH, bias=False)
    return Reference(draw.state, embed, pos, blocks, ln_final, head, exact_gelu)


def hf_shaped(
    seed: int = 0,
    *,
    bias: bool = True,
    tied: bool = True,
    act: Map = exact_gelu,
    vocab: int = VOCAB,
    buffers: bool = False,
    conv1d: bool = False,
    eps: float = 1e-5,
    d_mlp: int = 4 * WIDTH,
    scale: float = math.sqrt(HEAD),
    by_layer: bool = False,
) -> Reference:
    """nanoGPT, build-nanogpt, minGPT and Hugging Face's GPT-2 share their names."""
    draw = Draw(seed)

    def linear(name: str, n_out: int, n_in: int) -> Map:
        return draw.conv1d(name, n_in, n_out) if conv1d else draw.linear(name, n_out, n_in, bias)

    def norm(name: str) -> Norm:
        return draw.norm(f"{name}.weight", f"{name}.bias" if bias else None, eps)

    embed = draw("transformer.wte.weight", vocab, WIDTH)
    pos = draw("transformer.wpe.weight", CONTEXT, WIDTH)
    blocks = []
    for i in range(LAYERS):
        at = f"transformer.h.{i}"
        if buffers:
            draw.buffer(f"{at}.attn.bias", 1, 1, CONTEXT, CONTEXT)
        qkv = linear(f"{at}.attn.c_attn", 3 * WIDTH, WIDTH)
        blocks.append(
            Block(
                norm(f"{at}.ln_1"),
                *(columns(qkv, part) for part in range(3)),
                linear(f"{at}.attn.c_proj", WIDTH, WIDTH),
                norm(f"{at}.ln_2"),
                linear(f"{at}.mlp.c_fc", d_mlp, WIDTH),
                linear(f"{at}.mlp.c_proj", WIDTH, d_mlp),
            )
        )
    ln_final = norm("transformer.ln_f")
    W_U = embed if tied else draw("lm_head.weight", vocab, WIDTH)
    draw.state["lm_head.weight"] = W_U
    return Reference(
        draw.state, embed, pos, blocks, ln_final, lambda x: x @ W_U.T, act, scale, by_layer
    )


def separate(
    seed: int,
    names: dict[str, str],
    *,
    qkv_bias: bool = True,
    act: Map,
    positions_first: bool = False,
    ln: tuple[str, str] = ("weight", "bias"),
) -> Reference:
    """One projection each for query, key and value: old minGPT and LLMs-from-scratch."""
    draw = Draw(seed)
    embed = draw(names["embed"], VOCAB, WIDTH)
    pos = draw(names["pos"], *([1] if positions_first else []), CONTEXT, WIDTH)

    def norm(name: str) -> Norm:
        return draw.norm(f"{name}.{ln[0]}", f"{name}.{ln[1]}")

    blocks = []
    for i in range(LAYERS):
        at = names["block"].format(i)
        draw.buffer(f"{at}.{names['mask']}", CONTEXT, CONTEXT)
        qkv = [draw.linear(f"{at}.{names[p]}", WIDTH, WIDTH, qkv_bias) for p in ("q", "k", "v")]
        blocks.append(
            Block(
                norm(f"{at}.{names['ln1']}"),
                *map(split, qkv),
                draw.linear(f"{at}.{names['out']}", WIDTH, WIDTH),
                norm(f"{at}.{names['ln2']}"),
                draw.linear(f"{at}.{names['up']}", 4 * WIDTH, WIDTH),
                draw.linear(f"{at}.{names['down']}", WIDTH, 4 * WIDTH),
            )
        )
    ln_final = norm(names["ln_f"])
    head = draw.linear(names["head"], VOCAB, WIDTH, bias=False)
    return Reference(draw.state, embed, pos.view(CONTEXT, WIDTH), blocks, ln_final, head, act)


def old_mingpt(seed: int = 0) -> Reference:
    names = {
        "embed": "tok_emb.weight", "pos": "pos_emb", "block": "blocks.{}", "mask": "attn.mask",
        "q": "attn.query", "k": "attn.key", "v": "attn.value", "out": "attn.proj",
        "ln1": "ln1", "ln2": "ln2", "up": "mlp.0", "down": "mlp.2", "ln_f": "ln_f", "head": "head",
    }  # fmt: skip
    return separate(seed, names, act=exact_gelu, positions_first=True)


def from_scratch(seed: int = 0, qkv_bias: bool = False) -> Reference:
    names = {
        "embed": "tok_emb.weight", "pos": "pos_emb.weight", "block": "trf_blocks.{}",
        "mask": "att.mask", "q": "att.W_query", "k": "att.W_key", "v": "att.W_value",
        "out": "att.out_proj", "ln1": "norm1", "ln2": "norm2", "up": "ff.layers.0",
        "down": "ff.layers.2", "ln_f": "final_norm", "head": "out_head",
    }  # fmt: skip
    return separate(seed, names, qkv_bias=qkv_bias, act=tanh_gelu, ln=("scale", "shift"))


def lecture(seed: int = 0, scale: float = math.sqrt(HEAD)) -> Reference:
    draw = Draw(seed)
    embed = draw("token_embedding_table.weight", VOCAB, WIDTH)
    pos = draw("position_embedding_table.weight", CONTEXT, WIDTH)
    blocks = []
    for i in range(LAYERS):
        at = f"blocks.{i}"
        heads: dict[str, list[Map]] = {"key": [], "query": [], "value": []}
        for h in range(HEADS):
            for part, maps in heads.items():
                maps.append(draw.linear(f"{at}.sa.heads.{h}.{part}", HEAD, WIDTH, bias=False))
            draw.buffer(f"{at}.sa.heads.{h}.tril", CONTEXT, CONTEXT)
        blocks.append(
            Block(
                draw.norm(f"{at}.ln1.weight", f"{at}.ln1.bias"),
                heads["query"],
                heads["key"],
                heads["value"],
                draw.linear(f"{at}.sa.proj", WIDTH, WIDTH),
                draw.norm(f"{at}.ln2.weight", f"{at}.ln2.bias"),
                draw.linear(f"{at}.ffwd.net.0", 4 * WIDTH, WIDTH),
                draw.linear(f"{at}.ffwd.net.2", WIDTH, 4 * WIDTH),
            )
        )
    ln_final = draw.norm("ln_f.weight", "ln_f.bias")
    head = draw.linear("lm_head", VOCAB, WIDTH)
    return Reference(draw.state, embed, pos, blocks, ln_final, head, relu, scale)


def head_maps(W: Tensor, b: Tensor) -> Iterator[Map]:
    for head in range(HEADS):
        yield lambda x, h=head: x @ W[h] + b[h]


def transformer_lens(seed: int = 0, folded: bool = False) -> Reference:
    draw = Draw(seed)
    embed, pos = draw("embed.W_E", VOCAB, WIDTH), draw("pos_embed.W_pos", CONTEXT, WIDTH)

    def norm(name: str) -> Norm:
        if folded:
            return Norm(torch.tensor(1.0), torch.tensor(0.0), 1e-5)
        return draw.norm(f"{name}.w", f"{name}.b")

    def times(W: Tensor, b: Tensor) -> Map:
        return lambda x: x @ W + b

    blocks = []
    for i in range(LAYERS):
        at = f"blocks.{i}"
        ln1 = norm(f"{at}.ln1")
        qkv = [
            list(
                head_maps(
                    draw(f"{at}.attn.W_{x}", HEADS, WIDTH, HEAD),
                    draw(f"{at}.attn.b_{x}", HEADS, HEAD),
                )
            )
            for x in "QKV"
        ]
        W_O, b_O = draw(f"{at}.attn.W_O", HEADS, HEAD, WIDTH), draw(f"{at}.attn.b_O", WIDTH)
        draw.buffer(f"{at}.attn.mask", CONTEXT, CONTEXT)
        draw.state[f"{at}.attn.IGNORE"] = torch.tensor(-torch.inf)
        blocks.append(
            Block(
                ln1,
                *qkv,
                lambda z, W=W_O, b=b_O: (
                    sum(z[..., h * HEAD : (h + 1) * HEAD] @ W[h] for h in range(HEADS)) + b
                ),
                norm(f"{at}.ln2"),
                times(draw(f"{at}.mlp.W_in", WIDTH, 90), draw(f"{at}.mlp.b_in", 90)),
                times(draw(f"{at}.mlp.W_out", 90, WIDTH), draw(f"{at}.mlp.b_out", WIDTH)),
            )
        )
    ln_final = norm("ln_final")
    unembed = times(draw("unembed.W_U", WIDTH, VOCAB), draw("unembed.b_U", VOCAB))
    return Reference(draw.state, embed, pos, blocks, ln_final, unembed, relu)
