"""Prove a run at every site, one test a site:

    pytest tests/test_hook_equivalence.py --run DIR

Without the option, the runs that ship with the project are proven.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from conftest import shipped_runs

from model import Proof, Run, proof_ids, prove
from model.equivalence import gpt_sites


@functools.cache
def proof_of(path: Path) -> Proof:
    run = Run.open(path)
    gpt = run.weights().to_gpt()
    return prove(gpt, proof_ids(gpt, run.tokenizer()))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "site" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.getoption("--run")
    runs = [chosen.resolve()] if chosen else shipped_runs()
    cases = [(run, site) for run in runs for site in sites_of(run)]
    metafunc.parametrize(("run", "site"), cases, ids=[f"{run.name}-{site}" for run, site in cases])


def sites_of(path: Path) -> list[str]:
    import torch

    gpt = Run.open(path).weights().to_gpt()
    return list(gpt_sites(gpt, torch.zeros(1, min(2, gpt.config.n_ctx), dtype=torch.long)))


def test_site(run: Path, site: str) -> None:
    row = proof_of(run).differences.loc[site]
    for dtype in ("float32", "float64"):
        assert row[dtype] <= row[f"{dtype}_allowed"], f"{site} is off by {row[dtype]} in {dtype}"


def test_the_assumptions_are_stated(request: pytest.FixtureRequest) -> None:
    chosen = request.config.getoption("--run")
    for run in [chosen] if chosen else shipped_runs():
        assert {"activation", "LayerNorm epsilon", "attention scale", "biases"} <= set(
            proof_of(run.resolve()).assumptions
        )
