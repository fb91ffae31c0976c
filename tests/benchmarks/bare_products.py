"""The part of a sweep's time that no exact answer does without: its matrix products.

The base run, and the source run and each row from its layer on at the tokens where it differs, in
the last layer with queries and MLP at the last position only: the products with W_QKV, W_O, W_in
and W_out and the activation function, back to back on the same numbers, which therefore stay in
the cache. Attention, LayerNorm, additions, gathering, and finding out what to compute come on top.
The count is that of torch's FLOP counter on `activation_patching`, to within two parts in a
hundred, where all rows go through the model together.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from interp.weights import Weights

# Tokens that are read together: more of them leave the cache and take longer.
_TOKENS = 512


def changed_tokens(
    kind: str, by_pos: bool, layer: int, age: int, n: int, n_heads: int
) -> tuple[int, int]:
    """How many tokens differ before and after attention, over all rows that begin at `layer`, in
    the block `age` layers on; `n` positions come after the changed token or are it."""
    suffixes = n * (n + 1) // 2 if by_pos else n
    if kind == "resid_pre":  # by position; in layer 0 there is only the changed token to patch
        begun, spread = (n, suffixes) if layer else (1, n)
    else:  # layer 0's queries differ at the changed token only
        begun = n_heads if kind == "q" and layer == 0 else n * n_heads
        spread = suffixes * n_heads
    stages = [(0, begun), (begun, spread), (spread, spread)]
    return stages[min(age + (kind == "resid_pre"), 2)]


@torch.inference_mode()
def bare_products(
    weights: Weights, kinds: Collection[str], over: Collection[str], n_pos: int, n: int
) -> None:
    """Compute them and return nothing; `n` as above."""
    cfg = weights.cfg
    numbers = torch.zeros(_TOKENS, max(cfg.d_model, cfg.n_heads * cfg.d_head))

    def products(n_tokens: int, W: torch.Tensor, b: torch.Tensor) -> None:
        for start in range(0, n_tokens, _TOKENS):
            some = numbers[: min(_TOKENS, n_tokens - start), : len(W)]
            torch.addmm(b, some, W)

    by_pos, last, width = "pos" in over, cfg.n_layers - 1, cfg.n_heads * cfg.d_head
    n_rows = len(kinds) * (n if by_pos else 1) * (cfg.n_heads if "head" in over else 1)
    for layer, block in enumerate(weights.blocks):
        counts = [
            changed_tokens(kind, by_pos, began, layer - began, n, cfg.n_heads)
            for kind in kinds
            for began in range(layer + 1)
        ]
        before, after = map(sum, zip(*counts, strict=True))
        # The base run, and the source run where it differs from it.
        before += n_pos + (n if layer else 1)
        after += n_pos + n
        if layer == last:
            after = min(after, n_rows * cfg.n_layers + 2)
            products(before, block.W_QKV[:, width:], block.b_QKV[width:])
            products(after, block.W_QKV[:, :width], block.b_QKV[:width])
        else:
            products(before, block.W_QKV, block.b_QKV)
        products(after, block.W_O, block.b_O)
        assert block.mlp is not None
        for start in range(0, after, _TOKENS):
            block.mlp(numbers[: min(_TOKENS, after - start), : cfg.d_model])
