"""The tokenizers that stand beside other people's weights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelError
from .plain_pickle import read_plain_pickle
from .reading import Source
from .tokenizer import byte_level_bpe, load_tokenizer, vocabulary, vocabulary_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

GPT2 = "gpt2"
_BPE_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
_LARGEST = 64 * 2**20


def find_tokenizer(
    source: Source, given: str | Path | None, d_vocab: int
) -> tuple[PreTrainedTokenizerFast | None, str]:
    """The tokenizer that belongs to a checkpoint, and a sentence on it; empty when there is none.

    Raises:
        ModelError: when the one given cannot be read, or a vocabulary is larger than the embedding.
    """
    if given is not None:
        tokenizer, origin = read_tokenizer(given), str(given)
    else:
        tokenizer, origin = _beside(source)
    if tokenizer is None:
        return None, ""
    n_known = len(vocabulary(tokenizer))
    if n_known > d_vocab:
        raise ModelError(
            f"the tokenizer of {origin} has {n_known} tokens and the embedding {d_vocab} rows: "
            "give the tokenizer that the model was trained with."
        )
    padding = f", ids {n_known} to {d_vocab - 1} are padding" if n_known < d_vocab else ""
    return tokenizer, f"the tokenizer is that of {origin}{padding}"


def read_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """A tokenizer of a file, a folder, or by the name "gpt2".

    Known are a Hugging Face tokenizer.json, GPT-2's vocab.json with merges.txt beside it, a
    meta.pkl with stoi and itos, and JSON with a list of characters or their ids. A pickle is read
    without running anything. Only "gpt2" may need the network, when it is not in the cache of
    Hugging Face.

    Raises:
        ModelError: when it is none of these.
    """
    if str(path) == GPT2:
        return _gpt2()
    path = Path(path)
    if path.is_dir():
        tokenizer, _ = _in_folder(path)
        if tokenizer is None:
            raise ModelError(f"{path} holds no tokenizer: give a tokenizer.json or a meta.pkl.")
        return tokenizer
    if not path.is_file():
        raise ModelError(f"there is no tokenizer at {path}: give a tokenizer.json or a meta.pkl.")
    if path.stat().st_size > _LARGEST:
        raise ModelError(f"{path} is larger than {_LARGEST >> 20} MB: it is no vocabulary.")
    for vocab, merges in _BPE_FILES:
        if path.name in (vocab, merges) and (path.parent / merges).is_file():
            return byte_level_bpe(path.parent / vocab, path.parent / merges)
    if path.suffix == ".pkl":
        return of_vocabulary(read_plain_pickle(path.read_bytes(), path.name), path.name)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no vocabulary ({error}): give JSON or a meta.pkl.") from None
    if isinstance(value, dict) and "model" in value:
        return load_tokenizer(path)
    return of_vocabulary(value, path.name)


def of_vocabulary(value: Any, name: str) -> PreTrainedTokenizerFast:
    """A character tokenizer of a list of characters, of their ids, or of a dict that holds either.

    Raises:
        ModelError: when it is neither, or the ids are not 0, 1, 2 ... without a gap.
    """
    if isinstance(value, Mapping):
        stated = next((value[k] for k in ("itos", "stoi", "chars", "vocab") if k in value), value)
        if stated is not value:
            itos = _in_order(stated, name)
            if "stoi" in value and _in_order(value["stoi"], name) != itos:
                raise ModelError(f"stoi and itos of {name} contradict each other: write it again.")
            return vocabulary_tokenizer(itos)
    return vocabulary_tokenizer(_in_order(value, name))


def _in_order(value: Any, name: str) -> list[str]:
    """The tokens by id, of a sequence, of {id: token} or of {token: id}."""
    if isinstance(value, Mapping):
        pairs = [(k, v) if isinstance(k, int) else (v, k) for k, v in value.items()]
        by_id = {i: token for i, token in pairs if isinstance(i, int)}
        if sorted(by_id) != list(range(len(value))):
            raise ModelError(f"the ids in {name} are not 0, 1, 2 ...: give each token one id.")
        value = [by_id[i] for i in range(len(by_id))]
    is_sequence = isinstance(value, Sequence) and not isinstance(value, bytes)
    if not is_sequence or not value or not all(isinstance(token, str) for token in value):
        raise ModelError(f"{name} holds no vocabulary: give a list of characters or their ids.")
    return list(value)


def _beside(source: Source) -> tuple[PreTrainedTokenizerFast | None, str]:
    if source.rest.keys() & {"itos", "stoi", "chars"}:
        return of_vocabulary(source.rest, source.name), source.name
    if source.folder is None:
        return None, ""
    # nanoGPT keeps meta.pkl with the data, out-NAME/ckpt.pt and data/NAME/meta.pkl side by side
    dataset = source.config.get("dataset")
    if isinstance(dataset, str) and re.fullmatch(r"[\w\-]+", dataset):
        meta = source.folder.parent / "data" / dataset / "meta.pkl"
        if meta.is_file():
            return read_tokenizer(meta), str(meta)
    return _in_folder(source.folder)


def _in_folder(folder: Path) -> tuple[PreTrainedTokenizerFast | None, str]:
    names = ["tokenizer.json", *(vocab for vocab, _ in _BPE_FILES), "meta.pkl", "vocab.json"]
    merges = dict(_BPE_FILES)
    for name in names:
        alone = name not in merges or (folder / merges[name]).is_file() or name == names[-1]
        if alone and (folder / name).is_file():
            return read_tokenizer(folder / name), name
    return None, ""


def _gpt2() -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    from .tokenizer import wrap

    try:
        return wrap(AutoTokenizer.from_pretrained(GPT2).backend_tokenizer)
    except Exception as error:  # offline, no cache, a proxy: the library raises anything
        raise ModelError(
            f"GPT-2's tokenizer is neither cached nor within reach ({type(error).__name__}): "
            "give a folder with its vocab.json and merges.txt."
        ) from None
