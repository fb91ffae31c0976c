"""Compare: two prompts, steps or models, in every quantity, and swapped."""

from __future__ import annotations

import json

import pytest
from explorer_pages import charts, sentences
from tiny_run import write_run

from interp import compare, figures, token_losses
from model import load

QUANTITIES = (
    "next token",
    "loss",
    "lens: probability of the target",
    "attribution",
    "attention of the head",
    "hop angles",
)
HERE = {"prompt": "abcabcab", "corrupt": "abcabdab", "pos": 5, "layer": 1, "head": 1}


@pytest.mark.slow
@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("way", ["prompts", "steps"])
def test_every_quantity_has_a_difference(way, quantity, open_page):
    app = open_page("compare", way=way, quantity=quantity, **HERE)
    assert sentences(app) == []
    (chart,) = charts(app)
    assert len(chart["data"]) == 3
    namespace: dict = {}
    exec(app.code[-1].value, namespace)
    assert json.loads(namespace["comparison"].to_json()) == chart


def test_two_steps_are_two_models(runs, open_page):
    app = open_page("compare", way="steps", quantity="loss", other_step=8, **HERE)
    sides = [token_losses(load(runs / "a_tiny", step), HERE["prompt"]) for step in (32, 8)]
    figure = figures.comparison(compare(*sides, "loss"), names=("step 32", "step 8"), pos=5)
    assert charts(app) == [json.loads(figure.to_json())]


@pytest.mark.parametrize("way", ["prompts", "steps"])
def test_swapping_twice_is_where_it_was(way, open_page):
    app = open_page("compare", way=way, quantity="loss", **HERE)
    before = charts(app)
    app.button(key="swap").click().run()
    assert sentences(app) == []
    assert charts(app) != before
    app.button(key="swap").click().run()
    assert charts(app) == before


def test_two_models_of_one_shape_can_be_compared(open_page, tmp_path):
    write_run(tmp_path / "one")
    write_run(tmp_path / "two", steps=(3,))
    app = open_page("compare", folder=tmp_path, way="models", **HERE)
    assert sentences(app) == []
    first = charts(app)
    app.button(key="swap").click().run()
    assert app.selectbox(key="model").value == "two"
    assert sentences(app) == []
    assert charts(app) != first


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({"corrupt": "abc", "quantity": "loss"}, "equal length"),
        ({"corrupt": "ü"}, "vocabulary"),
        ({"way": "steps", "model": "only_step"}, "one step only"),
        ({"way": "models", "other_model": "b_letters"}, "cannot read this prompt"),
        ({"way": "models", "other_model": "c_deeper", "quantity": "hop angles"}, "shape"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_sentence(query, word, open_page, tmp_path):
    write_run(tmp_path / "a_tiny")
    write_run(tmp_path / "b_letters", characters="wxyz")
    write_run(tmp_path / "c_deeper", n_layers=3, steps=(1,))
    write_run(tmp_path / "only_step", steps=(1,))
    (told,) = sentences(open_page("compare", folder=tmp_path, **(HERE | query)))
    assert word in told


def test_one_run_has_no_other_model(open_page, tmp_path):
    write_run(tmp_path / "alone")
    (told,) = sentences(open_page("compare", folder=tmp_path, way="models", **HERE))
    assert "one run only" in told


def test_a_side_with_itself_is_told(open_page):
    app = open_page("compare", way="steps", other_step=32, **HERE)
    assert sentences(app) == []
    assert "the same" in app.info[0].value
