"""Many edited runs at once, recomputing only what the edits can reach.

A *row* is one edited run of one prompt. It joins the wavefront at the first site that it edits,
so nothing before that is computed; it carries only the tokens whose activations may differ from
the base run, and every value it does not carry is read from the base trace. Attention is where
an edit spreads: from there on a row carries the suffix that starts at its first changed key or
value. In the last layer only the scored positions go on. Rows whose first edit lies inside
attention join at z (see `interp.entering`).

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
from interp.entering import made_of_z
from interp.forward import affine, centred, layer_norm, linear, project_qkv, scale_of
from interp.packing import (
    EVERY,
    IN_ATTENTION,
    ORDER,
    SOFTMAX,
    Edit,
    Tokens,
    first_moments,
    joined,
    moment,
    on,
    put,
    taken,
    where_true,
    write,
)
from interp.sites import Site, whole_site

if TYPE_CHECKING:
    from interp.engine import Trace
    from interp.weights import MLP, Block, LayerNorm


# The most tokens that an MLP reads together: what is larger does not stay in the cache, and memory
# fresh from the system costs more than what is written to it.
_TOKENS = 512


class Wavefront:
    """One batch of rows on its way through the model."""

    def __init__(
        self,
        base: Trace,
        batch: Int[np.ndarray, " row"],
        edits: Sequence[Edit],
        scored: Int[np.ndarray, " scored"],
    ) -> None:
        """
        Args:
            base: a trace that kept what the edits read, see `interp.replay.sites_read`.
            batch: which prompt of `base` each row edits. Rows must come in the order of their
                first edit (see `moment`).
            edits: what the rows change; every cell must be able to reach a scored position.
            scored: the positions whose logits are wanted, ascending.
        """
        self.base, self.weights, self.batch, self.scored = base, base.weights, batch, scored
        self.n_layers = len(base.weights.blocks)
        self.end = int(scored[-1]) + 1
        self.edits: dict[Site, list[Edit]] = {}
        for edit in edits:
            self.edits.setdefault(edit.site, []).append(edit)
        self.is_scored = np.zeros(self.end, dtype=bool)
        self.is_scored[scored] = True
        self._plan_joins(first_moments(edits, len(batch), self.n_layers))
        none = np.zeros(0, dtype=np.int64)
        self.tokens = Tokens(none, none, self.end)
        self.live: dict[Site, Tensor] = {}

    def _plan_joins(self, first: Int[np.ndarray, " row"]) -> None:
        """Which tokens join at which moment, where `first` is when each row is first edited."""
        self._enter_at_z(first)
        edits = (edit for of_site in self.edits.values() for edit in of_site)
        tokens = Tokens.edited(edits, len(self.batch), self.end)
        # Rows come in the order of their first edit, so what joins together lies together.
        when = first[tokens.row]
        starts = [0, *(np.diff(when).nonzero()[0] + 1), len(when)]
        self.joins = {
            int(when[start]): tokens.at(slice(start, stop))
            for start, stop in pairwise(starts)
            if start < stop
        }

    def _enter_at_z(self, first: Int[np.ndarray, " row"]) -> None:
        """Let rows that would join inside attention join at z, with what they make of it."""
        starting: dict[str, list[Edit]] = {}
        for site in [site for site in self.edits if site.kind in IN_ATTENTION]:
            edits, self.edits[site] = self.edits[site], []
            for edit in edits:
                starts = first[edit.row] == moment(site, self.n_layers)
                n_starting = int(starts.sum())
                if n_starting == len(starts):
                    starting.setdefault(site.kind, []).append(edit)
                elif n_starting == 0:
                    self.edits[site].append(edit)
                else:
                    starting.setdefault(site.kind, []).append(edit.kept(starts))
                    self.edits[site].append(edit.kept(~starts))
        if starting:
            layer = first // len(ORDER)
            made = made_of_z(self.base, self.batch, layer, starting, self.scored)
            for at, edit in made.items():
                z = whole_site("z", at)
                self.edits[z] = [edit, *self.edits.get(z, ())]
                first[first == moment(whole_site("q", at), self.n_layers)] = moment(
                    z, self.n_layers
                )

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
        start = min(self.joins, default=0) // len(ORDER)
        empty = weights.W_E.new_zeros(0, weights.W_E.shape[1])
        live[embed], live[pos_embed] = empty, empty
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
            self.tokens = self.tokens.followed_by(joining)
            at = self._in_base(joining)
            for name, value in self.live.items():
                self.live[name] = torch.cat([value, self._base(name, at)])
        write(self.edits.get(site, ()), self.tokens, self.live[site])

    def _in_base(self, tokens: Tokens) -> Int[Tensor, " token"]:
        """Where some tokens stand among those of the base run."""
        n_pos = self.base.ids.shape[1]
        return on(self.base.ids.device, self.batch[tokens.row] * n_pos + tokens.pos)

    def _base(self, site: Site, at: Int[Tensor, " token"]) -> Tensor:
        """The base run's values at these places."""
        return self.base.values[site].flatten(0, 1).index_select(0, at)

    def _attend(self, layer: int, block: Block, read: Float[Tensor, "token d_model"]) -> None:
        """From what attention reads to z, on the tokens at which z may have changed."""
        live, cfg, last = self.live, self.weights.cfg, layer == self.n_layers - 1
        if not len(self.tokens):
            live[whole_site("z", layer)] = read.new_zeros(0, cfg.n_heads, cfg.d_head)
            return
        q_at, k_at, v_at = (whole_site(kind, layer) for kind in "qkv")
        # In the last layer only scored positions go on, so only their queries are needed.
        asked = where_true(self.is_scored[self.tokens.pos]) if last else EVERY
        asking = self.tokens.at(asked)
        q, live[k_at], live[v_at] = self._qkv(block, read, asked)
        write(self.edits.get(q_at, ()), asking, q)
        for site in (k_at, v_at):
            self._reach(site)
        own = OwnKeys(self.tokens, live.pop(k_at), live.pop(v_at))
        self._grow_to(self.tokens.onwards(self.scored if last else None))
        q = self._carried(q_at, q, asking)
        live[whole_site("z", layer)] = self._mixed(layer, block, q, own)

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
        self, layer: int, block: Block, q: Float[Tensor, "token head d_head"], own: OwnKeys
    ) -> Float[Tensor, "token head d_head"]:
        """What each token's heads read; every row has keys and values of its own."""
        tokens, end = self.tokens, self.end
        K, V = (self.base.values[whole_site(kind, layer)][:, :end] for kind in "kv")
        edits = {kind: self.edits.get(whole_site(kind, layer), ()) for kind in SOFTMAX}
        one_asks = layer == self.n_layers - 1 and len(self.scored) == 1
        if one_asks and 3 * len(own.at) < 2 * end * len(tokens):
            # What rows see in place of the base run's keys takes less time than a copy of all keys.
            group = self.batch[tokens.row]
            return spelled_out(q, tokens, group, K, V, block.attn_scale, edits, own)
        rows = self.batch[: tokens.row[-1] + 1]
        return row_by_row(q, tokens, own, rows, K, V, block.attn_scale, edits)

    def _grow_to(self, tokens: Tokens) -> None:
        """Carry these tokens from here on."""
        before, self.tokens = self.tokens, tokens
        for site, value in self.live.items():
            self.live[site] = self._carried(site, value, before)

    def _carried(self, site: Site, value: Float[Tensor, "some ..."], some: Tokens) -> Tensor:
        """What the carried tokens hold, where `value` is known of some; of others it is the base
        run's."""
        if some is self.tokens or np.array_equal(some.key, self.tokens.key):
            return value
        at, here = self.tokens.find(some.key)
        kept = where_true(here)
        return put(self._base(site, self._in_base(self.tokens)), at[kept], taken(value, kept))

    def _scored_logits(
        self, logits: Float[Tensor, "token d_vocab_out"]
    ) -> Float[Tensor, "row scored d_vocab_out"]:
        n_rows, n_scored = len(self.batch), len(self.scored)
        if len(logits) == n_rows * n_scored:
            return logits.unflatten(0, (n_rows, n_scored))
        device = logits.device
        out = self.base.logits_at(on(device, self.scored))[on(device, self.batch)]
        place = np.zeros(self.end, dtype=np.int64)
        place[self.scored] = np.arange(n_scored)
        at = self.tokens.row * n_scored + place[self.tokens.pos]
        out.flatten(0, 1).index_copy_(0, on(device, at), logits)
        return out
