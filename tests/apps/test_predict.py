"""Predict: the model writes on from where the reader is, and no setting breaks it."""

from __future__ import annotations

import pytest
from explorer_pages import charts, sentences


def test_what_was_drawn_can_be_appended(open_page):
    app = open_page("predict", prompt="ab", n_new=5, seed=3, top_k=4)
    drawn = app.code[0].value
    assert len(drawn) == 5
    app.button(key="append_one").click().run()
    assert sentences(app) == []
    assert app.text_area(key="prompt").value == "ab" + drawn[0]
    assert app.slider(key="pos").value == 2
    app.button(key="append_all").click().run()
    assert app.text_area(key="prompt").value[:3] == "ab" + drawn[0]
    assert len(app.text_area(key="prompt").value) == 8
    assert app.slider(key="pos").value == 7


def test_writing_goes_on_from_the_chosen_position(open_page):
    app = open_page("predict", prompt="abcdef", pos=1, temperature=0.0, n_new=2)
    first = app.code[0].value
    assert (
        app.code[0].value
        == open_page("predict", prompt="ab", temperature=0.0, n_new=2).code[0].value
    )
    app.button(key="append_all").click().run()
    assert app.text_area(key="prompt").value == "ab" + first


def test_a_full_context_has_no_room_to_write(open_page):
    app = open_page("predict", prompt="a" * 24)
    assert "fills the context" in app.info[0].value
    assert not app.get("button_group") or sentences(app) == []
    assert sentences(app.slider(key="pos").set_value(20).run()) == []
    assert len(app.info) == 0


@pytest.mark.parametrize(
    "query",
    [{"top_k": 0}, {"top_k": 10**6}, {"temperature": -1}, {"top_p": "x"}, {"n_new": 99},
     {"seed": -1}, {"temperature": 0.0, "top_k": 1, "top_p": 0.05}],
)  # fmt: skip
def test_settings_out_of_reach_are_brought_back(query, open_page):
    app = open_page("predict", prompt="ab", **query)
    assert sentences(app) == []
    assert len(charts(app)) == 2
