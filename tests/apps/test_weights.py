"""Weights: a pair of tokens leads from a head's matrices to places in the prompt."""

from __future__ import annotations

import json

import pytest
from explorer_pages import charts, sentences

from interp import circuit_table, figures, pair_places
from model import load

HERE = {"prompt": "abcabcab", "layer": 1, "head": 2, "pos": 6}


def drawn(figure) -> dict:
    return json.loads(figure.to_json())


@pytest.mark.parametrize("circuit", ["QK", "OV"])
def test_a_pair_finds_its_places(circuit, runs, open_page):
    app = open_page("weights", circuit=circuit, pair_token="a", pair_other="b", **HERE)
    assert sentences(app) == []
    model = load(runs / "a_tiny")
    places = pair_places(model, HERE["prompt"], 1, 2, circuit, "a", "b")
    assert places.sizes["place"] > 0
    assert drawn(figures.pair_bars(places)) in charts(app)


def test_a_pair_that_does_not_meet_is_told(open_page):
    app = open_page("weights", pair_token="z", pair_other="b", **HERE)
    assert sentences(app) == []
    assert "does not meet" in app.info[0].value


@pytest.mark.slow
def test_folding_changes_the_maps(runs, open_page):
    model = load(runs / "a_tiny")
    for fold_ln in (True, False):
        app = open_page("weights", fold_ln=str(fold_ln).lower(), **HERE)
        table = circuit_table(model, 1, 2, "OV", fold_ln=fold_ln)
        assert drawn(figures.circuit_map(table)) in charts(app)
        assert ("fold_ln=False" in app.code[-1].value) is not fold_ln


@pytest.mark.parametrize("query", [{"circuit": "KQ"}, {"pair_token": "zzz"}, {"fold_ln": "maybe"}])
def test_a_link_to_nothing_shows_the_usual_page(query, open_page):
    assert sentences(open_page("weights", **query, **HERE)) == []
