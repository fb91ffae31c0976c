"""Neurons: one is chosen by name, found in a text, and taken away."""

from __future__ import annotations

import json

import pytest
from explorer_pages import charts, sentences
from tiny_run import write_run

from interp import figures, neuron_ablation
from model import load

HERE = {"prompt": "abcabcab", "target": "a", "contrast": "b", "pos": 5}


def test_a_neuron_is_chosen_by_name(runs, open_page):
    app = open_page("neurons", neuron="l1n7", **HERE)
    assert sentences(app) == []
    model = load(runs / "a_tiny")
    effect = neuron_ablation(model, HERE["prompt"], 1, 7, "a", "b", pos=5)
    assert json.loads(figures.prediction_change(effect).to_json()) in charts(app)
    assert f"**{float(effect['total'][0]):+.4f}**" in " ".join(m.value for m in app.markdown)


def test_it_can_be_held_at_its_mean(open_page):
    app = open_page("neurons", neuron="L0N3", held_at="mean", **HERE)
    assert sentences(app) == []
    assert ", to=" in app.code[-1].value


@pytest.mark.parametrize("name", ["L2N0", "L0N9999", "N3", "<b>🙂"])
def test_a_neuron_that_is_not_there_gives_one_sentence(name, open_page):
    assert len(sentences(open_page("neurons", neuron=name, **HERE))) == 1


def test_a_model_that_reads_no_text_still_has_neurons(open_page, tmp_path):
    write_run(tmp_path / "letters", characters="wxyz")
    app = open_page("neurons", folder=tmp_path)
    assert sentences(app) == []
    assert "text.txt" in app.info[0].value
    assert len(charts(app)) == 3


def test_a_text_of_its_own_comes_first(open_page, tmp_path):
    write_run(tmp_path / "letters", characters="wxyz")
    (tmp_path / "letters" / "text.txt").write_text("wxyzzyxw" * 40)
    app = open_page("neurons", folder=tmp_path)
    assert sentences(app) == []
    assert len(charts(app)) == 5
    assert "13 windows of 24 tokens" in " ".join(c.value for c in app.caption)
