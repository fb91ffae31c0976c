"""Where training data comes from, in words that a run can keep and find again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .corpus import Corpus, tiny_shakespeare, tokenise
from .errors import ModelError
from .repeats import RepeatedTokens
from .tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHARACTERS, GPT2 = "characters", "gpt2"


Data = Corpus | RepeatedTokens
"""What training can run on."""


def open_source(
    source: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast | None = None
) -> Data:
    """The data that a source names.

    Args:
        source: `{"corpus": "tinyshakespeare"}`, `{"text": [files]}`, both with a `val_fraction`
            if not 0.1; `{"folder": a folder of token files}`; or `{"task": "induction"}`.
        tokenizer: for text; one token a character when not given.

    Raises:
        ModelError: when it cannot be read; see `Corpus.open` and `tokenise`.
    """
    if source.get("task") == "induction":
        return RepeatedTokens()
    if "folder" in source:
        return Corpus.open(source["folder"])
    files = source["text"] if "text" in source else [tiny_shakespeare()]
    corpus = tokenise(files, tokenizer, val_fraction=source.get("val_fraction", 0.1))
    return dataclasses.replace(corpus, source=dict(source))


def named_tokenizer(name: str) -> PreTrainedTokenizerFast | None:
    """None for 'characters' (the text decides), GPT-2's BPE for 'gpt2', else a tokenizer.json.

    Raises:
        ModelError: when GPT-2's tokenizer is neither cached nor downloadable, or there is no such
            file.
    """
    if name == CHARACTERS:
        return None
    if name != GPT2 or Path(GPT2).is_file():
        return load_tokenizer(name)
    from huggingface_hub import hf_hub_download

    try:
        return load_tokenizer(hf_hub_download("openai-community/gpt2", "tokenizer.json"))
    except ModelError:
        raise
    except Exception as error:  # the library raises many kinds
        reason = str(error).split("\n")[0]
        raise ModelError(
            f"GPT-2's tokenizer cannot be had ({reason}): connect once to download it, or give its "
            "tokenizer.json with --tokenizer FILE."
        ) from None
