"""What a head's weights do, read without any input: its QK and OV circuits.

A head is two low-rank bilinear forms of the stream (Elhage et al. 2021, "A Mathematical Framework
for Transformer Circuits"): W_Q W_K^T says which keys a query likes, W_V W_O what is moved once it
attends. Both are kept as TransformerLens' FactoredMatrix and never multiplied out unless asked.

Convention, so that folded and unfolded models agree: a weight that reads the stream carries the
gain of its LayerNorm and no mean, a weight that writes it no mean either,

    W_Q -> P diag(gain) W_Q,   W_O -> W_O P.

What weights alone cannot know is left out: LayerNorm's scale and all biases. Models without
normalisation are taken as they are. `fold_ln=False` takes every model so: its matrices as they
were trained, which is not what its heads see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from transformer_lens import FactoredMatrix

from interp.errors import InputError
from interp.inputs import to_id, vocabulary
from interp.norms import norms
from interp.readout import readout
from interp.result_sets import labelled_set
from interp.results import labelled
from interp.sites import Site

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

Side: TypeAlias = Literal["tokens", "positions"]
Embedding: TypeAlias = Literal["embed", "after_mlp0"]


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """All heads' weights by the convention of this module."""

    W_Q: Float[Tensor, "layer head d_model d_head"]
    W_K: Float[Tensor, "layer head d_model d_head"]
    W_V: Float[Tensor, "layer head d_model d_head"]
    W_O: Float[Tensor, "layer head d_head d_model"]

    @property
    def QK(self) -> FactoredMatrix:  # noqa: N802, TransformerLens' name
        """[layer, head, d_model, d_model]: query state times key state, before attn_scale."""
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    @property
    def OV(self) -> FactoredMatrix:  # noqa: N802, TransformerLens' name
        """[layer, head, d_model, d_model]: from the state attended to, to what is written."""
        return FactoredMatrix(self.W_V, self.W_O)


def head_weights(model: HookedTransformer, *, fold_ln: bool = True) -> HeadWeights:
    """The weights of all heads, through their LayerNorm's gain and without what it cannot see.

    Args:
        fold_ln: False for the matrices as they stand in the model.

    Cost: a copy of the attention weights.
    """
    if not fold_ln:
        plain = (getattr(model, name).detach() for name in ("W_Q", "W_K", "W_V", "W_O"))
        return HeadWeights(*plain)
    readers = norms(model)[:: 1 if model.cfg.attn_only else 2]
    reads: dict[str, list[Tensor]] = {"W_Q": [], "W_K": [], "W_V": []}
    writes = []
    for norm, block in zip(readers, model.blocks, strict=False):
        for name, stack in reads.items():
            gained = norm.gain[:, None] * getattr(block.attn, name).detach()
            stack.append(norm.centred(gained.mT).mT)
        writes.append(norm.centred(block.attn.W_O.detach()))
    return HeadWeights(**{n: torch.stack(s) for n, s in reads.items()}, W_O=torch.stack(writes))


def token_vectors(
    model: HookedTransformer, embedding: Embedding = "embed"
) -> Float[Tensor, "token d_model"]:
    """What stands for each token in the stream.

    Args:
        embedding: "embed", W_E; or "after_mlp0", the effective embedding W_E + MLP0(W_E), which is
            what later layers see of a token by itself, without attention and positions.

    Raises:
        InputError: another embedding, or "after_mlp0" for a model without MLPs.
    """
    W_E = model.embed.W_E.detach()
    if embedding == "embed":
        return W_E
    if embedding != "after_mlp0" or model.cfg.attn_only:
        raise InputError(
            f"embedding={embedding!r} came for a model with attn_only={model.cfg.attn_only}, but "
            "'embed' or, with MLPs, 'after_mlp0' is allowed: choose one."
        )
    mlp, read = model.blocks[0].mlp, norms(model)[1]
    with torch.no_grad():
        return W_E + mlp(read(W_E)[None])[0]


