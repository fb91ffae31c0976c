from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model import ModelError, character_tokenizer, load_tokenizer
from model.tokenizer import (
    PAD_TOKEN,
    decode,
    encode,
    is_character_tokenizer,
    tokenizer_json,
    vocabulary,
    vocabulary_tokenizer,
)

ODD = "a  b\n\n\t<pad>$[*]&amp;\r\né\u200b\U0001f600<|endoftext|>"


@given(st.text(min_size=1))
def test_every_text_comes_back(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    if not text:
        return
    tokenizer = character_tokenizer(text)
    ids = encode(tokenizer, text)
    assert len(ids) == len(text)
    assert decode(tokenizer, ids) == text
    assert vocabulary(tokenizer) == sorted(set(text))


def test_bulk_encoding_is_the_tokenizers_own() -> None:
    tokenizer = character_tokenizer(ODD)
    assert encode(tokenizer, ODD).tolist() == tokenizer(ODD)["input_ids"]
    assert tokenizer.pad_token_id == len(set(ODD))


def test_a_text_that_spells_a_special_token_is_only_text() -> None:
    tokenizer = character_tokenizer(PAD_TOKEN)
    assert len(tokenizer(PAD_TOKEN)["input_ids"]) == len(PAD_TOKEN)


def test_a_tokenizer_survives_its_file(tmp_path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(character_tokenizer(ODD)))
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert is_character_tokenizer(again)
    assert vocabulary(again) == sorted(set(ODD))
    assert encode(again, ODD).tolist() == encode(character_tokenizer(ODD), ODD).tolist()


@pytest.mark.parametrize("text", ["abcX", "X", "ab\U0001f600"])
def test_an_unknown_character_is_named_with_its_position(text: str) -> None:
    tokenizer = character_tokenizer("abc")
    with pytest.raises(ModelError, match=rf"position {len(text) - 1} is not in the vocabulary"):
        encode(tokenizer, text)


def byte_level_bpe():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["to be or not to be that is the question"], trainer)
    return tokenizer


def test_byte_level_bpe_reads_everything(tmp_path) -> None:
    byte_level_bpe().save(str(tmp_path / "bpe.json"))
    tokenizer = load_tokenizer(tmp_path / "bpe.json")
    assert not is_character_tokenizer(tokenizer)
    ids = encode(tokenizer, "to be\n\n é\U0001f600")
    assert len(ids) < len("to be\n\n é\U0001f600".encode())
    assert decode(tokenizer, ids) == "to be\n\n é\U0001f600"
    assert ids.dtype == torch.long


def test_a_bpe_that_would_drop_a_character_is_refused(tmp_path) -> None:
    from tokenizers import Tokenizer, decoders, models

    bpe = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    bpe.decoder = decoders.Fuse()
    bpe.save(str(tmp_path / "bpe.json"))
    tokenizer = load_tokenizer(tmp_path / "bpe.json")
    assert encode(tokenizer, "ab").tolist() == [0, 1]
    with pytest.raises(ModelError, match=r"'z' \(U\+007A\) at position 1"):
        encode(tokenizer, "azb")


def test_what_is_no_vocabulary_is_refused(tmp_path) -> None:
    with pytest.raises(ModelError, match="the text is empty"):
        character_tokenizer("")
    with pytest.raises(ModelError, match="entry 1 of the vocabulary, 'bc'"):
        vocabulary_tokenizer(["a", "bc"])
    with pytest.raises(ModelError, match="holds 'a' twice"):
        vocabulary_tokenizer(["a", "b", "a"])
    with pytest.raises(ModelError, match="there is no tokenizer at"):
        load_tokenizer(tmp_path / "none.json")
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(ModelError, match="is not a Hugging Face tokenizer"):
        load_tokenizer(tmp_path / "odd.json")
