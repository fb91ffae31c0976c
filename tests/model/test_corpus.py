"""Text to tokens to batches, against plain Python on the whole text."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
import tiny_training as tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

import model.corpus as corpus_module
from model.corpus import Corpus, read_meta, tiny_shakespeare, tokenise
from model.errors import ModelError
from model.gpt import IGNORE_INDEX
from model.tokenizer import decode


def corpus_of(tmp_path, data: bytes, **settings) -> Corpus:
    (tmp_path / "text.txt").write_bytes(data)
    return tokenise([tmp_path / "text.txt"], folder=tmp_path / "tokens", **settings)


def whole_text(corpus: Corpus) -> str:
    ids = np.concatenate(
        [np.fromfile(corpus.folder / f, corpus.dtype) for f in ("train.bin", "val.bin")]
    )
    return decode(corpus.tokenizer, torch.from_numpy(ids.astype(np.int64)))


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=30, max_size=200),
    st.integers(1, 40),
)
def test_tokens_spell_the_text_whatever_the_pieces_it_is_read_in(tmp_path_factory, text, piece):
    text = "x" + text  # a byte-order mark in front would go
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "PIECE", piece)
        corpus = corpus_of(tmp_path_factory.mktemp("corpus"), text.encode())
        assert whole_text(corpus) == text
        assert corpus.n_train == int(len(text) * 0.9)
        assert corpus.d_vocab == len(set(text))


def test_line_ends_stay_as_they_are_and_a_byte_order_mark_goes(tmp_path):
    text = "\ufeffone\r\ntwo\rthree\nfour and a good deal more\n"
    assert whole_text(corpus_of(tmp_path, text.encode())) == text[1:]


def test_files_are_joined_in_order_with_nothing_between(tmp_path):
    for name, text in (("b", "\ufeffsecond half, long enough"), ("a", "first half, long enough;")):
        (tmp_path / name).write_text(text)
    corpus = tokenise([tmp_path / "a", tmp_path / "b"], folder=tmp_path / "tokens")
    assert whole_text(corpus) == "first half, long enough;second half, long enough"


def test_a_byte_that_is_not_utf8_is_named_by_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "PIECE", 7)
    data = "äöü".encode() * 9 + b"\xff" + b"more"
    with pytest.raises(ModelError, match=r"not UTF-8 \(byte 54\)"):
        corpus_of(tmp_path, data)
    with pytest.raises(ModelError, match=r"not UTF-8 \(byte 54\)"):  # cut within a character
        corpus_of(tmp_path, data[:54] + "ä".encode()[:1])


def test_a_character_that_the_tokenizer_lacks_is_an_error(tmp_path):
    known = tiny.corpus(tmp_path / "known").tokenizer
    with pytest.raises(ModelError, match="'Z'"):
        corpus_of(tmp_path, b"abc hi Z" * 10, tokenizer=known)


def test_a_folder_with_other_tokens_is_neither_trusted_nor_overwritten(tmp_path):
    first = corpus_of(tmp_path, b"abcabcabc abc abc")
    before = whole_text(first)
    assert corpus_of(tmp_path, b"abcabcabc abc abc").sha256 == first.sha256
    with pytest.raises(ModelError, match="holds the tokens of another text"):
        corpus_of(tmp_path, b"abcabcabc abc abd")
    assert whole_text(first) == before


@pytest.mark.parametrize("data", [b"", b"a"])
def test_a_text_too_short_to_predict_from_is_an_error(tmp_path, data):
    with pytest.raises(ModelError, match="longer text"):
        corpus_of(tmp_path, data)


def test_the_cache_is_found_again_and_tells_texts_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_CACHE", str(tmp_path / "cache"))
    folders = []
    for text in ("abcabcabcabc abc", "abcabcabcabc abc", "abcabcabcabc abd"):
        (tmp_path / "text.txt").write_text(text)
        folders.append(tokenise([tmp_path / "text.txt"]).folder)
    assert folders[0] == folders[1] != folders[2]


def test_batches_are_windows_of_the_training_text(tmp_path):
    corpus = tiny.corpus(tmp_path)
    ids = np.fromfile(corpus.folder / "train.bin", np.uint16)
    windows = {tuple(ids[i : i + 8]) for i in range(len(ids) - 7)}
    x, y = corpus.batch(3, n_windows=50, n_ctx=7, seed=1)
    assert x.shape == y.shape == (50, 7)
    assert x.dtype == torch.int64
    for row in torch.cat([x, y[:, -1:]], dim=1).tolist():
        assert tuple(row) in windows
    assert torch.equal(x[:, 1:], y[:, :-1])


def test_a_batch_depends_on_seed_and_step_alone(tmp_path):
    corpus = tiny.corpus(tmp_path)
    draw = lambda step, seed: corpus.batch(step, n_windows=20, n_ctx=7, seed=seed)[0]  # noqa: E731
    first = draw(4, 1)
    draw(5, 1)
    assert torch.equal(first, draw(4, 1))
    assert not torch.equal(first, draw(5, 1))
    assert not torch.equal(first, draw(4, 2))


def test_every_place_of_the_training_text_can_start_a_window(tmp_path):
    corpus = corpus_of(tmp_path, b"abcdefghij", val_fraction=0.2)  # 8: one window of 7 + 1
    x, _ = corpus.batch(0, n_windows=200, n_ctx=7, seed=0)
    assert set(x[:, 0].tolist()) == {0}
    x, _ = corpus.batch(0, n_windows=200, n_ctx=5, seed=0)
    assert set(x[:, 0].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("n_windows", [1, 3, 1000])
def test_validation_scores_every_position_once(tmp_path, n_windows):
    corpus = tiny.corpus(tmp_path)
    ids = np.fromfile(corpus.folder / "val.bin", np.uint16)
    batches = list(corpus.validation(n_windows=n_windows, n_ctx=7))
    x = torch.cat([x.flatten() for x, _ in batches])
    y = torch.cat([y.flatten() for _, y in batches])
    scored = y != IGNORE_INDEX
    assert y[scored].tolist() == ids[1:].tolist()
    assert x[scored].tolist() == ids[:-1].tolist()


def test_the_sample_is_of_the_validation_split(tmp_path):
    corpus = tiny.corpus(tmp_path)
    ids = np.fromfile(corpus.folder / "val.bin", np.uint16)
    windows = {tuple(ids[i : i + 8]) for i in range(len(ids) - 7)}
    ((x, y),) = corpus.validation_sample(n_windows=13, n_ctx=7)
    assert all(tuple(row) in windows for row in torch.cat([x, y[:, -1:]], dim=1).tolist())


def nanogpt_folder(folder, meta: object, dtype=np.uint16, n: int = 60):
    ids = np.arange(n, dtype=dtype) % 3
    ids[:50].tofile(folder / "train.bin")
    ids[50:].tofile(folder / "val.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return folder


def test_a_nanogpt_folder_opens_with_its_vocabulary(tmp_path):
    meta = {"vocab_size": 3, "itos": {0: "a", 1: "b", 2: "c"}, "stoi": {"a": 0, "b": 1, "c": 2}}
    corpus = Corpus.open(nanogpt_folder(tmp_path, meta))
    assert decode(corpus.tokenizer, [2, 0, 1]) == "cab"
    assert (corpus.n_train, corpus.n_val, corpus.largest_id, corpus.d_vocab) == (50, 10, 2, 3)


def test_a_vocabulary_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"itos": Evil()}))
    with pytest.raises(ModelError, match="print"):
        read_meta(tmp_path / "meta.pkl")


def test_token_files_that_do_not_fit_are_errors(tmp_path):
    nanogpt_folder(tmp_path, {"itos": {0: "a", 1: "b"}})
    with pytest.raises(ModelError, match=r"id 2 .* ends at 1"):
        Corpus.open(tmp_path)
    (tmp_path / "val.bin").write_bytes(b"odd")
    with pytest.raises(ModelError, match="3 bytes"):
        Corpus.open(tmp_path)
    (tmp_path / "val.bin").unlink()
    with pytest.raises(ModelError, match="missing"):
        Corpus.open(tmp_path)


def test_the_hash_knows_ids_and_vocabulary(tmp_path):
    hashes = set()
    for i, letters in enumerate(("abc", "abd")):
        folder = tmp_path / str(i)
        folder.mkdir()
        nanogpt_folder(folder, {"itos": dict(enumerate(letters))})
        hashes.add(Corpus.open(folder).sha256)
        np.zeros(50, np.uint16).tofile(folder / "train.bin")
        hashes.add(Corpus.open(folder).sha256)
    assert len(hashes) == 4


def test_tiny_shakespeare_is_downloaded_once_and_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("ORRERY_CACHE", str(tmp_path))
    text = b"To be, or not to be"
    monkeypatch.setattr(corpus_module, "TINY_SHAKESPEARE", (tmp_path / "source").as_uri())
    with pytest.raises(ModelError, match="--text FILE"):
        tiny_shakespeare()
    (tmp_path / "source").write_bytes(text)
    with pytest.raises(ModelError, match="not tiny Shakespeare"):
        tiny_shakespeare()
    monkeypatch.setattr(corpus_module, "TINY_SHAKESPEARE_SHA256", hashlib.sha256(text).hexdigest())
    assert tiny_shakespeare().read_bytes() == text
    (tmp_path / "source").unlink()
    assert tiny_shakespeare().read_bytes() == text
