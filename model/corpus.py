"""Text -> token files, memory-mapped -> seeded batches.

A corpus is a folder, as nanoGPT has it:

    train.bin, val.bin    token ids, uint16 (uint32 when the vocabulary needs it), nothing else
    tokenizer.json        or nanoGPT's meta.pkl; neither means ids without text

`tokenise` makes one from text. Text is UTF-8 and taken as it stands, carriage returns included;
several files are joined in order with nothing between them; a byte-order mark at the head of a
file is dropped; a byte that is not UTF-8 is an error that names its place.
"""

from __future__ import annotations

import codecs
import dataclasses
import hashlib
import os
import pickle
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from .errors import ModelError
from .files import read_json, write_atomically, write_json, write_text
from .gpt import IGNORE_INDEX
from .tokenizer import (
    character_tokenizer,
    encode,
    load_tokenizer,
    tokenizer_json,
    vocabulary,
    vocabulary_tokenizer,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TINY_SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
CACHE = "ORRERY_CACHE"
"""The environment variable that moves the folder for downloads and token files."""

TRAIN, VALIDATION, TOKENIZER, META = "train.bin", "val.bin", "tokenizer.json", "meta.pkl"
MADE_FROM = "made_from.json"
"""What the token files of a text were made from, as a hash."""
PIECE = SCAN = 1 << 22
"""Bytes of text and of token files read at a time: a corpus larger than memory passes through."""

Batch = tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]
"""Ids, and for each position the id that follows it."""


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A folder of token files, opened and checked once; nothing of it is held in memory."""

    folder: Path
    dtype: type[np.unsignedinteger]
    n_train: int
    n_val: int
    largest_id: int
    sha256: str
    """of the ids and the vocabulary"""
    d_vocab: int | None
    """how many ids the vocabulary has; None when the corpus is ids without text"""
    tokenizer: PreTrainedTokenizerFast | None
    source: Mapping[str, Any]
    """where it came from, see `sources.open_source`"""

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
        """Reads every id once, to hash the corpus and to find the largest.

        Raises:
            ModelError: when a file is missing, of odd length or too short to predict from, or an
                id is outside the vocabulary.
        """
        folder = Path(folder)
        for name in (TRAIN, VALIDATION):
            if not (folder / name).is_file():
                raise ModelError(
                    f"{folder / name} is missing: a corpus folder holds {TRAIN} and {VALIDATION}."
                )
        tokenizer = _folder_tokenizer(folder)
        size = len(vocabulary(tokenizer)) if tokenizer is not None else None
        dtype = np.uint32 if size is not None and size > 1 << 16 else np.uint16
        digest = hashlib.sha256(tokenizer_json(tokenizer).encode() if tokenizer else b"")
        counts, largest = [], 0
        for name in (TRAIN, VALIDATION):
            path = folder / name
            n_bytes = path.stat().st_size
            if n_bytes % np.dtype(dtype).itemsize:
                raise ModelError(
                    f"{path} has {n_bytes} bytes, which are no whole {dtype.__name__}."
                )
            counts.append(n_bytes // np.dtype(dtype).itemsize)
            digest.update(f"{name} {n_bytes}\n".encode())
            with path.open("rb") as file:
                while piece := file.read(SCAN):
                    digest.update(piece)
                    largest = max(largest, int(np.frombuffer(piece, dtype).max()))
        if size is not None and largest >= size:
            raise ModelError(
                f"{folder} holds the id {largest} and its vocabulary ends at {size - 1}: "
                f"the token files and {TOKENIZER} are of different corpora."
            )
        if min(counts) < 2:
            raise ModelError(f"{folder} holds no two tokens to predict from: give a longer text.")
        return cls(
            folder=folder,
            dtype=dtype,
            n_train=counts[0],
            n_val=counts[1],
            largest_id=largest,
            sha256=digest.hexdigest(),
            d_vocab=size,
            tokenizer=tokenizer,
            source={"folder": str(folder)},
        )

    def check_context(self, n_ctx: int) -> None:
        if self.n_train <= n_ctx:
            raise ModelError(
                f"the training text has {self.n_train} tokens and the context is n_ctx={n_ctx}: "
                "give a longer text, or a shorter context."
            )

    def batch(self, step: int, *, n_windows: int, n_ctx: int, seed: int) -> Batch:
        """Windows at random places of the training split, fixed by `seed` and `step` alone."""
        rng = np.random.default_rng((seed, step))
        starts = rng.integers(self.n_train - n_ctx, size=n_windows)
        # a map opened for each batch: the pages of one kept open would count as ours for ever
        return _shifted(self._map(TRAIN)[starts[:, None] + np.arange(n_ctx + 1)])

    def validation(self, *, n_windows: int, n_ctx: int) -> Iterator[Batch]:
        """The validation split, every position a target once, in windows of n_ctx side by side.

        The last window is filled up with targets that the loss ignores.
        """
        for start in range(0, self.n_val - 1, n_windows * n_ctx):
            ids = self._map(VALIDATION)[start : start + n_windows * n_ctx + 1]
            n_targets = len(ids) - 1
            padding = -n_targets % n_ctx
            x = np.pad(ids[:-1].astype(np.int64), (0, padding))
            y = np.pad(ids[1:].astype(np.int64), (0, padding), constant_values=IGNORE_INDEX)
            yield torch.from_numpy(x.reshape(-1, n_ctx)), torch.from_numpy(y.reshape(-1, n_ctx))

    def validation_sample(self, *, n_windows: int, n_ctx: int) -> Iterator[Batch]:
        """At most `n_windows` windows, evenly spread over the validation split."""
        if self.n_val <= n_ctx:
            yield from self.validation(n_windows=1, n_ctx=n_ctx)
            return
        starts = np.linspace(0, self.n_val - 1 - n_ctx, num=n_windows).astype(np.int64)
        yield _shifted(self._map(VALIDATION)[np.unique(starts)[:, None] + np.arange(n_ctx + 1)])

    def describe(self) -> dict[str, Any]:
        """What a run keeps of its corpus: enough to know it again."""
        return {"sha256": self.sha256, "train_tokens": self.n_train, "val_tokens": self.n_val}

    def _map(self, name: str) -> np.memmap:
        return np.memmap(self.folder / name, dtype=self.dtype, mode="r")


def tokenise(
    files: Sequence[str | Path],
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    val_fraction: float = 0.1,
    folder: str | Path | None = None,
) -> Corpus:
    """The corpus of UTF-8 text files, its last `val_fraction` of characters for validation.

    Args:
        tokenizer: one token a character of the text when not given.
        folder: where the token files go, and are found again for the same text, tokenizer and
            split; a folder of the cache when not given.

    Raises:
        ModelError: when a file is missing, is not UTF-8 or is empty, or holds a character that
            the tokenizer lacks, or when `folder` holds other tokens.
    """
    if not 0 < val_fraction < 1:
        raise ModelError(f"val_fraction={val_fraction} is not a number between 0 and 1.")
    paths = [Path(file) for file in files]
    digest, characters, n_characters = hashlib.sha256(), set[str](), 0
    for piece in _pieces(paths, digest.update):
        characters.update(piece)
        n_characters += len(piece)
    cut = int(n_characters * (1 - val_fraction))
    if min(cut, n_characters - cut) < 2:
        raise ModelError(
            f"{paths[0]} holds {n_characters} characters, too few to train on and to validate "
            "with: give a longer text."
        )
    tokenizer = tokenizer or character_tokenizer("".join(characters))
    spelling = tokenizer_json(tokenizer)
    digest.update(f"{val_fraction}\n{spelling}".encode())
    made_from = {"sha256": digest.hexdigest()}
    cached = cache_folder() / "corpora" / made_from["sha256"][:16]
    folder = cached if folder is None else Path(folder)
    if not (folder / MADE_FROM).is_file():
        if folder != cached and (folder / TRAIN).exists():
            raise ModelError(f"{folder} holds token files already: choose an empty folder.")
        write_text(folder / TOKENIZER, spelling)
        _write_tokens(paths, tokenizer, cut, folder)
        write_json(folder / MADE_FROM, made_from)  # last, so a folder that has it is whole
    elif read_json(folder / MADE_FROM) != made_from:
        raise ModelError(
            f"{folder} holds the tokens of another text, tokenizer or split: choose an empty "
            "folder."
        )
    source = {"text": [str(path) for path in paths], "val_fraction": val_fraction}
    return dataclasses.replace(Corpus.open(folder), source=source)


def tiny_shakespeare() -> Path:
    """The text file of tiny Shakespeare, downloaded into the cache the first time.

    Raises:
        ModelError: when it cannot be downloaded, or is not the known text.
    """
    path = cache_folder() / "tinyshakespeare.txt"
    if not path.exists():
        try:
            with urllib.request.urlopen(TINY_SHAKESPEARE, timeout=30) as response:
                text = response.read()
        except OSError as error:
            raise ModelError(
                f"tiny Shakespeare cannot be downloaded ({error}): fetch {TINY_SHAKESPEARE} "
                "yourself and give it with --text FILE."
            ) from None
        _check_shakespeare(text, TINY_SHAKESPEARE)
        with write_atomically(path) as beside:
            beside.write_bytes(text)
    _check_shakespeare(path.read_bytes(), str(path))
    return path


def cache_folder() -> Path:
    if CACHE in os.environ:
        return Path(os.environ[CACHE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orrery"


def _check_shakespeare(text: bytes, source: str) -> None:
    found = hashlib.sha256(text).hexdigest()
    if found != TINY_SHAKESPEARE_SHA256:
        raise ModelError(
            f"{source} is not tiny Shakespeare (SHA-256 {found}, expected "
            f"{TINY_SHAKESPEARE_SHA256}): remove it, or give a text with --text FILE."
        )


def _shifted(windows: np.ndarray) -> Batch:
    ids = torch.from_numpy(windows.astype(np.int64))
    return ids[:, :-1], ids[:, 1:]


def _pieces(
    paths: Sequence[Path], on_bytes: Callable[[bytes], Any] = lambda _: None
) -> Iterator[str]:
    """The text in pieces that end where a line ends, so that a tokenizer sees no torn word."""
    for path in paths:
        try:
            with path.open("rb") as file:
                yield from _file_pieces(path, file, on_bytes)
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({error.strerror or error}).") from None


def _file_pieces(path: Path, file: IO[bytes], on_bytes: Callable[[bytes], Any]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest, consumed, last = "", 0, False
    while not last:
        read = file.read(PIECE)
        on_bytes(read)
        last = len(read) < PIECE
        pending = len(decoder.getstate()[0])  # bytes of a character that the last piece cut
        try:
            text = decoder.decode(read, final=last)
        except UnicodeDecodeError as error:
            raise ModelError(
                f"{path} is not UTF-8 (byte {consumed - pending + error.start}): "
                "save it as UTF-8 text."
            ) from None
        rest += text.removeprefix("\ufeff") if consumed == 0 else text
        consumed += len(read)
        whole = len(rest) if last else rest.rfind("\n") + 1
        if len(rest) - whole > 4 * PIECE:  # a line too long to wait for
            whole = len(rest)
        if whole:
            yield rest[:whole]
            rest = rest[whole:]


def _write_tokens(
    paths: Sequence[Path], tokenizer: PreTrainedTokenizerFast, cut: int, folder: Path
) -> None:
    """Characters before `cut` to the training file, the others to the validation file."""
    dtype = np.uint32 if len(vocabulary(tokenizer)) > 1 << 16 else np.uint16
    done = 0
    with (
        write_atomically(folder / TRAIN) as train_path,
        write_atomically(folder / VALIDATION) as val_path,
        train_path.open("wb") as train,
        val_path.open("wb") as val,
    ):
        for piece in _pieces(paths):
            n_train = max(0, cut - done)
            for file, part in ((train, piece[:n_train]), (val, piece[n_train:])):
                if part:
                    file.write(_encode_part(tokenizer, part, done).astype(dtype).tobytes())
                done += len(part)


def _encode_part(tokenizer: PreTrainedTokenizerFast, part: str, offset: int) -> np.ndarray:
    try:
        return encode(tokenizer, part).numpy()
    except ModelError as error:
        if offset == 0:
            raise
        raise ModelError(f"counting from character {offset} of the text, {error}") from None


def _folder_tokenizer(folder: Path) -> PreTrainedTokenizerFast | None:
    if (folder / TOKENIZER).is_file():
        return load_tokenizer(folder / TOKENIZER)
    if (folder / META).is_file():
        return vocabulary_tokenizer(read_meta(folder / META))
    return None


class _PlainUnpickler(pickle.Unpickler):
    """Numbers, strings and containers only: whatever would import or call is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_meta(path: str | Path) -> list[str]:
    """The characters of nanoGPT's `meta.pkl` in the order of their ids, without running anything.

    Raises:
        ModelError: when the file holds anything but plain values, or no vocabulary.
    """
    try:
        with Path(path).open("rb") as file:
            meta = _PlainUnpickler(file).load()
        return [meta["itos"][i] for i in range(len(meta["itos"]))]
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ModelError(
            f"{path} is not nanoGPT's vocabulary ({error}): it needs the plain dictionary 'itos', "
            f"or put a {TOKENIZER} in its place."
        ) from None
