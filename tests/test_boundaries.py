"""Imports run one way: apps -> interp, apps -> model; `model` and `interp` meet in commands."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

# what each folder must not import, and the files that may
FORBIDDEN: dict[str, dict[str, set[str]]] = {
    "model": {
        "interp": {"commands/"},  # the command line puts the two together
        "apps": set(),
        "transformer_lens": {"hooked.py"},
        "plotly": set(),
        "streamlit": set(),
    },
    "interp": {
        "model": set(),
        "apps": set(),
        "transformer_lens": {"inputs.py", "engine.py", "hook_path.py", "circuits.py"},
        "plotly": {"figures.py", "figures/"},
        "streamlit": set(),
    },
    "apps": {"plotly": set(), "transformer_lens": set()},
}


def imports(source: str) -> Iterator[str]:
    """The top-level packages that a source imports, those for type checkers only left out."""
    tree = ast.parse(source)
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0]


def offences(folder: str, path: Path, source: str) -> list[str]:
    rules = FORBIDDEN[folder]
    return [
        f"{path.name} imports {package}"
        for package in imports(source)
        if package in rules and not ({path.name, path.parent.name + "/"} & rules[package])
    ]


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_run_one_way(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [o for path in files for o in offences(folder, path, path.read_text())]
    assert not found


@pytest.mark.parametrize(
    ("folder", "source", "caught"),
    [
        ("model", "import interp.sites", True),
        ("model", "def f():\n    from interp import trace", True),
        ("model", "import transformer_lens", True),
        ("interp", "from model.gpt import GPT", True),
        ("interp", "from .engine import trace", False),
        ("interp", "import plotly.graph_objects as go", True),
        ("interp", "if TYPE_CHECKING:\n    from transformer_lens import HookedTransformer", False),
        ("apps", "from interp import trace\nfrom model import load", False),
        ("apps", "import plotly", True),
    ],
)
def test_the_check_can_fail(folder: str, source: str, caught: bool) -> None:
    assert bool(offences(folder, Path("some_file.py"), source)) == caught


def test_the_spelling_of_hook_names_has_one_home() -> None:
    for path in (ROOT / "interp").rglob("*.py"):
        if path.name != "sites.py":
            assert not re.search(r"(?<!use_)hook_", _strings(path.read_text())), path


def _strings(source: str) -> str:
    """Every string of a source that is not a docstring."""
    tree = ast.parse(source)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return "\n".join(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    )


@pytest.mark.parametrize("module", ["model", "model.gpt", "model.checkpoint", "model.cli"])
def test_training_does_not_wait_for_transformer_lens(module: str) -> None:
    code = f"import sys, {module}; sys.exit('transformer_lens' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("package", ["model", "interp"])
def test_every_public_name_can_be_imported(package: str) -> None:
    import importlib

    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
