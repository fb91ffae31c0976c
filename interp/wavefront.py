"""Many edited runs at once, recomputing only what the edits can reach.

A *row* is one edited run of one prompt. It joins the wavefront at the first site that it edits,
so nothing before that is computed; it carries only the tokens whose activations may differ from
the base run, and every value it does not carry is read from the base trace. Attention is where
an edit spreads: from there on a row carries the suffix that starts at its first changed key or
value. In the last layer only the scored positions go on.

Tokens of all rows are packed along one axis, sorted by row and then by position. Only attention
needs them padded; everything else is position by position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.forward import (
    affine,
    attention_scores,
    causal,
    centred,
    linear,
    mix_values,
    scale_of,
)
from interp.packing import EVERY, ORDER, Edit, Tokens, moment, put, taken, where_true
from interp.sites import Site, whole_site

if TYPE_CHECKING:
    from interp.engine import Trace
    from interp.weights import MLP, Block, LayerNorm


class Wavefront:
    """One batch of rows on its way through the model."""

    def __init__(
        self,
        base: Trace,
        batch: Int[Tensor, " row"],
        edits: Sequence[Edit],
        scored: Int[Tensor, " scored"],
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
        self.is_scored = torch.zeros(self.end, dtype=torch.bool, device=batch.device)
        self.is_scored[scored] = True
        self._plan_joins()
        none = torch.zeros(0, dtype=torch.long, device=batch.device)
        self.tokens = Tokens(none, none, self.end)
        self.live: dict[Site, Tensor] = {}
        self._room: dict[str, Tensor] = {}

    def _plan_joins(self) -> None:
        """Which tokens join at which moment, and from which layer on rows have own keys."""
        n_rows, device = len(self.batch), self.batch.device
        never = (self.n_layers + 1) * len(ORDER)
        first = torch.full((n_rows,), never, device=device)
        self.own_from = torch.full((n_rows,), self.n_layers + 1, device=device)
        keys = []
        for site, group in self.edits.items():
            when = moment(site, self.n_layers)
            at, stage = divmod(when, len(ORDER))
            own_from = at if stage < ORDER["q"] or site.kind in ("k", "v") else at + 1
            for edit in group:
                first[edit.row] = first[edit.row].clamp_max(when)
                self.own_from[edit.row] = self.own_from[edit.row].clamp_max(own_from)
                keys.append(edit.row * self.end + edit.pos)
        key = torch.cat(keys).unique() if keys else torch.zeros(0, dtype=torch.long, device=device)
        row, pos = key // self.end, key % self.end
        when = first[row]
        self.joins = {
            int(m): Tokens(row[when == m], pos[when == m], self.end) for m in when.unique()
        }

    def logits(self) -> Float[Tensor, "row scored d_vocab_out"]:
        """Run the rows to the end."""
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
        read = self._read("ln_final", last, weights.ln_final)
        return self._scored_logits(linear(read, weights.W_U, weights.b_U))

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
        live[pre] = linear(self._read("ln2", resid_mid, block.ln2), mlp.W_in, mlp.b_in)
        self._reach(pre)
        live[post] = mlp.act_fn(live.pop(pre))
        self._reach(post)
        live[out] = linear(live.pop(post), mlp.W_out, mlp.b_out)
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
            width = live[stream].shape[-1:]
            return F.layer_norm(live[stream], width, ln.gain, ln.shift, self.weights.cfg.eps)
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
            for name, value in self.live.items():
                self.live[name] = torch.cat([value, self._base(name, joining)])
        self._write(site, self.tokens, self.live[site])

    def _write(self, site: Site, tokens: Tokens, value: Tensor) -> None:
        for edit in self.edits.get(site, ()):
            at, here = tokens.find(edit.row * self.end + edit.pos)
            if not bool(here.all()):
                edit, at = edit.kept(here), at[here]
            value[(at, *edit.within)] = edit.value

    def _base(self, site: Site, tokens: Tokens) -> Tensor:
        """The base run's values at some tokens."""
        value = self.base.values[site]
        at = self.batch[tokens.row] * value.shape[1] + tokens.pos
        return value.flatten(0, 1).index_select(0, at)

    def _attend(self, layer: int, block: Block, read: Float[Tensor, "token d_model"]) -> None:
        """From what attention reads to z, on the tokens at which z may have changed."""
        live, last = self.live, layer == self.n_layers - 1
        q_at, k_at, v_at = (whole_site(kind, layer) for kind in "qkv")
        heads = (self.weights.cfg.n_heads, self.weights.cfg.d_head)
        width = heads[0] * heads[1]
        W_Q, W_KV = block.W_QKV[:, :width], block.W_QKV[:, width:]
        b_Q, b_KV = block.b_QKV[:width], block.b_QKV[width:]
        live[k_at], live[v_at] = linear(read, W_KV, b_KV).unflatten(-1, (2, *heads)).unbind(-3)
        # In the last layer only scored positions go on, so only their queries are needed.
        asked = where_true(self.is_scored[self.tokens.pos]) if last else EVERY
        q = read.new_zeros(len(read), width) if asked is not EVERY else read
        live[q_at] = put(q, asked, linear(taken(read, asked), W_Q, b_Q)).unflatten(-1, heads)
        for site in (q_at, k_at, v_at):
            self._reach(site)

        changed, k, v = self.tokens, live.pop(k_at), live.pop(v_at)
        own = self.own_from <= layer
        self._grow_to(self._queries(changed, own, last))
        q = live.pop(q_at)
        z = torch.empty_like(q)
        is_own = own[self.tokens.row]
        shared = where_true(~is_own)
        if isinstance(shared, slice) or len(shared):
            tokens = self.tokens.kept(~is_own)
            K, V = (self.base.values[site][:, : self.end] for site in (k_at, v_at))
            group = self.batch[tokens.row]
            z = put(z, shared, self._spell_out(layer, block, tokens, taken(q, shared), group, K, V))
        if shared is not EVERY:
            mine = where_true(own[changed.row])
            rows, slot_of = self._numbered(taken(changed.row, mine))
            at = slot_of[taken(changed.row, mine)] * self.end + taken(changed.pos, mine)
            K, V = (self._copies(site, rows) for site in (k_at, v_at))
            K.flatten(0, 1).index_copy_(0, at, taken(k, mine))
            V.flatten(0, 1).index_copy_(0, at, taken(v, mine))
            edited = torch.zeros_like(own)
            for kind in ("attn_scores", "pattern"):
                for edit in self.edits.get(whole_site(kind, layer), ()):
                    edited[edit.row] = True
            for attend, among in ((self._fused, ~edited), (self._spell_out, edited)):
                mask = is_own & among[self.tokens.row]
                some = where_true(mask)
                if isinstance(some, slice) or len(some):
                    tokens = self.tokens if some is EVERY else self.tokens.kept(mask)
                    group = slot_of[tokens.row]
                    z = put(z, some, attend(layer, block, tokens, taken(q, some), group, K, V))
        live[whole_site("z", layer)] = z

    def _copies(self, site: Site, rows: Int[Tensor, " own"]) -> Tensor:
        """A copy of the base run's keys or values for each row, in memory that layers share:
        fresh memory costs more than what is written to it."""
        value, batch = self.base.values[site][:, : self.end], self.batch[rows]
        if site.kind not in self._room:
            self._room[site.kind] = value.new_empty(len(self.batch), *value.shape[1:])
        return torch.index_select(value, 0, batch, out=self._room[site.kind][: len(rows)])

    def _grow_to(self, tokens: Tokens) -> None:
        """Carry these tokens from here on: what was not carried before is the base run's."""
        before, self.tokens = self.tokens, tokens
        if tokens is before:
            return
        at, here = tokens.find(before.key)
        kept = where_true(here)
        for site, value in self.live.items():
            grown = self._base(site, tokens)
            grown.index_copy_(0, taken(at, kept), taken(value, kept))
            self.live[site] = grown

    def _numbered(self, row: Int[Tensor, " token"]) -> tuple[Tensor, Tensor]:
        """The rows that occur, and the place of each row among them."""
        occurs = torch.zeros_like(self.batch, dtype=torch.bool)
        occurs[row] = True
        return occurs.nonzero().squeeze(-1), occurs.cumsum(0) - 1

    def _queries(self, changed: Tokens, own: Bool[Tensor, " row"], last: bool) -> Tokens:
        """The tokens at which z may have changed: for a row with keys or values of its own every
        token from the first of them on, for others just the tokens that changed."""
        row, pos, n_pos = changed.row, changed.pos, changed.n_pos
        is_first = torch.ones_like(row, dtype=torch.bool)
        is_first[1:] = row[1:] != row[:-1]
        is_first &= own[row]
        rows, start = row[is_first], pos[is_first]
        places = self.scored if last else torch.arange(n_pos, device=row.device)
        reached = places[None, :] >= start[:, None]
        own_row = rows[:, None].expand(-1, len(places))[reached]
        own_pos = places[None, :].expand(len(rows), -1)[reached]
        shared = ~own[row]
        if last:
            shared &= self.is_scored[pos]
        if shared.any():
            key = torch.cat([own_row * n_pos + own_pos, changed.key[shared]]).sort().values
            return Tokens(key // n_pos, key % n_pos, n_pos)
        if not last and len(own_row) == len(changed):
            return changed
        return Tokens(own_row, own_pos, n_pos)

    def _fused(
        self,
        layer: int,
        block: Block,
        tokens: Tokens,
        q: Float[Tensor, "token head d_head"],
        group: Int[Tensor, " token"],
        K: Float[Tensor, "group key head d_head"],
        V: Float[Tensor, "group key head d_head"],
    ) -> Float[Tensor, "token head d_head"]:
        """Attention of rows that each have their own keys and values."""
        used = torch.zeros(self.end, dtype=torch.bool, device=q.device)
        used[tokens.pos] = True
        places, slot = used.nonzero().squeeze(-1), used.cumsum(0) - 1
        at = group * len(places) + slot[tokens.pos]
        padded = q.new_zeros(len(K) * len(places), *q.shape[1:]).index_copy_(0, at, q)
        visible = causal(self.end, q.device)[places]
        out = F.scaled_dot_product_attention(
            padded.unflatten(0, (len(K), len(places))).transpose(1, 2),
            K.transpose(1, 2),
            V.transpose(1, 2),
            attn_mask=None if visible.all() else visible,
            scale=1 / block.attn_scale,
        )
        return out.transpose(1, 2).flatten(0, 1).index_select(0, at)

    def _spell_out(
        self,
        layer: int,
        block: Block,
        tokens: Tokens,
        q: Float[Tensor, "token head d_head"],
        group: Int[Tensor, " token"],
        K: Float[Tensor, "group key head d_head"],
        V: Float[Tensor, "group key head d_head"],
    ) -> Float[Tensor, "token head d_head"]:
        """Attention through its scores and pattern, which edits may overwrite. Tokens of one
        group look at the same keys and values."""
        order = group.argsort(stable=True)
        count = torch.bincount(group, minlength=len(K))
        slot = torch.empty_like(group)
        slot[order] = torch.arange(len(group), device=group.device)
        slot -= (count.cumsum(0) - count)[group]
        n_slots = int(count.max())
        padded = q.new_zeros(len(K), n_slots, *q.shape[1:])
        padded[group, slot] = q
        pos = group.new_zeros(len(K), n_slots)
        pos[group, slot] = tokens.pos
        visible = torch.arange(self.end, device=q.device) <= pos[..., None]
        scores = attention_scores(padded, K, visible, block.attn_scale)
        packed = scores.transpose(1, 2)[group, slot]
        self._write(whole_site("attn_scores", layer), tokens, packed)
        packed = packed.softmax(dim=-1)
        self._write(whole_site("pattern", layer), tokens, packed)
        pattern = q.new_zeros(len(K), n_slots, *packed.shape[1:])
        pattern[group, slot] = packed
        return mix_values(pattern.transpose(1, 2), V)[group, slot]

    def _scored_logits(
        self, logits: Float[Tensor, "token d_vocab_out"]
    ) -> Float[Tensor, "row scored d_vocab_out"]:
        n_rows, n_scored = len(self.batch), len(self.scored)
        if len(logits) == n_rows * n_scored:
            return logits.unflatten(0, (n_rows, n_scored))
        out = self.base.logits_at(self.scored)[self.batch]
        place = torch.zeros(self.end, dtype=torch.long, device=logits.device)
        place[self.scored] = torch.arange(n_scored, device=logits.device)
        out[self.tokens.row, place[self.tokens.pos]] = logits
        return out
