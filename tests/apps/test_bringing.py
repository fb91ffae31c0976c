"""A checkpoint that a person brings: converted, proven, shown to that session only, removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from brought_files import META, SIZES, nanogpt, saved
from explorer_pages import charts, sentences
from random_gpt import random_gpt
from safetensors.torch import save
from streamlit.runtime.caching.cache_resource_api import clear_session_cache
from streamlit.testing.v1 import AppTest
from tiny_run import CHARACTERS, write_run

from model.conversion import to_state_dict
from model.dialects import DIALECTS
from model.tokenizer import decode, encode, id_tokenizer


def bring(app: AppTest, *files: tuple[str, bytes], path: str = "") -> AppTest:
    """Open the dialog, give it files or a path, press the button."""
    app.button(key="bring").click().run()
    if files:
        app.file_uploader[0].set_value([(*file, "application/octet-stream") for file in files])
    if path:
        app.text_input(key="bring_path").set_value(path)
    return app.button(key="bring_go").click().run()


def refused(app: AppTest) -> list[str]:
    """Errors only: what a conversion assumes is a warning."""
    return [told for told in sentences(app) if not told.startswith("Assumed")]


def folders() -> set[Path]:
    import tempfile

    return set(Path(tempfile.gettempdir()).glob("orrery-session-*"))


@pytest.fixture(autouse=True)
def new_session() -> Iterator[None]:
    """All of AppTest's sessions go by one name: what one was brought would greet the next."""
    yield
    clear_session_cache("test session id")


def test_a_nanogpt_checkpoint_is_proven_and_opened_for_this_session_only(open_page):
    before = folders()
    app = bring(open_page("attribution"), ("ckpt.pt", nanogpt()), ("meta.pkl", META))
    assert refused(app) == []
    assert "Recognised as nanogpt; all" in app.success[0].value.replace("\\", "")
    app.button(key="bring_open").click().run()
    assert refused(app) == []
    assert app.selectbox(key="model").value == "ckpt"
    assert len(charts(app)) == len(charts(open_page("attribution")))
    (own,) = folders() - before
    assert own.stat().st_mode & 0o077 == 0
    # What was sent is not kept, only the run that was made of it.
    assert [path.name for path in own.rglob("*.pt")] == []
    assert "ckpt" not in open_page("attribution").selectbox(key="model").options


def test_what_was_brought_can_be_compared(open_page):
    here = {"prompt": "abcab", "way": "models", "quantity": "loss"}
    app = bring(open_page("compare", **here), ("ckpt.pt", nanogpt()), ("meta.pkl", META))
    other = app.selectbox(key="other_model")
    assert "ckpt" in other.options
    other.set_value("ckpt").run()
    assert refused(app) == []
    assert "load(" in app.code[-1].value
    assert "orrery-session-" in app.code[-1].value


def test_what_was_brought_goes_with_the_session(open_page):
    before = folders()
    app = bring(open_page("lens"), ("ckpt.pt", nanogpt()), ("meta.pkl", META))
    app.button(key="bring_open").click().run()
    assert app.selectbox(key="model").value == "ckpt"
    assert len(folders() - before) == 1
    # What Streamlit does when a tab is closed.
    clear_session_cache("test session id")
    assert folders() - before == set()
    # The tab comes back, as after a nap of the computer.
    assert refused(app.run()) == []
    assert app.selectbox(key="model").value == "a_tiny"


def test_without_a_tokenizer_tokens_are_written_as_ids(open_page):
    app = bring(open_page("lens"), ("ckpt.pt", nanogpt()))
    assert "token 7 is written" in " ".join(each.value for each in app.caption)
    app.button(key="bring_open").click().run()
    assert refused(app) == []
    assert app.text_area(key="prompt").value.startswith("[0][1][2]")