def qk_circuit(
    model: HookedTransformer,
    layer: int,
    head: int,
    *,
    query: Side = "tokens",
    key: Side = "tokens",
    embedding: Embedding = "embed",
    fold_ln: bool = True,
) -> FactoredMatrix:
    """How much one token or position likes another: [query, key], in score units times s^2.

    Args:
        query, key: "tokens" for W_E's rows (see `token_vectors`), "positions" for W_pos'.
        fold_ln: as in this module's convention, or the matrices as they stand.

    Raises:
        InputError: a head that the model does not have, or an unknown side or embedding.

    Cost: [query, d_head] and [d_head, key] numbers.
    """
    check_head(model, layer, head)
    weights = head_weights(model, fold_ln=fold_ln)
    left = _vectors(model, query, embedding) @ weights.W_Q[layer, head]
    right = _vectors(model, key, embedding) @ weights.W_K[layer, head]
    return FactoredMatrix(left / model.blocks[layer].attn.attn_scale, right.mT)


def ov_circuit(
    model: HookedTransformer,
    layer: int,
    head: int,
    *,
    embedding: Embedding = "embed",
    fold_ln: bool = True,
) -> FactoredMatrix:
    """What attending to each token does to each logit: [token, next_token], in logits times s^2.

    Args:
        fold_ln: as in this module's convention, or the matrices as they stand, W_U too.

    Raises:
        InputError: a head that the model does not have, or an unknown embedding.

    Cost: [token, d_head] and [d_head, token] numbers.
    """
    check_head(model, layer, head)
    weights = head_weights(model, fold_ln=fold_ln)
    moved = token_vectors(model, embedding) @ weights.W_V[layer, head]
    unembedding = readout(model).A if fold_ln else model.unembed.W_U.detach()
    return FactoredMatrix(moved, weights.W_O[layer, head] @ unembedding)


def circuit_table(
    model: HookedTransformer,
    layer: int,
    head: int,
    circuit: Literal["QK", "OV"],
    *,
    embedding: Embedding = "embed",
    tokens: list[str | int] | None = None,
    fold_ln: bool = True,
) -> xr.DataArray:
    """A token circuit multiplied out, for the chosen tokens or for all.

    Returns:
        [token, other_token], units as in `qk_circuit` (query, key) and `ov_circuit` (attended to,
        logit). Coordinates are ids; `tokens` and `other_tokens` are their strings.

    Raises:
        InputError: as those, an unknown circuit, or an unknown token.

    Cost: memory for tokens^2 numbers: choose tokens where the vocabulary is large.
    """
    if circuit not in ("QK", "OV"):
        raise InputError(f"Circuit {circuit!r} came, but there are 'QK' and 'OV': choose one.")
    make = qk_circuit if circuit == "QK" else ov_circuit
    matrix = make(model, layer, head, embedding=embedding, fold_ln=fold_ln)
    ids = list(range(model.cfg.d_vocab)) if tokens is None else [to_id(model, t) for t in tokens]
    names = vocabulary(model)
    strings = [names[i] for i in ids]
    return labelled(
        model,
        matrix.A[ids] @ matrix.B[:, ids],
        ("token", "other_token"),
        name=circuit,
        units="score s^2" if circuit == "QK" else "logits s^2",
        coords={
            "token": ids,
            "other_token": ids,
            "tokens": ("token", strings),
            "other_tokens": ("other_token", strings),
        },
        layer=layer,
        head=head,
        embedding=embedding,
        fold_ln=fold_ln,
    )


