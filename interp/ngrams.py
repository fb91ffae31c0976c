"""N-gram models of a text: what short context alone predicts.

A *gram* is a run of consecutive tokens. Grams of each length are numbered in the order of their
keys; the key of a gram is the number of its prefix times d_vocab plus its last token, so keys
never overflow and all continuations of one prefix lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError


@dataclass(frozen=True, eq=False)
class NGrams:
    """How often each gram of 1 to `order` tokens occurs in a text.

    Attributes:
        d_vocab: size of the vocabulary.
        keys: for each length from 1 on, the keys of the grams that occur, ascending.
        counts: how often each of them does.
    """

    d_vocab: int
    keys: tuple[Int[Tensor, " _"], ...]
    counts: tuple[Int[Tensor, " _"], ...]

    @property
    def order(self) -> int:
        """The length of the longest grams."""
        return len(self.keys)

    def contexts(self, ids: Int[Tensor, "batch pos"]) -> list[Int[Tensor, "batch pos"]]:
        """For each context length from 0 to order - 1, the number of the gram that ends at each
        position; -1 where that gram does not occur or would begin before the prompt."""
        ids = ids.cpu()
        found = [torch.zeros_like(ids)]
        for keys in self.keys[:-1]:
            shorter = found[-1]
            before = torch.full_like(ids, -1)
            if len(found) == 1:
                before = shorter
            else:
                before[:, 1:] = shorter[:, :-1]
            key = before * self.d_vocab + ids
            at = torch.searchsorted(keys, key).clamp_max(len(keys) - 1)
            found.append(torch.where((before >= 0) & (keys[at] == key), at, -1))
        return found

    def continuations(self, gram: Int[Tensor, " row"], length: int) -> Float[Tensor, "row token"]:
        """How often each token follows each of these grams of `length` tokens (0: the empty one).

        Cost: row * d_vocab numbers.
        """
        keys, counts = self.keys[length], self.counts[length]
        bounds = torch.stack([gram, gram + 1]) * self.d_vocab
        start, stop = torch.searchsorted(keys, bounds)
        row = torch.repeat_interleave(torch.arange(len(gram)), stop - start)
        at = torch.arange(len(row)) - ((stop - start).cumsum(0) - (stop - start))[row] + start[row]
        table = torch.zeros(len(gram), self.d_vocab, dtype=torch.double)
        table[row, keys[at] % self.d_vocab] = counts[at].double()
        return table

    def probabilities(
        self, ids: Int[Tensor, "batch pos"], order: int | None = None
    ) -> Float[Tensor, "batch pos token"]:
        """What comes after each position, from the `order` - 1 tokens up to it, in float64.

        Interpolated Witten-Bell smoothing (Witten & Bell 1991; Chen & Goodman 1998, section 2.5):
        after a context h that occurs N times with T different continuations,

            p(w | h) = (count(h w) + T p(w | shorter h)) / (N + T),

        with the uniform distribution below the unigrams. Positions near the start of a row have
        shorter contexts, exactly as the model does.

        Args:
            order: from 1 (unigram) to `self.order`, the default.

        Raises:
            InputError: an order outside that range.

        Cost: order * batch * pos * d_vocab numbers.
        """
        order = self.order if order is None else order
        if not 1 <= order <= self.order:
            raise InputError(
                f"Order {order} was asked for, but grams of 1 to {self.order} tokens were "
                "counted: choose one of these or count longer ones."
            )
        return next(islice(self.by_order(ids), order - 1, None))

    def by_order(self, ids: Int[Tensor, "batch pos"]) -> Iterator[Float[Tensor, "batch pos token"]]:
        """`probabilities` of order 1, 2 ... in turn, each made from the one before."""
        shape = (*ids.shape, self.d_vocab)
        p = torch.full(shape, 1 / self.d_vocab, dtype=torch.double).flatten(0, 1)
        for length, found in enumerate(self.contexts(ids)):
            p, gram = p.clone(), found.flatten()
            known = (gram >= 0).nonzero()[:, 0]
            # Contexts repeat, most of all the empty one.
            some, row = gram[known].unique(return_inverse=True)
            table = self.continuations(some, length)
            kinds = (table > 0).sum(-1, keepdim=True)
            total = (table.sum(-1, keepdim=True) + kinds).clamp_min(1)
            # A gram that only ends the text has no continuations, and leaves p as it is.
            lower = torch.where(kinds > 0, kinds / total, 1.0)
            p[known] = (table / total)[row] + lower[row] * p[known]
            yield p.view(shape)

    def save(self, path: str | Path) -> None:
        """Write the tables as one safetensors file."""
        from safetensors.torch import save_file

        tables = {}
        for name, values in {"keys": self.keys, "counts": self.counts}.items():
            for length, table in enumerate(values, start=1):
                small = int(table.max()) < 2**31
                tables[f"{name}_{length}"] = table.to(torch.int32) if small else table
        save_file(tables, path, metadata={"d_vocab": str(self.d_vocab)})

    @classmethod
    def load(cls, path: str | Path) -> NGrams:
        """Read what `save` wrote.

        Raises:
            InputError: a file that is missing or holds something else.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                d_vocab = int(file.metadata()["d_vocab"])
                order = len(file.keys()) // 2
                keys, counts = (
                    tuple(file.get_tensor(f"{name}_{n + 1}").long() for n in range(order))
                    for name in ("keys", "counts")
                )
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{str(path)!r} came as n-gram tables, but it cannot be read as such ({error}): "
                "give a file that NGrams.save wrote."
            ) from error
        return cls(d_vocab, keys, counts)


def count_ngrams(ids: Int[Tensor, " token"], d_vocab: int, *, order: int = 5) -> NGrams:
    """Count every gram of a text.

    Args:
        ids: the text; `interp.inputs.text_ids` makes them.
        order: the length of the longest grams.

    Raises:
        InputError: a text shorter than `order`, ids outside the vocabulary, or an order below 1.

    Cost: `order` sorts of the text; about 1 s for a million characters.
    """
    if order < 1 or len(ids) < order:
        raise InputError(
            f"Grams of {order} tokens were asked for of a text of {len(ids)}: choose an order "
            "from 1 to the text's length."
        )
    if int(ids.min()) < 0 or int(ids.max()) >= d_vocab:
        raise InputError(
            f"The text holds ids from {int(ids.min())} to {int(ids.max())}, but the vocabulary "
            f"goes from 0 to {d_vocab - 1}: was it written for another tokenizer?"
        )
    ids = ids.cpu().long()
    keys, counts = [], []
    prefix = torch.zeros_like(ids)
    for length in range(1, order + 1):
        key = prefix * d_vocab + ids[length - 1 :]
        distinct, number, count = key.unique(return_inverse=True, return_counts=True)
        keys.append(distinct)
        counts.append(count)
        prefix = number[:-1]
    return NGrams(d_vocab, tuple(keys), tuple(counts))
