"""Many edited runs at once, recomputing only what the edits can reach.

A *row* is one edited run of one prompt. It joins the wavefront at the first site that it edits,
so nothing before that is computed; it carries only the tokens whose activations may differ from
the base run, and every value it does not carry is read from there (see `interp.base_run`).
Attention is where an edit spreads: from there on a row carries the suffix that starts at its
first changed key or value. In the last layer only the scored positions go on.

Tokens of all rows are packed along one axis, sorted by row and then by position. Only attention
needs them padded; everything else is position by position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attending import OwnKeys, row_by_row, spelled_out
from interp.base_run import BaseRun
from interp.entering import Known, entering
from interp.forward import affine, centred, layer_norm, linear, project_qkv, scale_of
from interp.packing import (
    EVERY,
    ORDER,
    SOFTMAX,
    Edit,
    Tokens,
    distinct,
    joined,
    moment,
    on,
    taken,
    where_true,
    write,
)
from interp.sites import Site, whole_site

if TYPE_CHECKING:
    from interp.weights import MLP, Block, LayerNorm


# The most tokens that an MLP reads together: what is larger does not stay in the cache, and memory
# fresh from the system costs more than what is written to it.
_TOKENS = 1024


class Wavefront:
    """One batch of rows on its way through the model."""

    def __init__(
        self,
        base: BaseRun,
        batch: Int[np.ndarray, " row"],
        edits: Sequence[Edit],
        first: Int[np.ndarray, " row"],
        scored: Int[np.ndarray, " scored"],
    ) -> None:
        """
        Args:
            base: the runs that are edited.
            batch: which prompt each row edits. The base's own rows come first, the others in the
                order of their first edit.
            edits: what the rows change; every cell must be able to reach a scored position.
            first: the moment of each row's first edit.
            scored: the positions whose logits are wanted, ascending.
        """
        self.base, self.weights, self.batch, self.scored = base, base.weights, batch, scored
        self.n_layers = len(base.weights.blocks)
        self.end = int(scored[-1]) + 1
        rest, self.entering = entering(
            edits, first, scored, self.n_layers, self.weights.cfg.n_heads
        )
        self.edits: dict[Site, list[Edit]] = {}
        for edit in rest:
            self.edits.setdefault(edit.site, []).append(edit)
        self.is_scored = np.zeros(self.end, dtype=bool)
        self.is_scored[scored] = True
        self.joins = self._joins(rest, first)
        self.tokens, embed, pos_embed = base.begin()
        self.live: dict[Site, Tensor] = {
            whole_site("embed"): embed,
            whole_site("pos_embed"): pos_embed,
        }

    def _joins(self, edits: Sequence[Edit], first: Int[np.ndarray, " row"]) -> dict[int, Tokens]:
        """Which tokens join at which moment. Rows come in the order of their first edit, so what
        joins together lies together."""
        keys = [edit.key(self.end) for edit in edits]
        first = first.copy()
        for layer, lanes in self.entering.items():
            keys.append(lanes.key)
            first[lanes.row] = moment(whole_site("z", layer), self.n_layers)
        tokens = Tokens.of(distinct(keys, len(self.batch) * self.end), self.end)
        when = first[tokens.row]
        starts = [0, *(np.diff(when).nonzero()[0] + 1), len(when)]
        return {
            int(when[start]): tokens.at(slice(start, stop))
            for start, stop in pairwise(starts)
            if start < stop
        }

    def logits(self) -> Float[Tensor, "row scored d_vocab_out"]:
        """Run the rows to the end."""
        weights = self.weights
        with torch.inference_mode():
            final = self._final()
        return self._scored_logits(linear(final, weights.W_U, weights.b_U))

    def _final(self) -> Float[Tensor, "token d_model"]:
        """What the unembedding reads."""
        weights, live = self.weights, self.live
        embed, pos_embed = whole_site("embed"), whole_site("pos_embed")
        # Nothing is carried before the first row joins, unless the base's own are.
        start = 0 if len(self.tokens) else min(self.joins, default=0) // len(ORDER)
        self._reach(embed)
        self._reach(pos_embed)
        x = live.pop(embed) + live.pop(pos_embed)
        for layer in range(start, self.n_layers):
            x = self._block(layer, x)
        last = whole_site("resid_post", self.n_layers - 1)
        live[last] = x
        return self._read("ln_final", last, weights.ln_final)

    def _block(self, layer: int, x: Float[Tensor, "token d_model"]) -> Tensor:
        block, live = self.weights.blocks[layer], self.live
        resid_pre, z, attn_out = (
            whole_site(kind, layer) for kind in ("resid_pre", "z", "attn_out")
        )
        live[resid_pre] = x
        self._reach(resid_pre)
        self._attend(layer, block, self._read("ln1", resid_pre, block.ln1))
        self._reach(z)
        live[attn_out] = linear(live.pop(z).flatten(-2), block.W_O, block.b_O)
        self._reach(attn_out)
        x = live.pop(resid_pre) + live.pop(attn_out)
        if block.mlp is not None:
            x = self._mlp(layer, block, block.mlp, x)
        resid_post = whole_site("resid_post", layer)
        live[resid_post] = x
        self._reach(resid_post)
        return live.pop(resid_post)

    def _mlp(self, layer: int, block: Block, mlp: MLP, x: Float[Tensor, "token d_model"]) -> Tensor:
        live = self.live
        resid_mid, pre, post, out = (
            whole_site(kind, layer) for kind in ("resid_mid", "mlp_pre", "mlp_post", "mlp_out")
        )
        live[resid_mid] = x
        self._reach(resid_mid)
        read = self._read("ln2", resid_mid, block.ln2)
        if self._concerned(pre) or self._concerned(post):
            live[pre] = linear(read, mlp.W_in, mlp.b_in)
            self._reach(pre)
            live[post] = mlp.act_fn(live.pop(pre))
            self._reach(post)
            live[out] = linear(live.pop(post), mlp.W_out, mlp.b_out)
        else:
            n_parts = math.ceil(len(read) / _TOKENS) or 1
            live[out] = joined([mlp(some) for some in read.tensor_split(n_parts)])
        self._reach(out)
        return live.pop(resid_mid) + live.pop(out)

    def _read(self, name: str, stream: Site, ln: LayerNorm | None) -> Tensor:
        """What a sublayer reads from the stream, through its LayerNorm."""
        live = self.live
        if ln is None:
            return live[stream]
        layer = None if name == "ln_final" else stream.layer
        scale, norm = whole_site(f"{name}_scale", layer), whole_site(f"{name}_normalized", layer)
        if not self._concerned(scale) and not self._concerned(norm):
            return layer_norm(live[stream], ln, self.weights.cfg.eps)
        live[scale] = scale_of(centred(live[stream]), self.weights.cfg.eps)
        self._reach(scale)
        live[norm] = centred(live[stream]) / live.pop(scale)
        self._reach(norm)
        return affine(live.pop(norm), ln)

    def _concerned(self, site: Site) -> bool:
        """Whether some row starts here or edits this site."""
        return site in self.edits or moment(site, self.n_layers) in self.joins

    def _reach(self, site: Site) -> None:
        """Arrive at a site: rows that start here join with the base run's values, then edits of
        this site are written."""
        joining = self.joins.pop(moment(site, self.n_layers), None)
        if joining is not None:
            held = self.base.held(self.tokens, joining)
            self.tokens = self.tokens.followed_by(joining)
            for name, value in self.live.items():
                self.live[name] = torch.cat([value, held(name, value)])
        write(self.edits.get(site, ()), self.tokens, self.live[site])

    def _attend(self, layer: int, block: Block, read: Float[Tensor, "token d_model"]) -> None:
        """From what attention reads to z, on the tokens at which z may have changed."""
        live, last = self.live, layer == self.n_layers - 1
        q_at, k_at, v_at, z_at = (whole_site(kind, layer) for kind in "qkvz")
        # In the last layer only scored positions go on, so only their queries are needed.
        asked = where_true(self.is_scored[self.tokens.pos]) if last else EVERY
        asking = self.tokens.at(asked)
        q, k, v = self._qkv(block, read, asked)
        write(self.edits.get(q_at, ()), asking, q)
        write(self.edits.get(k_at, ()), self.tokens, k)
        write(self.edits.get(v_at, ()), self.tokens, v)
        if layer in self.entering:
            known = Known(asking, q), Known(self.tokens, k), Known(self.tokens, v)
            lanes, scale = self.entering[layer], block.attn_scale
            made = lanes.made_of_z(self.base, self.batch, scale, *known)
            # A row's own edit of z comes after what it makes of z.
            self.edits[z_at] = [made, *self.edits.get(z_at, ())]
        if not len(self.tokens):
            live[z_at] = q
            return
        own = OwnKeys(self.tokens, k, v)
        prompts = self.base.whole(k_at, k), self.base.whole(v_at, v)
        before, self.tokens = self.tokens, self.tokens.onwards(self.scored if last else None)
        if asking is before:
            live[q_at] = q
            self._carry(live, before)
            q = live.pop(q_at)
        else:
            self._carry(live, before)
            held = {q_at: q}
            self._carry(held, asking)
            q = held[q_at]
        live[z_at] = self._mixed(layer, block, q, own, *prompts)

    def _qkv(
        self, block: Block, read: Float[Tensor, "token d_model"], asked: np.ndarray | slice
    ) -> tuple[Float[Tensor, "_ head d_head"], ...]:
        """Queries of the tokens that ask, keys and values of all."""
        cfg = self.weights.cfg
        if isinstance(asked, slice):
            return project_qkv(read, block, cfg.n_heads)
        heads = (cfg.n_heads, cfg.d_head)
        width = cfg.n_heads * cfg.d_head
        q = linear(taken(read, asked), block.W_QKV[:, :width], block.b_QKV[:width])
        kv = linear(read, block.W_QKV[:, width:], block.b_QKV[width:])
        return q.unflatten(-1, heads), *kv.unflatten(-1, (2, *heads)).unbind(-3)

    def _mixed(
        self,
        layer: int,
        block: Block,
        q: Float[Tensor, "token head d_head"],
        own: OwnKeys,
        K: Float[Tensor, "prompt key head d_head"],
        V: Float[Tensor, "prompt key head d_head"],
    ) -> Float[Tensor, "token head d_head"]:
        """What each token's heads read; every row has keys and values of its own."""
        tokens, n_scored = self.tokens, len(self.scored)
        last = layer == self.n_layers - 1
        edits = {kind: self.edits.get(whole_site(kind, layer), ()) for kind in SOFTMAX}
        if last and n_scored == 1 and 3 * len(own.at) < 2 * self.end * len(tokens):
            # What rows see in place of the base run's keys takes less time than a copy of all keys.
            group = self.batch[tokens.row]
            return spelled_out(q, tokens, group, K, V, block.attn_scale, edits, own)
        rows = self.batch[: tokens.row[-1] + 1]
        return row_by_row(q, tokens, own, rows, K, V, block.attn_scale, edits, self.base.n_rows)

    def _carry(self, values: dict[Site, Tensor], known: Tokens) -> None:
        """Turn what sites hold at the known tokens into what they hold at the carried ones."""
        if known is self.tokens or np.array_equal(known.key, self.tokens.key):
            return
        held = self.base.held(known, self.tokens)
        for site, value in values.items():
            values[site] = held(site, value)

    def _scored_logits(
        self, logits: Float[Tensor, "token d_vocab_out"]
    ) -> Float[Tensor, "row scored d_vocab_out"]:
        n_rows, n_scored = len(self.batch), len(self.scored)
        if len(logits) == n_rows * n_scored:
            return logits.unflatten(0, (n_rows, n_scored))
        device = logits.device
        out = self.base.logits(self.scored, logits)[on(device, self.batch)]
        place = np.zeros(self.end, dtype=np.int64)
        place[self.scored] = np.arange(n_scored)
        at = self.tokens.row * n_scored + place[self.tokens.pos]
        out.flatten(0, 1).index_copy_(0, on(device, at), logits)
        return out