def circuit_spectra(model: HookedTransformer, *, fold_ln: bool = True) -> xr.Dataset:
    """The singular values of every head's QK and OV circuit on the stream, largest first.

    Args:
        fold_ln: as in this module's convention, or the matrices as they stand.

    Returns:
        `QK`, `OV` [layer, head, axis], d_head of each: the others are 0.

    Cost: three QR decompositions and one SVD of a [d_head, d_head] matrix a head and circuit.
    """
    weights = head_weights(model, fold_ln=fold_ln)
    dims = ("layer", "head", "axis")
    return labelled_set(
        model,
        {
            "QK": (small_singular_values(weights.W_Q, weights.W_K.mT), dims, "score s^2"),
            "OV": (small_singular_values(weights.W_V, weights.W_O), dims, "s"),
        },
        fold_ln=fold_ln,
    )


def small_singular_values(
    A: Float[Tensor, "*heads d_model d_head"], B: Float[Tensor, "*heads d_head d_model"]
) -> Float[Tensor, "*heads d_head"]:
    """The singular values of A B, from a matrix of the inner dimension only."""
    left = torch.linalg.qr(A, mode="r").R
    right = torch.linalg.qr(B.mT, mode="r").R
    return torch.linalg.svdvals(left @ right.mT)


def copying_scores(model: HookedTransformer, *, embedding: Embedding = "embed") -> xr.Dataset:
    """How far each head's OV circuit raises the token that it attends to.

    Returns:
        Over [layer, head]: `copying`, sum of Re lambda over sum of |lambda| for the eigenvalues
        lambda of W_E W_V W_O W_U (Elhage et al. 2021): 1 when all are positive, -1 when all are
        negative, about 0 for a random head; `own_token_first`, the share of tokens whose own
        logit gains most of all when they are attended to, by chance 1/d_vocab.

    Raises:
        InputError: an unknown embedding.

    Cost: the eigenvalues of one [d_head, d_head] matrix a head (those of A B other than 0 are
    those of B A), and, 1024 tokens at a time, one row of the token circuit for each token.
    """
    weights, A = head_weights(model), readout(model).A
    moved = torch.einsum("td,lhde->lhte", token_vectors(model, embedding), weights.W_V)
    unembedded = weights.W_O @ A
    eigenvalues = torch.linalg.eigvals(unembedded @ moved)
    ids = torch.arange(moved.shape[-2], device=moved.device)
    first = torch.zeros(moved.shape[:2], dtype=moved.dtype, device=moved.device)
    for some in ids.split(1024):
        first += (torch.argmax(moved[:, :, some] @ unembedded, dim=-1) == some).sum(-1)
    dims = ("layer", "head")
    return labelled_set(
        model,
        {
            "copying": (eigenvalues.real.sum(-1) / eigenvalues.abs().sum(-1), dims, "1"),
            "own_token_first": (first / len(ids), dims, "share of tokens"),
        },
        embedding=embedding,
    )


def direct_path(model: HookedTransformer) -> xr.DataArray:
    """What each token predicts by itself: W_E through the final LayerNorm and W_U, as log-probs.

    The path that skips every layer; at best it holds the bigram statistics of the text (Elhage et
    al. 2021). Positions are left out, and the scale is that of the embedding alone.

    Returns:
        `log_prob` [token, next_token], nats.

    Cost: d_vocab^2 numbers.
    """
    log_probs = readout(model)(model.embed.W_E.detach()).log_softmax(-1)
    return labelled(
        model,
        log_probs,
        ("token", "next_token"),
        name="log_prob",
        units="nats",
        coords={"tokens": ("token", vocabulary(model))},
    )


def check_head(model: HookedTransformer, layer: int, head: int) -> None:
    """Raises InputError unless the model has this head."""
    Site("z", layer, head).check(model.cfg, 1)


def _vectors(
    model: HookedTransformer, side: Side, embedding: Embedding
) -> Float[Tensor, "row d_model"]:
    if side not in ("tokens", "positions"):
        raise InputError(f"Side {side!r} came, but a circuit is on 'tokens' or on 'positions'.")
    return token_vectors(model, embedding) if side == "tokens" else model.pos_embed.W_pos.detach()
