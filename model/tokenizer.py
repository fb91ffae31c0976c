"""Character and BPE tokenizers, all of them Hugging Face fast tokenizers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from .errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

PAD_TOKEN = "<pad>"
"""TransformerLens needs one special token; this one gets an id past the vocabulary, so it can
never be mistaken for text."""


def character_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """One token for each distinct character of `text`, ids in code point order.

    It has no unknown token: a character outside the vocabulary is an error, never a guess.

    Raises:
        ModelError: when the text is empty.
    """
    if not text:
        raise ModelError("the text is empty: a character vocabulary needs at least one character.")
    return vocabulary_tokenizer(sorted(set(text)))


def vocabulary_tokenizer(characters: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token for each of `characters`, its id being its place.

    Raises:
        ModelError: when an entry is not exactly one character or comes twice.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    for i, character in enumerate(characters):
        if len(character) != 1:
            raise ModelError(
                f"entry {i} of the vocabulary, {character!r}, is not one character: "
                "a character vocabulary has one for each id."
            )
    ids = {character: i for i, character in enumerate(characters)}
    if len(ids) != len(characters):
        twice = next(c for i, c in enumerate(characters) if ids[c] != i)
        raise ModelError(f"the vocabulary holds {twice!r} twice: give each character one id.")
    tokenizer = Tokenizer(models.WordLevel(ids))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # type: ignore[assignment]
    tokenizer.decoder = decoders.Fuse()  # type: ignore[assignment]
    return wrap(tokenizer)


def id_tokenizer(d_vocab: int) -> PreTrainedTokenizerFast:
    """For a model whose tokens nobody knows: token 7 is written, and read, as "[7]"."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"[{i}]": i for i in range(d_vocab)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\[\d+\]"), "isolated")  # type: ignore[assignment]
    tokenizer.decoder = decoders.Fuse()  # type: ignore[assignment]
    return wrap(tokenizer)


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a `tokenizer.json`.

    Raises:
        ModelError: when the file is missing or is not a Hugging Face tokenizer.
    """
    from tokenizers import Tokenizer

    path = Path(path)
    if not path.is_file():
        raise ModelError(f"there is no tokenizer at {path}: give a Hugging Face tokenizer.json.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(
            f"{path} is not a Hugging Face tokenizer.json ({error}): "
            "write one with `tokenizer.save(...)`."
        ) from None
    return wrap(tokenizer)


def byte_level_bpe(vocab: str | Path, merges: str | Path) -> PreTrainedTokenizerFast:
    """GPT-2's kind of tokenizer, of its two files.

    Raises:
        ModelError: when a file is missing or is something else.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(
            f"{vocab} and {merges} are no byte-level BPE ({error}): give GPT-2's two files."
        ) from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return wrap(tokenizer)


def tokenizer_json(tokenizer: PreTrainedTokenizerFast) -> str:
    """What `load_tokenizer` reads back to the same tokenizer."""
    return tokenizer.backend_tokenizer.to_str(pretty=True)


def vocabulary(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The string that each id stands for, in the order of ids, without the pad token."""
    size = _vocabulary_size(tokenizer)
    return [decode(tokenizer, [i]) for i in range(size)]


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> Int[Tensor, " pos"]:
    """The ids of `text`; nothing is prepended, dropped or replaced.

    Characters are looked up in bulk, about 20 million a second.

    Raises:
        ModelError: when a character is outside the vocabulary; it names the character and its
            position.
    """
    if is_character_tokenizer(tokenizer):
        return _encode_characters(tokenizer, text)
    ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False, verbose=False))
    # a tokenizer may drop or replace what it does not know; reading the ids back shows it
    read_back = decode(tokenizer, ids)
    if read_back != text:
        pairs = zip(text, read_back, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(read_back))
        raise unknown_character(text, min(same, len(text) - 1))
    return ids


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int] | Int[Tensor, " pos"]) -> str:
    """The text of `ids`, exactly."""
    text = tokenizer.decode(
        torch.as_tensor(ids).tolist(),
        skip_special_tokens=False,
        clean_up_tokenization_spaces=False,
    )
    assert isinstance(text, str)
    return text


def is_character_tokenizer(tokenizer: PreTrainedTokenizerFast) -> bool:
    from tokenizers import models

    backend = tokenizer.backend_tokenizer
    if not isinstance(backend.model, models.WordLevel) or backend.normalizer is not None:
        return False
    if backend.pre_tokenizer is None:
        return False
    state = json.loads(backend.pre_tokenizer.__getstate__())
    return state.get("type") == "Split" and state.get("pattern") == {"String": ""}


def unknown_character(text: str, position: int) -> ModelError:
    character = text[position]
    return ModelError(
        f"the character {character!r} (U+{ord(character):04X}) at position {position} is not in "
        "the vocabulary: leave it out, or use a model trained on text that has it."
    )


def _encode_characters(tokenizer: PreTrainedTokenizerFast, text: str) -> Int[Tensor, " pos"]:
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    known = vocabulary(tokenizer)
    table = np.full(max(map(ord, known)) + 2, -1, dtype=np.int64)
    table[[ord(character) for character in known]] = np.arange(len(known))
    ids = table[np.minimum(points, len(table) - 1)]
    if (ids < 0).any():
        raise unknown_character(text, int((ids < 0).argmax()))
    return torch.from_numpy(ids)


def _vocabulary_size(tokenizer: PreTrainedTokenizerFast) -> int:
    return len(tokenizer) - (PAD_TOKEN in tokenizer.get_added_vocab())


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """A backend tokenizer as TransformerLens wants one, with nothing that changes a text."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,  # and no bos_token: TransformerLens would ask the network for it
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # a text that spells a special token is still only text
    )
