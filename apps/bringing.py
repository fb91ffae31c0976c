"""Checkpoints that a person brings, as files or by path: converted, proven, opened.

What is brought lies in a private folder of the session's own and is offered to that session only.
The folder goes with the session, and with the server.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Protocol

import streamlit as st

from certificate_table import show_certificate
from literal import literal
from model import ModelError, Run, certify, convert, write_run
from model.checkpoint import is_ours
from model.tokenizer import id_tokenizer
from runs import folder_of_runs, shown_path

MOST_MODELS = 4
"""that one session can have open, so that nobody fills the disk"""
_STATE = "brought"


class NamedFile(Protocol):
    """What the browser sent."""

    name: str
    size: int

    def getbuffer(self) -> memoryview: ...


def brought() -> dict[str, Path]:
    """The runs that this session has brought, by the name they are chosen by."""
    # Streamlit lets go of the folder as soon as a tab is closed, which may come back.
    known = st.session_state.get(_STATE, {})
    return {name: path for name, path in known.items() if path.is_dir()}


def offer_bringing(taken: Sequence[str]) -> None:
    """The button below the models that opens the dialog.

    Args:
        taken: names that a new model cannot have.
    """
    st.button("Open another checkpoint …", key="bring", width="stretch", on_click=_begin)
    if st.session_state.get("bringing"):
        _dialog(tuple(taken))


def bring_files(files: Sequence[NamedFile], settings: Mapping[str, Any]) -> Path:
    """The proven run of uploaded files, in the session's own folder.

    Raises:
        ModelError: whatever `convert` refuses, or files that are too many bytes together.
    """
    limit = st.get_option("server.maxUploadSize")
    size = sum(file.size for file in files)
    if size > limit * 2**20:
        raise ModelError(
            f"The files have {size / 2**20:.1f} MB, and at most {limit} MB are taken: convert them "
            "with `orrery convert FILE --out RUN` and give the path of RUN."
        )
    with tempfile.TemporaryDirectory(dir=_own_folder().name) as incoming:
        paths = []
        for file in files:
            path = Path(incoming) / _plain_name(file.name)
            path.write_bytes(file.getbuffer())
            paths.append(path)
        try:
            return _converted(paths[0] if len(paths) == 1 else Path(incoming), settings)
        except ModelError as error:
            # Where the files lie is nothing that the person knows or can use.
            raise ModelError(
                str(error).replace(f"{incoming}/", "").replace(incoming, "they")
            ) from (None)


def bring_path(typed: str, settings: Mapping[str, Any]) -> Path:
    """A run, or the proven run of a checkpoint, that lies inside the folder of runs.

    Raises:
        ModelError: when it lies elsewhere, is not there, or is refused by `convert`.
    """
    folder = folder_of_runs().resolve()
    path = (folder / typed).resolve()
    if not path.is_relative_to(folder):
        raise ModelError(
            f"{typed} lies outside {shown_path(folder)}, and only what is inside it is opened: "
            "start the explorer with --runs and the folder that holds it."
        )
    if not path.exists():
        raise ModelError(f"There is no {typed} in {shown_path(folder)}: check the spelling.")
    if path.is_dir() and is_ours(path):
        return Run.open(path).path
    return _converted(path, settings)


def _converted(source: Path, settings: Mapping[str, Any]) -> Path:
    conversion = convert(source, **settings)
    if conversion.tokenizer is None:
        d_vocab = conversion.gpt.config.d_vocab
        note = (
            "no tokenizer came, so token 7 is written [7]: bring a meta.pkl or tokenizer.json too"
        )
        conversion = replace(
            conversion, tokenizer=id_tokenizer(d_vocab), notes=(*conversion.notes[:-1], note)
        )
    certificate = certify(conversion)
    path = Path(tempfile.mkdtemp(dir=_own_folder().name)) / _plain_name(
        Path(conversion.source.name).stem
    )
    return write_run(certificate, path).path


def _plain_name(name: str) -> str:
    """A file name that leads nowhere else."""
    last = PureWindowsPath(PurePosixPath(name).name).name
    return re.sub(r"[^\w.\- ]", "_", last).lstrip(".") or "file"


def _remove(folder: tempfile.TemporaryDirectory[str]) -> None:
    folder.cleanup()


@st.cache_resource(scope="session", on_release=_remove, show_spinner=False)
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    # Python removes it at the latest when the server ends. Only its owner can look inside.
    return tempfile.TemporaryDirectory(prefix="orrery-session-")


@st.dialog("Open another checkpoint", width="large", on_dismiss=lambda: _end())
def _dialog(taken: tuple[str, ...]) -> None:
    if "bringing" not in st.session_state:
        st.rerun()
    limit = st.get_option("server.maxUploadSize")
    st.markdown(
        "nanoGPT, build-nanogpt, minGPT, the course GPT and the lecture's, Hugging Face GPT-2, "
        "LLMs-from-scratch, TransformerLens, or a run of this project. It is recognised, converted "
        "and proven equal to its HookedTransformer at every site. Nothing in a file is ever run."
    )
    files = st.file_uploader(
        f"Weights, with their config and tokenizer where there are any; {limit} MB at most",
        accept_multiple_files=True,
        key=f"bring_files_{st.session_state['bringing']}",
    )
    typed = st.text_input(f"Or a path inside {shown_path(folder_of_runs())}", key="bring_path")
    settings = _settings()
    if st.button("Convert and prove", type="primary", key="bring_go"):
        st.session_state.pop("bring_done", None)
        try:
            _refuse_unless_one(files, typed)
            with st.spinner("Converting, and proving every site …"):
                path = bring_files(files, settings) if files else bring_path(typed, settings)
        except ModelError as error:
            st.error(literal(str(error)))
        else:
            name = _free_name(path.name, taken)
            st.session_state[_STATE] = brought() | {name: path}
            st.session_state["bring_done"] = name
    done = st.session_state.get("bring_done")
    if done in brought():
        show_certificate(brought()[done])
        st.button(f"Look at {literal(done)}", type="primary", key="bring_open", on_click=_open)


def _refuse_unless_one(files: Sequence[NamedFile], typed: str) -> None:
    if bool(files) == bool(typed.strip()):
        came = "Files and a path came" if files else "Neither files nor a path came"
        raise ModelError(f"{came}: give one of the two.")
    if len(brought()) >= MOST_MODELS:
        raise ModelError(
            f"{len(brought())} checkpoints are open in this window, which is the most: reload the "
            "page to begin anew."
        )


def _begin() -> None:
    # A number of its own each time: the box for files is another one, and so is empty again.
    st.session_state["bringing"] = st.session_state.get("bringings", 0) + 1
    st.session_state["bringings"] = st.session_state["bringing"]


def _end() -> None:
    st.session_state.pop("bringing", None)
    st.session_state.pop("bring_done", None)


def _open() -> None:
    st.session_state["model"] = st.session_state["bring_done"]
    _end()


def _free_name(name: str, taken: Sequence[str]) -> str:
    known = {*taken, *brought()}
    numbered = (f"{name} ({n})" for n in range(2, len(known) + 3))
    return name if name not in known else next(n for n in numbered if n not in known)


def _settings() -> dict[str, Any]:
    """What the file does not say, as `convert` takes it; empty where it is left open."""
    with st.expander("What the file does not say"):
        left, right = st.columns(2)
        n_heads = left.number_input("Heads", 0, 512, 0, key="bring_heads", help="0: as it says.")
        act_fn = right.selectbox(
            "Activation", ["as it says", "gelu", "gelu_new", "relu"], key="bring_act_fn"
        )
        eps = left.number_input(
            "Epsilon of LayerNorm", 0.0, 1.0, 0.0, format="%.1e", key="bring_eps",
            help="0: as it says.",
        )  # fmt: skip
        scale = right.selectbox(
            "Scores are divided by the root of", ["as it says", "d_head", "d_model"],
            key="bring_scale",
        )  # fmt: skip
    given = {"n_heads": n_heads, "act_fn": act_fn, "eps": eps, "attn_scale": scale}
    return {name: value for name, value in given.items() if value and value != "as it says"}
