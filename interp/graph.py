"""The model as a graph of components that write to the residual stream and read from it.

*Senders* write: the token embedding, the position embedding, each head, each MLP. *Receivers*
read: the query, key and value input of each head, each MLP, and the unembedding ("logits"). An
*edge* is what one sender's output does as part of one receiver's input, and nowhere else. Names
are `embed`, `pos_embed`, `L1H0`, `0_mlp_out` for senders and `L1H0.q`, `0_mlp_in`, `logits` for
receivers.

A receiver's input is the whole stream through the real LayerNorm: a change of one sender moves
the divisor too, which frozen-LayerNorm path patching leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.engine import Trace
from interp.errors import InputError
from interp.forward import linear
from interp.sites import Site, whole_site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformerConfig

    from interp.gradients import Slopes
    from interp.weights import Block, LayerNorm, Weights


@dataclass(frozen=True)
class Sender:
    """One component that writes to the stream; `site` is where its output is found."""

    name: str
    site: Site

    @property
    def depth(self) -> int:
        """Sublayers before it: embeddings -1, then attention and MLP of each layer in turn."""
        if self.site.layer is None:
            return -1
        return 2 * self.site.layer + (self.site.kind == "mlp_out")


@dataclass(frozen=True)
class Receiver:
    """One component that reads the stream; `stream` is the state it reads, `site` what it makes
    of it (None for the unembedding)."""

    name: str
    stream: Site
    site: Site | None

    @property
    def depth(self) -> int:
        """Sublayers before it."""
        assert self.stream.layer is not None
        after = {"resid_pre": 0, "resid_mid": 1, "resid_post": 2}
        return 2 * self.stream.layer + after[self.stream.kind]

    def hears(self, sender: Sender) -> bool:
        """Whether the sender's output is part of what this receiver reads."""
        return sender.depth < self.depth


def senders_of(cfg: HookedTransformerConfig) -> list[Sender]:
    """Every sender of a model, in forward order."""
    nodes = [Sender(kind, whole_site(kind)) for kind in ("embed", "pos_embed")]
    for layer in range(cfg.n_layers):
        heads = range(cfg.n_heads)
        nodes += [Sender(f"L{layer}H{head}", Site("z", layer, head=head)) for head in heads]
        if not cfg.attn_only:
            nodes.append(Sender(f"{layer}_mlp_out", whole_site("mlp_out", layer)))
    return nodes


def receivers_of(cfg: HookedTransformerConfig) -> list[Receiver]:
    """Every receiver of a model, in forward order."""
    nodes = []
    for layer in range(cfg.n_layers):
        stream = whole_site("resid_pre", layer)
        nodes += [
            Receiver(f"L{layer}H{head}.{kind}", stream, Site(kind, layer, head=head))
            for head in range(cfg.n_heads)
            for kind in "qkv"
        ]
        if not cfg.attn_only:
            mid = whole_site("resid_mid", layer)
            nodes.append(Receiver(f"{layer}_mlp_in", mid, whole_site("mlp_pre", layer)))
    return [*nodes, Receiver("logits", whole_site("resid_post", cfg.n_layers - 1), None)]


def named(nodes: list, names: list[str] | None) -> list:
    """The nodes of those names, in the order of the names; all of them for None.

    Raises:
        InputError: a name that no node has.
    """
    if names is None:
        return nodes
    by_name = {node.name: node for node in nodes}
    unknown = [name for name in names if name not in by_name]
    if unknown or not names:
        raise InputError(
            f"{unknown[0] if unknown else 'No name'!r} was given, but the model has "
            f"{', '.join(by_name)}: choose among these."
        )
    return [by_name[name] for name in names]


def edge_mask(senders: list[Sender], receivers: list[Receiver]) -> Bool[Tensor, "sender receiver"]:
    """Which pairs are edges."""
    return torch.tensor([[r.hears(s) for r in receivers] for s in senders])


