"""Long work: progress while it lasts, and no trace of what was stopped."""

from __future__ import annotations

from typing import Any

import pytest
from explorer_pages import APPS, charts, sentences
from streamlit.testing.v1 import AppTest

import interp.patching
from interp import activation_patching, attribution_patching, figures, logit_difference
from interp.inputs import contrast


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """A script whose work counts to five, and is cut off at `cut_at`, as a click cuts it off."""
    monkeypatch.syspath_prepend(str(APPS))

    def script() -> None:
        import streamlit as st

        import long_work

        long_work.SLOW = 0.0
        kept = st.session_state.setdefault("kept", [])

        def work(progress):
            for i in range(1, 6):
                progress(i, 5)
                if i == st.session_state.get("cut_at"):
                    st.stop()
            return 42

        answer = long_work.long_work(
            "the question", kept, work, lambda: st.text("an estimate"),
            begin="Begin", of="counts", unasked=not st.session_state.get("on_request"),
        )  # fmt: skip
        st.code(str(answer))

    return AppTest.from_function(script)


def test_work_shows_itself_only_while_it_lasts(counting):
    counting.session_state["cut_at"] = 3
    app = counting.run()
    assert [each.value for each in app.text] == ["an estimate"]
    assert app.get("progress")[0].proto.value == 60
    assert app.session_state["kept"] == []
    app.session_state["cut_at"] = None
    app.run()
    assert app.code[0].value == "42"
    assert app.session_state["kept"] == [42]
    assert len(app.text) == len(app.button) == len(app.get("progress")) == 0


def test_stopped_work_rests_until_it_is_wanted(counting):
    counting.session_state["cut_at"] = 3
    app = counting.run()
    app.session_state["cut_at"] = None
    app.button(key="stop").click().run()
    assert app.code[0].value == "None"
    assert app.session_state["kept"] == []
    assert app.run().code[0].value == "None"
    app.button(key="begin").click().run()
    assert app.code[0].value == "42"


def test_work_on_request_waits_for_its_button(counting):
    counting.session_state["on_request"] = True
    app = counting.run()
    assert app.code[0].value == "None"
    app.button(key="begin").click().run()
    assert app.code[0].value == "42"


def test_a_sweep_that_was_cut_off_is_made_anew_and_a_whole_one_is_kept(
    open_page, monkeypatch: pytest.MonkeyPatch
):
    import streamlit as st

    import long_work

    sweep, calls, cut = activation_patching, [], [2]

    def cut_off(*arguments: Any, progress: Any, **settings: Any) -> Any:
        def report(n: int, of: int) -> None:
            if cut and n >= cut[0]:
                st.stop()
            progress(n, of)

        calls.append(1)
        return sweep(*arguments, progress=report, **settings | {"batch_size": 1})

    cut_off.__module__, cut_off.__name__ = sweep.__module__, sweep.__name__
    monkeypatch.setattr(interp.patching, "activation_patching", cut_off)
    monkeypatch.setattr(long_work, "SLOW", 0.0)
    query = {"prompt": "abcd", "corrupt": "axcd", "target": "p", "contrast": "q"}
    app = open_page("patching", **query)
    # Cut off before the last run, it shows the estimate and no map.
    assert len(calls) == 1
    assert "ESTIMATED" in str(charts(app))
    cut.clear()
    whole = charts(app.run())
    assert "ESTIMATED" not in str(whole)
    assert len(calls) == 2
    assert charts(app.run()) == whole
    assert len(calls) == 2

    cut.append(2)
    app.segmented_control(key="site").set_value("heads").run()
    cut.clear()
    app.button(key="stop").click().run()
    (estimate,) = charts(app)
    assert "ESTIMATED" in str(estimate)
    assert len(calls) == 3
    namespace: dict[str, Any] = {}
    exec(app.code[-1].value, namespace)
    assert "activation_patching(" not in app.code[-1].value
    app.button(key="begin").click().run()
    assert len(calls) == 4
    assert sentences(app) == []
    assert "ESTIMATED" not in str(charts(app))


def test_the_estimate_is_drawn_as_the_map_it_stands_for():
    from random_models import random_hooked

    model = random_hooked()
    pair = contrast(model, "abcab", "abdab")
    metric = logit_difference(model, "a", "b")
    for kind, across in (("resid_pre", 5), ("z", 3)):
        estimate = attribution_patching(model, pair, metric, kind)
        exact = figures.patching_map(activation_patching(model, pair, metric, kind))
        drawn = figures.patching_estimate(estimate)
        assert drawn.data[0].z.shape == exact.data[0].z.shape == (2, across)
        assert drawn.layout.xaxis.title.text == exact.layout.xaxis.title.text
        assert drawn.data[0].z == pytest.approx(estimate[0].to_numpy(), abs=1e-6)
    with pytest.raises(interp.InputError, match="layer by pos"):
        figures.patching_estimate(estimate.rename(head="neuron"))
