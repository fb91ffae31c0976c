"""Every page over many inputs: what it shows is what the library says, and never a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import CHECKPOINTS, shipped_runs
from explorer_pages import VIEWS, asked_charts, charts, sentences
from tiny_run import write_run

import interp
from interp import figures
from model import load

N_CHARTS = {
    "predict": 2,
    "attention": 3,
    "lens": 4,
    "attribution": 5,
    "patching": 3,
    "sphere": 5,
    "weights": 5,
    "neurons": 5,
    "compare": 1,
    "training": 4,
}
NEEDS_MLPS = ("neurons",)
PROMPTS = {
    "one token": "a",
    "as long as the context, one letter": "a" * 24,
    "whitespace only": " \n\t \n",
    "markup": "<b>$a$&amp;*[x](y)%{x}\n",
    "a glyph and a letter beyond ASCII": "␣é␣é",
}


@pytest.mark.parametrize("view", VIEWS)
def test_first_load_has_content(view, open_page):
    app = open_page(view)
    assert sentences(app) == []
    assert app.title[0].value == view.capitalize()
    assert len(charts(app)) == N_CHARTS[view]
    assert all(asked["alt"] for asked in asked_charts(app))
    assert app.code[-1].value.startswith("from interp import")


@pytest.mark.parametrize("view", VIEWS)
def test_the_code_reproduces_the_page(view, open_page):
    settings = {"pos": 3, "target": "a", "contrast": "␣", "step": 8, "layer": 1, "head": 2}
    app = open_page(view, prompt="a b\n<b>", corrupt="a c\n<b>", **settings)
    assert sentences(app) == []
    namespace: dict[str, Any] = {}
    exec(app.code[-1].value, namespace)
    drawn = [
        json.loads(value.to_json())
        for name, value in namespace.items()
        if type(value).__name__ == "Figure"
    ]
    assert len(drawn) == N_CHARTS[view]
    assert charts(app) == drawn


EVERY_DAY = ("one token", "markup")
"""of PROMPTS; the others are left to the slow run"""


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(text, id=name, marks=() if name in EVERY_DAY else pytest.mark.slow)
        for name, text in PROMPTS.items()
    ],
)
@pytest.mark.parametrize("view", VIEWS)
def test_odd_prompts(view, prompt, open_page):
    app = open_page(view, prompt=prompt)
    assert sentences(app) == []
    assert len(charts(app)) == N_CHARTS[view]


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({"prompt": "abü"}, "Character 'ü' at position 2"),
        ({"prompt": "<b>\u200b"}, "at position 3"),
        ({"prompt": "a" * 25}, "25 tokens"),
        ({"target": "a", "contrast": "a"}, "choose two different tokens"),
        ({"model": "c_broken"}, "truncated"),
    ],
)
@pytest.mark.parametrize("view", ["predict", "patching"])
def test_bad_input_gives_one_sentence(view, query, word, open_page):
    told = sentences(open_page(view, **query))
    assert len(told) == 1
    assert word in told[0]


@pytest.mark.parametrize(
    ("corrupt", "word"),
    [("abc", "equal token length"), ("abcd", "same prompt"), ("abüd", "vocabulary")],
)
def test_bad_corrupt_prompt_gives_one_sentence(corrupt, word, open_page):
    told = sentences(open_page("patching", prompt="abcd", corrupt=corrupt))
    assert len(told) == 1
    assert word in told[0]


def test_an_emptied_prompt_gives_one_sentence_and_can_be_filled_again(open_page):
    app = open_page("lens")
    (told,) = sentences(app.text_area(key="prompt").set_value("").run())
    assert "empty" in told
    assert sentences(app.text_area(key="prompt").set_value("a").run()) == []


@pytest.mark.skipif(not shipped_runs(), reason="no run is shipped yet")
@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_the_shipped_model_is_what_opens(view, open_page):
    app = open_page(view, folder=CHECKPOINTS)
    assert sentences(app) == []
    assert not app.info
    assert app.selectbox(key="model").value == "shakespeare"
    slider = app.select_slider(key="step")
    assert str(slider.value) == slider.options[-1]


@pytest.mark.parametrize(
    ("view", "modes"),
    [
        ("attribution", {"scale": "exact"}),
        ("attribution", {"detail": "sublayers", "order": "by size"}),
        ("attribution", {"opened": "1_mlp_out"}),
        ("lens", {"follow": "q", "measure": "rank of the followed token"}),
        ("lens", {"measure": "distance to the end (KL)", "state": "1_mid"}),
        ("patching", {"site": "heads", "direction": "corrupt into clean"}),
        ("patching", {"sender": "L0H1", "receiver": "L1H0_v"}),
    ],
)
def test_every_mode_has_content_and_code(view, modes, open_page):
    app = open_page(view, prompt="abcabcab", corrupt="abdabcab", pos=5, **modes)
    assert sentences(app) == []
    namespace: dict[str, Any] = {}
    exec(app.code[-1].value, namespace)
    assert charts(app)


@pytest.mark.skipif(len(shipped_runs()) < 2, reason="one run is shipped")
@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_every_shipped_model_has_content(view, open_page):
    for run in shipped_runs():
        app = open_page(view, folder=CHECKPOINTS, model=run.name)
        if view in NEEDS_MLPS and load(run).cfg.attn_only:
            continue
        assert sentences(app) == []
        assert len(charts(app)) == N_CHARTS[view]


def test_an_untouched_prompt_follows_the_model(open_page, tmp_path):
    write_run(tmp_path / "a_any")
    write_run(tmp_path / "b_four_letters", characters="wxyz")
    app = open_page("lens", folder=tmp_path, prompt="abc")
    (told,) = sentences(app.selectbox(key="model").set_value("b_four_letters").run())
    assert "'a' at position 0" in told
    app = open_page("lens", folder=tmp_path)
    assert sentences(app.selectbox(key="model").set_value("b_four_letters").run()) == []
    assert sentences(app.selectbox(key="model").set_value("a_any").run()) == []


def test_no_runs_gives_one_sentence(open_page, tmp_path):
    told = sentences(open_page("lens", folder=tmp_path))
    assert len(told) == 1
    assert "orrery train" in told[0]


@pytest.mark.parametrize(
    ("item", "value"),
    [("pos", 99), ("pos", "x"), ("step", 7), ("target", "zz"), ("model", "none"), ("layer", -1)],
)
def test_a_link_to_what_is_not_there_says_so(item, value, open_page):
    app = open_page("attention", prompt="abc", **{item: value})
    (told,) = sentences(app)
    assert f"asks for {item} '{value}'" in told
    assert len(charts(app)) == N_CHARTS["attention"]


@pytest.mark.parametrize("view", VIEWS)
def test_a_model_without_mlps(view, open_page):
    app = open_page(view, model="b_attention_only")
    if view in NEEDS_MLPS:
        (told,) = sentences(app)
        assert "has no MLP" in told
        return
    assert sentences(app) == []
    assert len(charts(app)) == N_CHARTS[view]


def test_every_step_is_another_model(runs, open_page):
    seen = []
    for step in (0, 8, 32):
        app = open_page("attribution", step=step, prompt="abcd", target="x", contrast="y")
        parts = interp.direct_logit_attribution(load(runs / "a_tiny", step), "abcd", "x", "y")
        drawn = figures.attribution_positions(parts, pos=3)
        assert json.loads(drawn.to_json()) in charts(app)
        seen.append(float(parts["logit"][0, 3]))
    assert len(set(seen)) == 3


def test_automatic_target_and_contrast_are_the_two_likeliest(runs, open_page):
    app = open_page("attribution", prompt="abcd", pos=2)
    logits = load(runs / "a_tiny")(load(runs / "a_tiny").to_tokens("abcd"))[0, 2]
    first, second = logits.topk(2).indices.tolist()
    words = interp.inputs.vocabulary(load(runs / "a_tiny"))
    expected = f"{words[first]!r}, {words[second]!r})"
    assert expected in app.code[-1].value


def test_a_check_that_fails_is_told(open_page, monkeypatch):
    import streamlit as st

    def wrong(*arguments: Any, **settings: Any) -> Any:
        result = interp.residual.direct_logit_attribution(*arguments, **settings)
        return result.assign(remainder=result["remainder"] + 1)

    wrong.__name__ = "direct_logit_attribution"
    monkeypatch.setattr(interp, "direct_logit_attribution", wrong)
    st.cache_resource.clear()
    (told,) = sentences(open_page("attribution"))
    st.cache_resource.clear()
    assert "This check fails" in told


def test_patching_falls_back_to_changes_where_fractions_are_undefined(open_page):
    # The scored position lies before the changed token, so both runs agree there.
    app = open_page("patching", prompt="abcd", corrupt="abce", pos=1)
    assert sentences(app) == []
    assert "Shown as changes in logits" in app.info[0].value
    cells = charts(app)[0]["data"][0]["customdata"]
    assert {cell[3] for row in cells for cell in row} == {"undefined"}
