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

from interp.attending import OwnKeys, fused, spelled_out
from interp.forward import affine, centred, linear, project_qkv, scale_of
from interp.packing import EVERY, ORDER, Edit, Tokens, moment, put, taken, where_true
from interp.sites import Site, whole_site

if TYPE_CHECKING:
    from interp.engine import Trace
    from interp.weights import MLP, Block, LayerNorm


# Bytes of keys that attention looks at together, and tokens that an MLP reads together: what is
# larger does not stay in the cache, and memory fresh from the system costs more than what is
# written to it.
_KEYS, _TOKENS = 2**19, 512


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
        none = torch.zeros(0, dtype=torch.long, device=device)
        # A query's many keys stand side by side: sorting needs only one of them.
        key = torch.cat([none, *keys]).unique_consecutive().unique()
        row, pos = key // self.end, key % self.end
        # Rows come in the order of their first edit, so what joins together lies together.
        when, count = first[row].unique_consecutive(return_counts=True)
        parts = zip(
            when.tolist(), row.split(count.tolist()), pos.split(count.tolist()), strict=True
        )
        self.joins = {when: Tokens(row, pos, self.end) for when, row, pos in parts}

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
            live[out] = torch.cat([mlp(some) for some in read.split(_TOKENS)])
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
        live[q_at], live[k_at], live[v_at] = self._qkv(block, read, last)
        for site in (q_at, k_at, v_at):
            self._reach(site)

        changed = self.tokens
        own = OwnKeys(changed.row, changed.pos, live.pop(k_at), live.pop(v_at))
        self._grow_to(self._queries(changed, self.own_from <= layer, last))
        live[whole_site("z", layer)] = self._mixed(layer, block, live.pop(q_at), own)

    def _qkv(
        self, block: Block, read: Float[Tensor, "token d_model"], last: bool
    ) -> tuple[Float[Tensor, "token head d_head"], ...]:
        """Queries, keys and values. In the last layer only scored positions go on, so only their
        queries are needed."""
        cfg = self.weights.cfg
        asked = where_true(self.is_scored[self.tokens.pos]) if last else EVERY
        if asked is EVERY:
            return project_qkv(read, block, cfg.n_heads)
        heads = (cfg.n_heads, cfg.d_head)
        width = cfg.n_heads * cfg.d_head
        some = linear(taken(read, asked), block.W_QKV[:, :width], block.b_QKV[:width])
        q = put(read.new_zeros(len(read), width), asked, some)
        kv = linear(read, block.W_QKV[:, width:], block.b_QKV[width:])
        return q.unflatten(-1, heads), *kv.unflatten(-1, (2, *heads)).unbind(-3)

    def _mixed(
        self, layer: int, block: Block, q: Float[Tensor, "token head d_head"], own: OwnKeys
    ) -> Float[Tensor, "token head d_head"]:
        """What each token's heads read; `own` are the rows' keys and values, and its `token` is
        the row."""
        tokens = self.tokens
        if not len(tokens):
            return q
        K, V = (self.base.values[whole_site(kind, layer)][:, : self.end] for kind in "kv")
        if layer == self.n_layers - 1 and len(self.scored) == 1:
            # One token of each row asks: what it sees in place of the base run's keys is less
            # than a copy of all of them.
            _, place = self._numbered(tokens.row)
            own = OwnKeys(place[own.token], own.pos, own.k, own.v)
            return self._attended(layer, block, tokens, q, self.batch[tokens.row], K, V, own)
        has_own = self.own_from <= layer
        mine = has_own[tokens.row]
        alone, among = where_true(mine), where_true(~mine)
        z = torch.empty_like(q)
        if isinstance(among, slice) or len(among):
            some = tokens.at(among)
            group = self.batch[some.row]
            z = put(z, among, self._attended(layer, block, some, taken(q, among), group, K, V))
        if isinstance(alone, slice) or len(alone):
            theirs = where_true(has_own[own.token])
            parts = (taken(part, theirs) for part in (own.token, own.pos, own.k, own.v))
            some, own = tokens.at(alone), OwnKeys(*parts)
            z = put(z, alone, self._row_by_row(layer, block, some, taken(q, alone), own, K, V))
        return z

    def _row_by_row(
        self,
        layer: int,
        block: Block,
        tokens: Tokens,
        q: Float[Tensor, "token head d_head"],
        own: OwnKeys,
        K_base: Float[Tensor, "batch key head d_head"],
        V_base: Float[Tensor, "batch key head d_head"],
    ) -> Float[Tensor, "token head d_head"]:
        """Attention of rows that each look at a copy of the base run's keys and values with their
        own written into it, as many rows at a time as the cache holds."""
        rows, place = self._numbered(own.token)
        asks, has = place[tokens.row], place[own.token]
        step = max(1, _KEYS // (K_base[0].numel() * K_base.element_size()))
        bounds = torch.arange(0, len(rows) + step, step, device=q.device)
        of_q, of_k = (torch.searchsorted(at, bounds).tolist() for at in (asks, has))
        edited = self._edited_in_attention(layer)
        z = torch.empty_like(q)
        for i, some in enumerate(rows.split(step)):
            here, theirs = slice(*of_q[i : i + 2]), slice(*of_k[i : i + 2])
            at = (has[theirs] - i * step) * self.end + own.pos[theirs]
            K, V = (base.index_select(0, self.batch[some]) for base in (K_base, V_base))
            K.flatten(0, 1).index_copy_(0, at, own.k[theirs])
            V.flatten(0, 1).index_copy_(0, at, own.v[theirs])
            group, asking = asks[here] - i * step, tokens.at(here)
            if edited.isdisjoint(some.tolist()):
                z[here] = fused(q[here], asking.pos, group, K, V, block.attn_scale)
            else:
                z[here] = self._attended(layer, block, asking, q[here], group, K, V)
        return z

    def _edited_in_attention(self, layer: int) -> set[int]:
        """The rows that edit scores or pattern of a layer."""
        sites = (whole_site(kind, layer) for kind in ("attn_scores", "pattern"))
        rows = [edit.row.unique() for site in sites for edit in self.edits.get(site, ())]
        return set(torch.cat(rows).tolist()) if rows else set()

    def _attended(
        self,
        layer: int,
        block: Block,
        tokens: Tokens,
        q: Float[Tensor, "token head d_head"],
        group: Int[Tensor, " token"],
        K: Float[Tensor, "group key head d_head"],
        V: Float[Tensor, "group key head d_head"],
        own: OwnKeys | None = None,
    ) -> Float[Tensor, "token head d_head"]:
        """Attention with the edits of its scores and pattern."""

        def write(kind: str, value: Tensor) -> None:
            self._write(whole_site(kind, layer), tokens, value)

        return spelled_out(q, tokens.pos, group, K, V, block.attn_scale, write, own)

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
        is_own = own[row]
        is_first = is_own.clone()
        is_first[1:] &= row[1:] != row[:-1]
        rows, start = row[is_first], pos[is_first]
        if not last and bool(is_own.all()) and int((n_pos - start).sum()) == len(row):
            return changed
        places = self.scored if last else torch.arange(n_pos, device=row.device)
        of, at = (places >= start[:, None]).nonzero(as_tuple=True)
        own_row, own_pos = rows[of], places[at]
        shared = ~is_own
        if last:
            shared &= self.is_scored[pos]
        if not shared.any():
            return Tokens(own_row, own_pos, n_pos)
        key = torch.cat([own_row * n_pos + own_pos, changed.key[shared]]).sort().values
        return Tokens(key // n_pos, key % n_pos, n_pos)

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
