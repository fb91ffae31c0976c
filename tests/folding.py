"""LayerNorm folding in float64, written out: TransformerLens' own goes through float32."""

from __future__ import annotations

import copy

import torch
from random_models import letters_tokenizer
from transformer_lens import HookedTransformer


def folded(model: HookedTransformer, *, centre_writers: bool = True) -> HookedTransformer:
    """The same function as an LNPre model.

    Gains and biases of LayerNorm go into what reads them, value biases into b_O, and, if asked
    for, the mean is taken out of everything that writes into the stream.
    """
    old = dict(model.state_dict())
    new = {k: v.clone() for k, v in old.items() if ".ln" not in k and "ln_final" not in k}

    def fold(ln: str, weight: str, bias: str) -> None:
        gain, shift = old[f"{ln}.w"], old[f"{ln}.b"]
        W = new[weight]
        new[bias] = new[bias] + torch.einsum("d,...de->...e", shift, W)
        gained = gain[:, None] * W
        new[weight] = gained - gained.mean(-2, keepdim=True)

    for layer in range(model.cfg.n_layers):
        block = f"blocks.{layer}"
        for name in "QKV":
            fold(f"{block}.ln1", f"{block}.attn.W_{name}", f"{block}.attn.b_{name}")
        values = torch.einsum("he,hed->d", new[f"{block}.attn.b_V"], new[f"{block}.attn.W_O"])
        new[f"{block}.attn.b_O"] = new[f"{block}.attn.b_O"] + values
        new[f"{block}.attn.b_V"] = torch.zeros_like(new[f"{block}.attn.b_V"])
        if not model.cfg.attn_only:
            fold(f"{block}.ln2", f"{block}.mlp.W_in", f"{block}.mlp.b_in")
    fold("ln_final", "unembed.W_U", "unembed.b_U")
    if centre_writers:
        for name, value in new.items():
            if name.rsplit(".", 1)[-1] in ("W_E", "W_pos", "W_O", "b_O", "W_out", "b_out"):
                new[name] = value - value.mean(-1, keepdim=True)

    cfg = copy.deepcopy(model.cfg)
    cfg.normalization_type = "LNPre"
    twin = HookedTransformer(cfg, tokenizer=letters_tokenizer(cfg.d_vocab), move_to_device=False)
    for name, parameter in twin.named_parameters():
        parameter.data = new[name]
        parameter.requires_grad_(False)
    return twin.eval()
