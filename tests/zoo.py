"""Models whose mechanism is known because their weights were set by hand.

Vectors are built from named blocks of one-hot coordinates. With LayerNorm, every vector z is laid
down as [z, -z]: its mean is then exactly 0, and since attention is hard and writes are one-hot
its norm is the same at every position, so LayerNorm is one fixed scale that the readers undo.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig

from interp.inputs import Contrast
from interp.metrics import Metric, logit_difference

HARD = 60.0  # a score that leaves e^-60 for everything else


class Blocks:
    """Named stretches of a vector."""

    def __init__(self, **sizes: int) -> None:
        self.start, at = {}, 0
        for name, size in sizes.items():
            self.start[name] = at
            at += size
        self.sizes, self.width = sizes, at

    def rows(self, name: str) -> slice:
        return slice(self.start[name], self.start[name] + self.sizes[name])

    def one_hot(self, name: str) -> Tensor:
        """[size, width], the coordinates of a block."""
        return torch.eye(self.width, dtype=torch.float64)[self.rows(name)]


def empty_model(*, mirrored: bool, width: int, **cfg) -> HookedTransformer:
    """A float64 model with all weights 0 (LayerNorm: gain 1, shift 0)."""
    config = HookedTransformerConfig(
        d_model=2 * width if mirrored else width,
        normalization_type="LN" if mirrored else None,
        dtype=torch.float64,
        device="cpu",
        model_name="zoo",
        use_attn_scale=False,
        default_prepend_bos=False,
        init_weights=False,
        **cfg,
    )
    model = HookedTransformer(config, move_to_device=False)
    for name, parameter in model.named_parameters():
        parameter.data = (torch.ones_like if name.endswith(".w") else torch.zeros_like)(parameter)
        parameter.requires_grad_(False)
    return model.eval()


@dataclass
class Hand:
    """Sets weights of a model in block coordinates, mirrored or not."""

    model: HookedTransformer
    blocks: Blocks
    mirrored: bool

    def lay(self, vectors: Tensor) -> Tensor:
        return torch.cat([vectors, -vectors], -1) if self.mirrored else vectors

    def read(self, matrix: Tensor, squared_norm: float) -> Tensor:
        """A reading matrix [width, out] that undoes LayerNorm on vectors of that squared norm."""
        if not self.mirrored:
            return matrix
        d_model = self.model.cfg.d_model
        scale = (2 * squared_norm / d_model + self.model.cfg.eps) ** 0.5
        return scale / 2 * torch.cat([matrix, -matrix])

    def head(self, layer, head, *, q, k, v, out, norm, sharp=HARD) -> None:
        """One head: q, k, v [width, d_head] and out [d_head, width]; `norm` is the squared norm
        of what it reads."""
        attn = self.model.blocks[layer].attn
        d_head = self.model.cfg.d_head

        def padded(matrix: Tensor) -> Tensor:
            return torch.nn.functional.pad(matrix, (0, d_head - matrix.shape[1]))

        attn.W_Q.data[head] = self.read(padded(q) * sharp, norm)
        attn.W_K.data[head] = self.read(padded(k), norm)
        attn.W_V.data[head] = self.read(padded(v), norm)
        rows = torch.nn.functional.pad(out, (0, 0, 0, d_head - len(out)))
        attn.W_O.data[head] = self.lay(rows)


N_TOKENS, N_CTX = 12, 24


def induction_model(*, layer_norm: bool = False, distractors: bool = False) -> HookedTransformer:
    """Two layers, four heads: L0H0 notes which token came before, L1H1 looks for the place whose
    previous token is the current one and copies what stands there.

    Token 0 is meant to start every prompt. The distractors, a duplicate-token head L0H2 and a
    previous-token head L1H3, write where nothing reads.
    """
    blocks = Blocks(tok=N_TOKENS, pos=N_CTX, prev=N_TOKENS, out=N_TOKENS, junk=N_TOKENS)
    model = empty_model(
        mirrored=layer_norm,
        width=blocks.width,
        n_layers=2,
        n_heads=4,
        d_head=N_CTX,
        d_vocab=N_TOKENS,
        n_ctx=N_CTX,
        attn_only=True,
    )
    hand = Hand(model, blocks, layer_norm)
    tok, pos = blocks.one_hot("tok"), blocks.one_hot("pos")
    prev, out, junk = (blocks.one_hot(name) for name in ("prev", "out", "junk"))
    model.embed.W_E.data = hand.lay(tok)
    model.pos_embed.W_pos.data = hand.lay(pos)
    before = torch.zeros(blocks.width, N_CTX, dtype=torch.float64)
    before[blocks.rows("pos")] = torch.eye(N_CTX, dtype=torch.float64).roll(-1, 1)
    before[blocks.start["pos"]] = torch.eye(N_CTX, dtype=torch.float64)[0]
    hand.head(0, 0, q=before, k=pos.T, v=tok.T, out=prev, norm=2)
    hand.head(1, 1, q=tok.T, k=prev.T, v=tok.T, out=out, norm=3 + distractors)
    if distractors:
        hand.head(0, 2, q=tok.T, k=tok.T, v=tok.T, out=junk, norm=2)
        hand.head(1, 3, q=before, k=pos.T, v=tok.T, out=junk, norm=3 + distractors)
    model.unembed.W_U.data = hand.read(10 * out.T, 4 + 2 * distractors)
    return model


INDUCTION_EDGES = {
    ("pos_embed", "L0H0.q"),
    ("pos_embed", "L0H0.k"),
    ("embed", "L0H0.v"),
    ("embed", "L1H1.q"),
    ("L0H0", "L1H1.k"),
    ("embed", "L1H1.v"),
    ("L1H1", "logits"),
}
# The prompt is 0 ... A B ... A, so B is predicted. Tokens are distinct but for A.
_CLEAN = [0, 7, 3, 8, 4, 9, 6, 2, 3]
INDUCTION_TARGET, INDUCTION_OTHER = 8, 4


def induction_contrasts() -> dict[str, tuple[Contrast, set[tuple[str, str]]]]:
    """Source and base (clean) prompts with the edges through which each difference acts.

    Ground truth depends on what stands in a site's place: these are values of the source run.
    """
    clean = torch.tensor([_CLEAN])

    def changed(pos: int, token: int) -> Contrast:
        source = clean.clone()
        source[0, pos] = token
        return Contrast(source, clean)

    end = {("L1H1", "logits")}
    return {
        "first A": (changed(2, 10), {("embed", "L0H0.v"), ("L0H0", "L1H1.k")} | end),
        "B": (changed(3, 11), {("embed", "L1H1.v")} | end),
        "last A": (changed(8, 10), {("embed", "L1H1.q")} | end),
    }


def induction_metric(model: HookedTransformer) -> Metric:
    return logit_difference(model, INDUCTION_TARGET, INDUCTION_OTHER)


def gate_model(gate: str) -> HookedTransformer:
    """Prompts [a, b, 2] with bits a and b; L0H0 carries a, L0H1 carries b to the last position.

    Gates: "and", "or"; "backup" (both heads carry a; the second stands in for the first);
    "cancel" (out = a - relu(a) where a is -1 for bit 0 and 1 for bit 1: at bit 1 the two paths
    cancel to first order, at bit 0 they do not).
    """
    blocks = Blocks(tok=3, pos=3, a=1, b=1, out=1)
    model = empty_model(
        mirrored=False,
        width=blocks.width,
        n_layers=2,
        n_heads=2,
        d_head=5,
        d_mlp=2,
        d_vocab=3,
        n_ctx=3,
        act_fn="relu",
    )
    hand = Hand(model, blocks, mirrored=False)
    tok, pos = blocks.one_hot("tok"), blocks.one_hot("pos")
    a, b, out = (blocks.one_hot(name) for name in ("a", "b", "out"))
    model.embed.W_E.data, model.pos_embed.W_pos.data = tok, pos
    bit = tok[1:2].T - (tok[0:1].T if gate == "cancel" else 0)
    for head, (writes, reads) in enumerate([(a, 0), (b, 0 if gate == "backup" else 1)]):
        if gate == "cancel" and head == 1:
            continue
        key = pos[reads : reads + 1].T
        hand.head(0, head, q=pos[2:3].T, k=key, v=bit, out=writes, norm=1)
    mlp = model.blocks[gate == "cancel"].mlp
    if gate == "cancel":
        mlp.W_in.data[:, 0] = a[0]
        mlp.W_out.data[0] = -out[0]
        # The direct path: a itself is read as out.
        model.unembed.W_U.data[:, 1] = 4 * (a + out)[0]
        return model
    mlp.W_in.data[:, 0] = (a + b)[0]
    mlp.W_in.data[:, 1] = (a + b)[0]
    mlp.b_in.data[1] = -1
    # relu(s) - relu(s - 1) is 1 once any bit is set; relu(s - 1) only when both are.
    weights = (0, 1) if gate == "and" else (1, -1)
    mlp.W_out.data = torch.tensor(weights, dtype=torch.float64)[:, None] * out
    model.unembed.W_U.data[:, 1] = 4 * out[0]
    return model


def saturated_model() -> HookedTransformer:
    """One layer: the last token (3 or 4) makes L0H0 look hard at token 1 or at token 2, which it
    copies. What moves the output is the query, and the softmax hides it from gradients."""
    blocks = Blocks(tok=5, out=2)
    model = empty_model(
        mirrored=False,
        width=blocks.width,
        n_layers=1,
        n_heads=2,
        d_head=3,
        d_vocab=5,
        n_ctx=4,
        attn_only=True,
    )
    hand = Hand(model, blocks, mirrored=False)
    tok, out = blocks.one_hot("tok"), blocks.one_hot("out")
    hand.head(0, 0, q=tok[3:5].T, k=tok[1:3].T, v=tok[1:3].T, out=out, norm=1)
    model.embed.W_E.data = tok
    model.unembed.W_U.data[:, 1:3] = 4 * out.T
    return model
