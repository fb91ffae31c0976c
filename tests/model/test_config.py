from __future__ import annotations

import math

import pytest

from model import PRESETS, GPTConfig, ModelError, preset

SIZES = {"d_vocab": 11, "n_ctx": 7, "n_layers": 2, "n_heads": 3, "d_model": 15}


def test_what_is_left_out_follows_from_the_width() -> None:
    config = GPTConfig(**SIZES)
    assert (config.d_head, config.d_mlp) == (5, 60)
    assert config.attn_scale == math.sqrt(5)
    assert not config.attn_only
    assert GPTConfig(**SIZES, d_mlp=0).attn_only


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_survives_its_dictionary(name: str) -> None:
    assert GPTConfig.from_dict(PRESETS[name].to_dict()) == PRESETS[name]


def test_a_changed_width_carries_what_follows_from_it() -> None:
    changed = preset("course", d_model=96, n_heads=3)
    assert (changed.d_mlp, changed.attn_scale) == (384, math.sqrt(32))
    assert preset("course", d_model=96, d_mlp=7).d_mlp == 7
    assert preset("gpt2", d_vocab=50304).d_vocab == 50304


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n_heads": 4}, "n_heads=4 does not divide d_model=15"),
        ({"n_layers": 0}, "n_layers=0 is not a whole number from 1 up"),
        ({"d_vocab": 2.5}, "d_vocab=2.5"),
        ({"n_ctx": True}, "n_ctx=True"),
        ({"d_mlp": -1}, "d_mlp=-1"),
        ({"act_fn": "silu"}, "act_fn='silu' is not known: use one of gelu, gelu_new, relu"),
        ({"init_mode": "xavier"}, "use one of pytorch, gpt2"),
        ({"eps": -1e-5}, "eps=-1e-05"),
        ({"eps": math.nan}, "eps=nan"),
        ({"attn_scale": 0}, "attn_scale=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"bias": None}, "bias=None is neither true nor false"),
        ({"rotary": True}, "unknown rotary"),
    ],
)
def test_what_is_not_a_gpt_is_refused(change: dict, said: str) -> None:
    with pytest.raises(ModelError, match=said.replace("(", r"\(")):
        GPTConfig.from_dict(SIZES | change)


def test_a_missing_size_is_named() -> None:
    with pytest.raises(ModelError, match="missing n_ctx"):
        GPTConfig.from_dict({k: v for k, v in SIZES.items() if k != "n_ctx"})


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(ModelError, match=r"no preset 'curse'.*course, shakespeare-char, gpt2"):
        preset("curse")
