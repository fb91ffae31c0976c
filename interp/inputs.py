"""Text or token ids in, checked token ids out. Nothing is guessed, cut, padded or prepended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer

Input: TypeAlias = (
    str | Sequence[str] | Sequence[SupportsIndex] | Sequence[Sequence[SupportsIndex]] | Tensor
)


@dataclass(frozen=True, eq=False)
class Contrast:
    """Two batches of prompts of one shape, compared position by position.

    The base run receives activations from the source run. With the clean prompt as source and
    the corrupt one as base the call denoises; `reversed()` turns it round and noises
    (Heimersheim & Nanda 2024, arXiv:2404.15255).
    """

    source: Int[Tensor, "batch pos"]
    base: Int[Tensor, "batch pos"]

    def reversed(self) -> Contrast:
        """The same pair with source and base exchanged."""
        return Contrast(source=self.base, base=self.source)

    @property
    def first_difference(self) -> Int[Tensor, " batch"]:
        """The first position at which each pair differs. What lies before it is equal in both
        runs, everywhere in a causal model."""
        return (self.source != self.base).int().argmax(dim=1)


def to_ids(model: HookedTransformer, input: Input) -> Int[Tensor, "batch pos"]:
    """Token ids of one prompt or of several equally long ones, on the model's device.

    Args:
        model: its tokenizer reads text; its n_ctx and d_vocab bound what may come.
        input: one text, several texts, ids of one prompt, or ids as [batch, pos].

    Raises:
        InputError: empty input, a character outside the vocabulary (named, with its position),
            prompts of unequal length, a prompt longer than n_ctx, an id outside the vocabulary.
    """
    ids = _as_tensor(model, input)
    if ids.ndim == 1:
        ids = ids[None]
    n_ctx, d_vocab = model.cfg.n_ctx, model.cfg.d_vocab
    if ids.ndim != 2:
        raise InputError(
            f"Token ids came with {ids.ndim} axes, but [pos] or [batch, pos] is allowed: "
            "reshape them."
        )
    if ids.numel() == 0:
        raise InputError("The prompt is empty, but at least one token is needed: give some text.")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(
            f"Token ids came as {ids.dtype}, but they are whole numbers: convert them with .long()."
        )
    if ids.shape[1] > n_ctx:
        raise InputError(
            f"The prompt has {ids.shape[1]} tokens, but the model reads at most {n_ctx}: "
            "shorten it."
        )
    least, most = ids.aminmax()
    if least < 0 or most >= d_vocab:
        row, pos = (int(i) for i in ((ids < 0) | (ids >= d_vocab)).nonzero()[0])
        raise InputError(
            f"Token id {int(ids[row, pos])} at position {pos} of prompt {row} is outside the "
            f"vocabulary: ids go from 0 to {d_vocab - 1}."
        )
    return ids.to(device=model.cfg.device, dtype=torch.long)


def text_ids(model: HookedTransformer, text: str) -> Int[Tensor, " pos"]:
    """Token ids of a text of any length, on the CPU: what `interp.corpus` cuts into windows.

    Raises:
        InputError: a character outside the vocabulary, named with its position.
    """
    return torch.tensor(_encode(model, text), dtype=torch.long)


def contrast(model: HookedTransformer, source: Input, base: Input) -> Contrast:
    """Two inputs as a Contrast, after checking that they can be compared.

    Raises:
        InputError: whatever `to_ids` raises; different shapes; a pair of equal prompts.
    """
    source_ids, base_ids = to_ids(model, source), to_ids(model, base)
    if source_ids.shape != base_ids.shape:
        (n, t), (m, u) = source_ids.shape, base_ids.shape
        raise InputError(
            f"Source holds {n} prompts of {t} tokens and base {m} of {u}, but patching compares "
            "them position by position: give pairs of equal token length."
        )
    equal = (source_ids == base_ids).all(dim=1)
    if equal.any():
        raise InputError(
            f"Source and base of pair {int(equal.nonzero()[0])} are the same prompt, so there is "
            "nothing to patch: change at least one token."
        )
    return Contrast(source_ids, base_ids)


def to_id(model: HookedTransformer, token: str | int) -> int:
    """The id of one token, such as a target; text must be exactly one token.

    Raises:
        InputError: an id outside the vocabulary, or text that is not one token.
    """
    ids = to_ids(model, token if isinstance(token, str) else [token])
    if ids.shape[1] != 1:
        pieces = token_strings(model, ids[0])
        raise InputError(
            f"{token!r} is {ids.shape[1]} tokens ({', '.join(map(repr, pieces))}), but a target is "
            "exactly one: choose one of them."
        )
    return int(ids)


_STRINGS: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()


def token_strings(model: HookedTransformer, ids: Int[Tensor, " pos"]) -> list[str]:
    """The text of each token id by itself; the id's digits when the model has no tokenizer."""
    if model.tokenizer is None:
        return [str(i) for i in ids.tolist()]
    # The same tokens are named again and again, and a tokenizer takes its time: each is read once.
    wanted, known = ids.tolist(), _STRINGS.setdefault(model.tokenizer, {})
    if new := [[i] for i in dict.fromkeys(wanted) if i not in known]:
        decoded = model.tokenizer.batch_decode(new, clean_up_tokenization_spaces=False)
        # An id that has no token yet may get one.
        known.update((i, text) for (i,), text in zip(new, decoded, strict=True) if text)
    return [known.get(i, "") for i in wanted]