def test_ids_are_read_as_they_are_written():
    tokenizer = id_tokenizer(11)
    ids = torch.tensor([3, 10, 0, 0, 7])
    assert decode(tokenizer, ids) == "[3][10][0][0][7]"
    assert torch.equal(encode(tokenizer, "[3][10][0][0][7]"), ids)


def test_hugging_face_files_come_with_their_config(open_page):
    gpt = random_gpt(seed=6, act_fn="gelu_new", tied_embeddings=True, **SIZES).float()
    state = to_state_dict(gpt, DIALECTS["hf"])
    weights = save({k: v.contiguous() for k, v in state.items() if "lm_head" not in k})
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 3, "n_embd": 15, "n_positions": 24}
    config |= {"vocab_size": len(CHARACTERS), "activation_function": "gelu_new"}
    config |= {"layer_norm_epsilon": 1e-5}
    files = ("model.safetensors", weights), ("config.json", json.dumps(config).encode())
    app = bring(open_page("lens"), *files)
    assert refused(app) == []
    assert "Recognised as hf" in app.success[0].value


@pytest.mark.parametrize(
    ("files", "path", "word"),
    [
        ((("ckpt.pt", b"not a checkpoint"),), "", "neither safetensors nor a file of torch.save"),
        ((("ckpt.pt", saved({"model": 3})),), "", "holds no state dict"),
        ((("ckpt.pt", nanogpt()[:-900]),), "", "ckpt.pt cannot be read"),
        ((("ckpt.pt", b"x" * 1_100_000),), "", "at most 1 MB"),
        ((), "", "Neither files nor a path came"),
        ((("ckpt.pt", b"x"),), "a_tiny", "Files and a path came"),
        ((), "../elsewhere", "lies outside"),
        ((), "/etc/passwd", "lies outside"),
        ((), "nothing_here", "There is no nothing_here"),
        ((), "c_broken", "truncated"),
    ],
)
def test_refusals_are_one_sentence(files, path, word, open_page, monkeypatch):
    import streamlit as st

    option = st.get_option
    monkeypatch.setattr(
        st, "get_option", lambda name: 1 if name == "server.maxUploadSize" else option(name)
    )
    (told,) = sentences(bring(open_page("lens"), *files, path=path))
    assert word in told
    assert "orrery-session" not in told


def test_a_link_inside_that_leads_out_is_refused(open_page, tmp_path):
    write_run(tmp_path / "runs" / "tiny", steps=(0,))
    write_run(tmp_path / "elsewhere", steps=(0,))
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    (told,) = refused(bring(open_page("lens", folder=tmp_path / "runs"), path="link"))
    assert "lies outside" in told


def test_a_path_inside_the_folder_of_runs(open_page, tmp_path):
    write_run(tmp_path / "first")
    deeper = tmp_path / "deeper"
    write_run(deeper / "second", steps=(0, 3))
    (deeper / "ckpt.pt").write_bytes(nanogpt(seed=9))
    app = bring(open_page("lens", folder=tmp_path), path="deeper/second")
    assert refused(app) == []
    app.button(key="bring_open").click().run()
    assert app.selectbox(key="model").value == "second"
    assert refused(bring(app, path="deeper/ckpt.pt")) == []
    app.button(key="bring_open").click().run()
    assert app.selectbox(key="model").options == ["first", "second", "ckpt"]
    assert refused(app) == []


def test_names_lead_nowhere_else(open_page, tmp_path):
    app = bring(open_page("lens"), ("../../../out.pt", nanogpt()))
    assert refused(app) == []
    app = bring(app, ("a/..\\..\\out.pt", nanogpt()))
    assert refused(app) == []
    app.button(key="bring_open").click().run()
    assert app.selectbox(key="model").value == "out (2)"


def test_a_session_can_bring_only_so_many(open_page):
    app = open_page("lens")
    for _ in range(4):
        assert refused(bring(app, ("ckpt.pt", nanogpt()))) == []
    (told,) = refused(bring(app, ("ckpt.pt", nanogpt())))
    assert "4 checkpoints are open" in told