def written(run: Trace, senders: list[Sender]) -> Float[Tensor, "sender batch pos d_model"]:
    """What each sender writes to the stream."""
    outs = []
    for sender in senders:
        value, site = run[sender.site], sender.site
        if site.kind == "z":
            assert site.layer is not None
            assert site.head is not None
            value = value @ head_output(run.weights.blocks[site.layer], run, site.head)
        outs.append(value)
    return torch.stack(outs)


def head_output(block: Block, run: Trace, head: int) -> Float[Tensor, "d_head d_model"]:
    """One head's W_O."""
    d_head = run.model.cfg.d_head
    return block.W_O[head * d_head : (head + 1) * d_head]


def reader(weights: Weights, receiver: Receiver) -> tuple[LayerNorm | None, Tensor, Tensor]:
    """The LayerNorm, matrix and bias between the stream and the receiver's site."""
    layer = receiver.stream.layer
    assert layer is not None
    if receiver.site is None:
        return weights.ln_final, weights.W_U, weights.b_U
    block = weights.blocks[layer]
    if receiver.site.kind == "mlp_pre":
        assert block.mlp is not None
        return block.ln2, block.mlp.W_in, block.mlp.b_in
    head, cfg = receiver.site.head, weights.cfg
    assert head is not None
    start = ("qkv".index(receiver.site.kind) * cfg.n_heads + head) * cfg.d_head
    columns = slice(start, start + cfg.d_head)
    return block.ln1, block.W_QKV[:, columns], block.b_QKV[columns]


def received(
    weights: Weights, receiver: Receiver, stream: Float[Tensor, "... d_model"]
) -> Float[Tensor, "... d_out"]:
    """What the receiver's site holds when it reads this stream."""
    ln, W, b = reader(weights, receiver)
    if ln is not None:
        stream = F.layer_norm(stream, stream.shape[-1:], ln.gain, ln.shift, weights.cfg.eps)
    return linear(stream, W, b)


def pulled_back(
    weights: Weights, receiver: Receiver, slopes: Slopes
) -> Float[Tensor, "variant batch pos d_model"]:
    """The metric's gradient at the receiver's own copy of the stream, through the real LayerNorm:
    with g the gradient behind it, y its output before gain and shift and s its divisor, that is
    (g - mean(g) - y mean(y g)) / s."""
    if receiver.site is None:
        return slopes.gradients[receiver.stream]
    gradient = slopes.gradients[receiver.site.whole]
    if receiver.site.head is not None:
        gradient = gradient[..., receiver.site.head, :]
    ln, W, _ = reader(weights, receiver)
    g = gradient @ W.T
    if ln is None:
        return g
    if ln.gain is not None:
        g = g * ln.gain
    scale, normalized = _norm_sites(receiver)
    y, s = slopes.values[normalized], slopes.values[scale]
    return (g - g.mean(-1, keepdim=True) - y * (y * g).mean(-1, keepdim=True)) / s


def sites_pulled_back(weights: Weights, receivers: list[Receiver]) -> set[Site]:
    """The sites whose slopes `pulled_back` needs."""
    sites = {receiver.stream for receiver in receivers if receiver.site is None}
    for receiver in receivers:
        if receiver.site is not None:
            sites.add(receiver.site.whole)
            if weights.ln_final is not None:
                sites.update(_norm_sites(receiver))
    return sites


def _norm_sites(receiver: Receiver) -> tuple[Site, Site]:
    name = {"resid_pre": "ln1", "resid_mid": "ln2"}[receiver.stream.kind]
    layer = receiver.stream.layer
    return whole_site(f"{name}_scale", layer), whole_site(f"{name}_normalized", layer)


def place_of(edges: Bool[Tensor, "sender receiver"]) -> Int[Tensor, "edge two"]:
    """Sender and receiver number of each edge, receivers' edges together."""
    return edges.T.nonzero().flip(1)