def without_padding(
    model: HookedTransformer, scores: Float[Tensor, "*rows token"]
) -> Float[Tensor, "*rows token"]:
    """Minus infinity for the ids that stand for no token: rows that pad the embedding to a round
    size have logits too, and must never be shown as what the model says comes next."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return scores
    named = set(tokenizer.get_vocab().values())
    if isinstance(pad := tokenizer.pad_token_id, int) and pad >= tokenizer.vocab_size:
        named.discard(pad)  # added for TransformerLens, not of the model
    padding = [id for id in range(model.cfg.d_vocab) if id not in named]
    if not padding:
        return scores
    at = torch.tensor(padding, device=scores.device)
    return scores.index_fill(-1, at, -torch.inf)


def vocabulary(model: HookedTransformer) -> list[str]:
    """The text of every token, in the order of the ids. About half a second for GPT-2's 50257."""
    return token_strings(model, torch.arange(model.cfg.d_vocab))


def _as_tensor(model: HookedTransformer, input: Input) -> Tensor:
    if isinstance(input, Tensor):
        return input
    if isinstance(input, str):
        return torch.tensor(_encode(model, input), dtype=torch.long)
    if not len(input):
        return torch.zeros(0, dtype=torch.long)
    if all(isinstance(item, str) for item in input):
        rows = [_encode(model, cast(str, text)) for text in input]
        empty = [i for i, row in enumerate(rows) if not row]
        if empty:
            raise InputError(
                f"Prompt {empty[0]} is empty, but at least one token is needed: give some text."
            )
        return _rectangle(rows)
    if all(isinstance(item, Integral) and not isinstance(item, bool) for item in input):
        return torch.tensor(input, dtype=torch.long)
    if all(isinstance(item, Sequence) and not isinstance(item, str) for item in input):
        rows = [list(cast(Sequence[int], row)) for row in input]
        if all(isinstance(i, Integral) and not isinstance(i, bool) for row in rows for i in row):
            return _rectangle(rows)
    raise InputError(
        f"The prompt came as {type(input).__name__}, but text, a list of texts, or whole-number "
        "ids as a list or tensor is allowed."
    )


def _rectangle(rows: list[list[int]]) -> Tensor:
    lengths = [len(row) for row in rows]
    if len(set(lengths)) > 1:
        raise InputError(
            f"The prompts have {', '.join(map(str, lengths))} tokens, but one batch holds prompts "
            "of equal length (nothing is padded): run them one by one or cut them."
        )
    return torch.tensor(rows, dtype=torch.long)


def _encode(model: HookedTransformer, text: str) -> list[int]:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("The model has no tokenizer, so text cannot be read: give token ids.")
    try:
        ids = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    except Exception as error:  # the tokenizers library raises bare Exception
        raise InputError(_unknown(text, _first_unreadable(tokenizer, text))) from error
    # Some tokenizers drop what they do not know or write an unknown token for it. Reading the
    # ids back is the one check that sees all of these.
    read_back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if read_back != text:
        same = next(
            (i for i, (a, b) in enumerate(zip(text, read_back, strict=False)) if a != b),
            min(len(text), len(read_back)),
        )
        raise InputError(_unknown(text, same))
    return ids


def _first_unreadable(tokenizer, text: str) -> int:
    for position, character in enumerate(text):
        try:
            tokenizer(character, add_special_tokens=False, verbose=False)
        except Exception:  # the tokenizers library raises bare Exception
            return position
    return 0


def _unknown(text: str, position: int) -> str:
    return (
        f"Character {text[position : position + 1]!r} at position {position} of the prompt is not "
        "in the model's vocabulary: remove or replace it."
    )
