"""Many threads on one model, and calls broken off half-way: nothing is shared, nothing is left."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from random_models import random_hooked

from interp.ablation import ablation
from interp.attribution import attribution_patching
from interp.engine import trace
from interp.inputs import contrast
from interp.metrics import logit_difference
from interp.patching import activation_patching
from interp.paths import path_patching

PAIRS = [("abcdefg", "abhdefg"), ("kbcdebc", "abcdebc"), ("gfedcba", "gfkdcba")]


def calls(model):
    """Different questions on one model, each as a function of nothing."""
    metric = logit_difference(model, "a", "b")

    for source, base in PAIRS:
        pair = contrast(model, source, base)
        for kinds in ("resid_pre", "z", ("q", "k")):
            yield lambda p=pair, k=kinds: activation_patching(model, p, metric, k).raw.to_numpy()
        yield lambda p=pair: attribution_patching(model, p, metric, "z").to_numpy()
        yield lambda text=base, other=source: ablation(
            model, text, metric, "z", reference=[other, text]
        ).raw.to_numpy()
        yield lambda text=base: trace(model, text).logits.numpy()
        yield lambda p=pair: model(p.base).numpy()
    pair = contrast(model, *PAIRS[0])
    yield lambda: path_patching(model, pair, metric, receivers=["1_mlp_in"]).raw.to_numpy()


def hammer(seconds: float, n_threads: int = 8) -> int:
    """Runs all calls from many threads; returns how many results were compared."""
    model = random_hooked(60)
    questions = list(calls(model))
    expected = [question() for question in questions]
    end = time.monotonic() + seconds
    wrong: list[object] = []
    compared = [0] * n_threads

    def work(me: int) -> None:
        order = np.random.default_rng(me)
        try:
            while time.monotonic() < end or compared[me] == 0:
                i = int(order.integers(len(questions)))
                np.testing.assert_allclose(questions[i](), expected[i], rtol=0, atol=1e-12)
                compared[me] += 1
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    return sum(compared)


def test_eight_threads_get_what_one_gets():
    assert hammer(3) >= 8


@pytest.mark.slow
def test_eight_threads_for_half_a_minute():
    assert hammer(30) >= 8


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("when", ["in the metric", "in the progress report"])
def test_a_call_broken_off_leaves_the_model_and_its_hooks_alone(error, when):
    model = random_hooked(61)
    seen = []
    model.add_hook("blocks.0.attn.hook_z", lambda value, hook: seen.append(hook.name))
    hooks = {name: list(point.fwd_hooks) for name, point in model.hook_dict.items()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pair = contrast(model, *PAIRS[0])

    def raising(*_):
        raise error

    metric = raising if when == "in the metric" else logit_difference(model, "a", "b")
    with pytest.raises(error):
        activation_patching(model, pair, metric, "z", progress=raising, batch_size=2)
    assert {name: list(point.fwd_hooks) for name, point in model.hook_dict.items()} == hooks
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not seen, "the user's hook ran although the engine does not use hooks"
    model(pair.base)
    assert seen == ["blocks.0.attn.hook_z"]
