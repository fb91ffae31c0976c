"""The attention page's what-if numbers against TransformerLens' own hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from explorer_pages import sentences
from streamlit.testing.v1 import AppTest

from model import load

PROMPT, LAYER, HEAD, POS = "abcabd", 1, 2, 4
QUERY = {"prompt": PROMPT, "layer": LAYER, "head": HEAD, "pos": POS, "target": "a", "contrast": "b"}


@pytest.fixture
def hooked(runs) -> Any:
    return load(runs / "a_tiny")


def shown(app: AppTest) -> list[float]:
    """The logit differences that the page shows, without the head and with the weight."""
    assert sentences(app) == []
    return [float(metric.value.replace("\N{MINUS SIGN}", "-")) for metric in app.metric]


def with_hook(model: Any, name: str, hook: Any) -> float:
    ids = model.to_tokens(PROMPT)
    with torch.no_grad():
        logits = model.run_with_hooks(ids, fwd_hooks=[(f"blocks.{LAYER}.attn.{name}", hook)])
    a, b = model.to_single_token("a"), model.to_single_token("b")
    return float(logits[0, POS, a] - logits[0, POS, b])


@pytest.mark.parametrize("instead", ["zero", "mean"])
def test_a_head_taken_away(instead, open_page, hooked):
    def without(z: torch.Tensor, hook: Any) -> torch.Tensor:
        z[:, :, HEAD] = 0 if instead == "zero" else z[:, :, HEAD].mean(1, keepdim=True)
        return z

    app = open_page("attention", **QUERY, instead=instead)
    assert shown(app)[0] == pytest.approx(with_hook(hooked, "hook_z", without), abs=6e-4)


def test_a_weight_changed(open_page, hooked):
    def other_weight(pattern: torch.Tensor, hook: Any) -> torch.Tensor:
        row = pattern[0, HEAD, POS]
        rest = 1 - row[1]
        row *= (1 - 0.9) / rest
        row[1] = 0.9
        return pattern

    app = open_page("attention", **QUERY, key_pos=1)
    (slider,) = [each for each in app.slider if each.label.startswith("Attention weight")]
    app = slider.set_value(0.9).run()
    assert shown(app)[1] == pytest.approx(with_hook(hooked, "hook_pattern", other_weight), abs=6e-4)
    assert "edit_pattern" in app.code[-1].value
    # The weight belongs to its cell: another head starts from its own.
    app = app.slider(key="head").set_value(0).run()
    (slider,) = [each for each in app.slider if each.label.startswith("Attention weight")]
    assert slider.value != 0.9


def test_the_first_position_has_no_weight_to_change(open_page):
    app = open_page("attention", **QUERY | {"pos": 0})
    assert sentences(app) == []
    assert any("sees only itself" in each.value for each in app.caption)
    assert len(app.metric) == 1
