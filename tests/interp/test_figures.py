"""Figures show the numbers of results, every token literally, and look alike everywhere."""

from __future__ import annotations

import html
import json
import re
import unicodedata

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_models import random_hooked

import interp
from interp import InputError, figures
from interp.figures.glyphs import escaped, legend, plain, quoted, signed, visible
from interp.figures.theme import DARK, LIGHT
from interp.inputs import contrast, vocabulary
from interp.metrics import logit_difference
from interp.patching import activation_patching

PROMPT = "abcacde"
OF_TRAINING = ("change_points", "training_curves", "training_map", "training_report")
"""figures of many checkpoints, which have tests of their own"""
TEXT = "abcacdeabdkjihgfedcba" * 3


@pytest.fixture(scope="module")
def model():
    return random_hooked()


@pytest.fixture(scope="module")
def drawn(model):
    """One figure of each kind, by name, for a light and for a dark page."""
    words = vocabulary(model)
    patterns = interp.attention_patterns(model, PROMPT)
    lens = interp.logit_lens(model, PROMPT, top=4, logits=True)
    parts = interp.direct_logit_attribution(model, PROMPT, "a", "c")
    pair, metric = contrast(model, PROMPT, "abcbcde"), logit_difference(model, "a", "c")
    patched = activation_patching(model, pair, metric, "resid_pre")
    by_head = activation_patching(model, pair, metric, "z")
    view = interp.sphere_view(model, PROMPT)
    statistics = interp.neuron_statistics(model, TEXT, top=3)
    sides = [interp.token_losses(model, text) for text in (PROMPT, "abcbcde")]
    sources = interp.source_attribution(model, PROMPT, "a", "c")
    two = interp.compare(*sides, "loss")

    def each(dark: bool) -> dict[str, go.Figure]:
        return {
            "montage": figures.attention_montage(patterns, selected=(1, 2), dark=dark),
            "pattern": figures.attention_head(patterns, 1, 2, query_pos=3, dark=dark),
            "scores": figures.head_scores(
                interp.head_scores(model, PROMPT), selected=(1, 2), dark=dark
            ),
            "grid": figures.lens_grid(lens, words, selected=("1_mid", 2), dark=dark),
            "best": figures.lens_top(lens, words, "1_mid", 2, dark=dark),
            "path": figures.lens_path(lens, words, 2, 0, 2, dark=dark),
            "bars": figures.attribution_bars(parts, 5, dark=dark),
            "heads": figures.attribution_heads(parts, 5, dark=dark),
            "positions": figures.attribution_positions(parts, pos=5, dark=dark),
            "patching": figures.patching_map(patched, pos=6, dark=dark),
            "estimate": figures.patching_estimate(
                interp.attribution_patching(model, pair, metric, "resid_pre"), pos=6, dark=dark
            ),
            "patched heads": figures.patching_map(by_head, dark=dark),
            "ball": figures.sphere_ball(view, pos=2, dark=dark),
            "radii": figures.sphere_radius(interp.sphere_radius(model, PROMPT), pos=2, dark=dark),
            "hops": figures.sphere_hops(interp.sphere_path(model, PROMPT), pos=2, dark=dark),
            "losses": figures.token_losses(interp.token_losses(model, PROMPT), pos=2, dark=dark),
            "next": figures.next_token_bars(
                interp.next_token(model, PROMPT, temperature=0.5, top_k=4), dark=dark
            ),
            "circuit": figures.circuit_map(
                interp.circuit_table(model, 1, 2, "OV"), selected=(3, 5), dark=dark
            ),
            "pair": figures.pair_bars(
                interp.pair_places(model, PROMPT, 1, 2, "QK", "c", "a"), dark=dark
            ),
            "spectra": figures.head_spectra(interp.circuit_spectra(model), 1, 2, dark=dark),
            "composition": figures.composition_map(
                interp.composition_scores(model), 1, 2, dark=dark
            ),
            "neurons": figures.neuron_bars(
                interp.top_neurons(model, PROMPT, "a", "c"), selected=(0, 5), dark=dark
            ),
            "activity": figures.neuron_activity(
                interp.neuron_activation(model, PROMPT, 1, 5), pos=2, dark=dark
            ),
            "windows": figures.neuron_windows(
                interp.neuron_examples(model, TEXT, statistics, 1, 5), dark=dark
            ),
            "histogram": figures.neuron_histogram(statistics, 1, 5, dark=dark),
            "change": figures.prediction_change(
                interp.neuron_ablation(model, PROMPT, 1, 5, "a", "c"), dark=dark
            ),
            "comparison": figures.comparison(two, names=("<b>", "other"), pos=2, dark=dark),
            "effects": figures.effect_bars(
                interp.direct_effect(model, PROMPT, "a", "c"), 5, selected="L1H1", dark=dark
            ),
            "sources": figures.source_map(sources, 5, selected=(1, 2), dark=dark),
            "source": figures.source_bars(sources, 1, 2, 5, dark=dark),
            "mlp": figures.neuron_parts(
                interp.neuron_attribution(model, PROMPT, "a", "c"), 1, 5, dark=dark
            ),
            "senders": figures.sender_bars(
                interp.edge_attribution(model, pair, metric), selected="L0H1", dark=dark
            ),
            "receivers": figures.receiver_bars(
                interp.path_patching(model, pair, metric, senders=["L0H1"]),
                selected="logits",
                dark=dark,
            ),
            "layernorm": figures.layernorm_steps(
                interp.layernorm_steps(model, PROMPT, "1_mid", pos=2), dark=dark
            ),
            "followed": figures.lens_followed(lens, words, 2, dark=dark),
            "split": figures.update_split(interp.update_split(model, PROMPT), 2, dark=dark),
        }

    return {False: each(False), True: each(True)}


def test_every_public_figure_is_drawn_here(drawn):
    made = {name for name in figures.__all__ if name not in ("LENS_MEASURES", *OF_TRAINING)}
    assert len(drawn[False]) == len(made) + 1  # one of them twice


@pytest.mark.parametrize("dark", [False, True])
def test_figures_bring_their_own_look(drawn, dark):
    look = DARK if dark else LIGHT
    for name, figure in drawn[dark].items():
        template = figure.layout.template.layout
        assert template.paper_bgcolor == look.page, name
        assert figure.layout.height, name
    before = pio.templates.default
    try:
        pio.templates.default = "ggplot2"
        again = figures.attribution_heads(
            interp.direct_logit_attribution(random_hooked(), PROMPT, "a", "c"), 5, dark=dark
        )
    finally:
        pio.templates.default = before
    assert again.to_json() == drawn[dark]["heads"].to_json()


@pytest.mark.parametrize("dark", [False, True])
def test_axes_say_what_they_are(drawn, dark):
    no_words_needed = {
        "bars", "heads", "positions", "split", "comparison", "effects", "sources", "mlp",
        "layernorm",
    }  # fmt: skip  # rows named one by one
    for name, figure in drawn[dark].items():
        axes = [*figure.select_xaxes(), *figure.select_yaxes()]
        titled = [axis for axis in axes if axis.title.text]
        if name == "ball":
            assert figure.layout.scene.zaxis.title.text == "axis 3"
        elif len(axes) == 2 and name not in no_words_needed:
            assert len(titled) == 2, name
        else:
            assert titled or name == "heads", name


def test_patterns_are_shown_with_an_empty_future(model, drawn):
    shown = np.array(drawn[False]["pattern"].data[0].z)
    truth = interp.attention_patterns(model, PROMPT).to_numpy()[0, 1, 2]
    future = np.triu_indices(7, 1)
    assert np.isnan(shown[future]).all()
    assert np.allclose(np.tril(np.nan_to_num(shown)), truth, atol=1e-7)
    assert (drawn[False]["pattern"].data[0].zmin, drawn[False]["pattern"].data[0].zmax) == (0, 1)


def test_the_montage_names_every_head_and_frames_the_chosen_one(drawn):
    figure = drawn[False]["montage"]
    assert [list(each) for each in figure.data[1].customdata] == [
        [layer, head] for layer in range(2) for head in range(3)
    ]
    frames = [shape for shape in figure.layout.shapes if shape.line.color == LIGHT.accent]
    (frame,) = frames
    marker = [list(each) for each in figure.data[1].customdata].index([1, 2])
    assert frame.x0 < figure.data[1].x[marker] < frame.x1
    assert frame.y0 < figure.data[1].y[marker] < frame.y1


def test_the_montage_draws_each_pattern(model):
    import base64
    import io

    from PIL import Image

    patterns = interp.attention_patterns(model, PROMPT)
    source = figures.attention_montage(patterns).data[0].source
    image = Image.open(io.BytesIO(base64.b64decode(source.split(",")[1])))
    pixels = np.array(image)
    truth = patterns.to_numpy()[0]
    pitch = 7 + 2
    for layer, head in np.ndindex(2, 3):
        tile = pixels[layer * pitch :, head * pitch :][:7, :7]
        inside = np.tril_indices(7)
        assert np.allclose(tile[inside] / 254, truth[layer, head][inside], atol=0.5 / 254 + 1e-9)
        assert (tile[np.triu_indices(7, 1)] == 255).all()


def test_a_long_pattern_is_thinned_to_its_largest_cells():
    from interp.figures.attention import _thinned

    values = np.random.default_rng(0).random((1, 2, 300, 300))
    thin = _thinned(values)
    assert thin.shape == (1, 2, 100, 100)
    assert np.array_equal(thin[0, 1, 7, 5], values[0, 1, 21:24, 15:18].max())


def test_the_lens_grid_writes_the_top_token_and_its_probability(model, drawn):
    lens = interp.logit_lens(model, PROMPT)
    (heatmap,) = drawn[False]["grid"].data
    words = vocabulary(model)
    best = lens["top_ids"].to_numpy()[:, 0, :, 0]
    assert [[re.sub("<.*?>", "", t) for t in row] for row in heatmap.text] == [
        [words[i] for i in row] for row in best
    ]
    assert np.allclose(heatmap.z, lens["top_probability"].to_numpy()[:, 0, :, 0], atol=1e-6)
    assert heatmap.customdata[1, 2, :2].tolist() == ["0_mid", "2"]


def test_every_measure_of_the_lens_can_colour_the_grid(model):
    lens = interp.logit_lens(model, PROMPT, target="b")
    words = vocabulary(model)
    for measure in figures.LENS_MEASURES:
        figure = figures.lens_grid(lens, words, show=measure)
        values = lens[measure].to_numpy()[:, 0]
        values = values[..., 0] if measure == "top_probability" else values
        hovered = figure.data[0].customdata[..., 6]
        assert np.array_equal(hovered == "none", np.isnan(values))
        told = ~np.isnan(values)
        assert np.allclose(hovered[told].astype(float), values[told], rtol=1e-3)


def test_the_lens_path_ends_at_the_models_own_difference(model, drawn):
    logits = model(model.to_tokens(PROMPT))[0, 2]
    assert drawn[False]["path"].data[0].x[-1] == pytest.approx(float(logits[0] - logits[2]))


def test_attribution_bars_end_at_the_models_own_difference(model, drawn):
    logits = model(model.to_tokens(PROMPT))[0, 5]
    bars, _, whole, truth = drawn[False]["bars"].data
    assert bars.base[-1] + bars.x[-1] == pytest.approx(float(logits[0] - logits[2]))
    assert whole.x[0] == pytest.approx(truth.x[0], abs=1e-10)
    starts, lengths = np.array(bars.base, dtype=float), np.array(bars.x)
    assert np.allclose(starts[1:], (starts + lengths)[:-1])


def test_small_parts_share_a_bar_and_nothing_is_lost(model):
    parts = interp.direct_logit_attribution(model, PROMPT, "a", "c")
    for by_size in (False, True):
        bars = figures.attribution_bars(parts, 5, most=4, by_size=by_size).data[0]
        assert len(bars.x) == 5
        assert sum(bars.x) == pytest.approx(float(parts["logit"][0, 5]))
    assert sorted(map(abs, bars.x[:4]), reverse=True) == list(map(abs, bars.x[:4]))


def test_the_map_of_parts_holds_each_head_bias_and_mlp(model, drawn):
    parts = interp.direct_logit_attribution(model, PROMPT, "a", "c")["part"][:, 0, 5]
    heatmap = drawn[False]["heads"].data[0]
    assert list(drawn[False]["heads"].layout.xaxis.ticktext) == ["H0", "H1", "H2", "bias", "MLP"]
    rows = ["L1H0", "L1H1", "L1H2", "1_attn_bias", "1_mlp_out"]
    assert [cell[0] for cell in heatmap.customdata[1]] == rows
    assert np.allclose(heatmap.z[1], parts.sel(component=rows), atol=1e-6)


@pytest.mark.parametrize("name", ["heads", "positions", "patching", "patched heads"])
def test_signed_scales_have_zero_in_the_middle(drawn, name):
    for look, dark in ((LIGHT, False), (DARK, True)):
        heatmap = drawn[dark][name].data[0]
        assert heatmap.zmin == -heatmap.zmax
        assert heatmap.colorscale[3] == (0.5, look.page)


def test_patching_clips_colours_and_keeps_numbers(model):
    pair, metric = contrast(model, PROMPT, "abcbcde"), logit_difference(model, "a", "c")
    patched = activation_patching(model, pair, metric, "resid_pre")
    far = patched.assign(fraction=patched["fraction"] * 100)
    heatmap = figures.patching_map(far).data[0]
    assert (heatmap.zmin, heatmap.zmax) == (-1, 1)
    assert np.allclose(heatmap.z, far["fraction"][0], atol=1e-4)
    change = figures.patching_map(patched, show="change").data[0]
    assert np.allclose(change.z, patched["raw"][0] - patched["base"][0], atol=1e-6)


def test_hops_are_shown_in_degrees(model, drawn):
    angles = interp.sphere_path(model, PROMPT)["hop_angle"][:, 0]
    assert np.allclose(drawn[False]["hops"].data[0].z, np.degrees(angles), atol=1e-4)


def test_the_ball_draws_points_where_the_view_puts_them(model, drawn):
    view = interp.sphere_view(model, PROMPT)
    points = next(t for t in drawn[False]["ball"].data if t.mode == "markers+text")
    assert np.allclose(np.array([points.x, points.y, points.z]), view["coordinate"][:, -1, 0])
    path = next(t for t in drawn[False]["ball"].data if t.name == "path of position 2")
    assert np.allclose(np.array([path.x, path.y, path.z]), view["coordinate"][:, :, 0, 2])


def test_losses_and_what_was_expected_are_drawn_as_they_are(model, drawn):
    losses = interp.token_losses(model, PROMPT)
    bars, expected, touch = drawn[False]["losses"].data
    assert np.array_equal(bars.y, losses["loss"][0], equal_nan=True)
    assert np.array_equal(expected.y, losses["entropy"][0], equal_nan=True)
    assert {each[0] for each in touch.customdata} == set(range(7))


def test_next_tokens_are_ordered_by_what_the_model_says_and_cuts_are_named(model, drawn):
    after = interp.next_token(model, PROMPT, temperature=0.5, top_k=4).isel(batch=0)
    bars, numbers, marks = drawn[False]["next"].data
    assert np.array_equal(marks.x, np.sort(after["probability"])[::-1])
    assert sum(bars.x) == pytest.approx(1)
    assert [text.strip() == "cut" for text in numbers.text] == [False] * 4 + [True] * 7
    plain_bars = figures.next_token_bars(interp.next_token(model, PROMPT), most=5)
    assert len(plain_bars.data[0].y) == 5
    assert len(plain_bars.data) == 2


def test_the_circuit_map_holds_the_table_and_frames_the_pair(model, drawn):
    table = interp.circuit_table(model, 1, 2, "OV")
    (heatmap,) = drawn[False]["circuit"].data
    assert np.allclose(heatmap.z, table, atol=1e-5)
    ids = heatmap.customdata[..., :2].astype(int)
    assert np.array_equal(ids, np.moveaxis(np.indices((11, 11)), 0, -1))
    frame = next(s for s in drawn[False]["circuit"].layout.shapes if s.type == "rect")
    assert (frame.x0 + 0.5, frame.y0 + 0.5) == (5, 3)


def test_composition_shows_each_pair_of_layers_once(model):
    scores = interp.composition_scores(random_hooked(n_layers=3))["excess"].to_numpy()
    figure = figures.composition_map(interp.composition_scores(random_hooked(n_layers=3)), 1, 2)
    z = np.array(figure.data[0].z)
    assert z.shape == (3, 6)
    assert np.allclose(z[:, :3], scores[:, 0, :, 1, 2], atol=1e-6)
    assert np.allclose(z[:, 3:], scores[:, 1, 2, 2, :], atol=1e-6)
    assert figure.data[0].customdata[0, :, :2].astype(int).tolist() == [
        [0, 0], [0, 1], [0, 2], [2, 0], [2, 1], [2, 2]
    ]  # fmt: skip


def test_neuron_windows_show_the_text_and_frame_its_peak(model, drawn):
    statistics = interp.neuron_statistics(model, TEXT, top=3)
    examples = interp.neuron_examples(model, TEXT, statistics, 1, 5)
    figure = drawn[False]["windows"]
    assert np.allclose(figure.data[0].z, examples["activation"], atol=1e-5)
    assert [[re.sub("<.*?>", "", t) for t in row] for row in figure.data[0].text] == (
        examples["tokens"].to_numpy().tolist()
    )
    assert [s.x0 + 0.5 for s in figure.layout.shapes] == examples["peak"].to_numpy().tolist()


@pytest.mark.parametrize(
    ("analysis", "cut", "settings"),
    [
        (lambda m, text: interp.attention_patterns(m, text), {"layer": 1, "head": 2}, {}),
        (lambda m, text: interp.logit_lens(m, text)["probability"], {}, {"pos": 2}),
        (lambda m, text: interp.sphere_path(m, text)["hop_angle"], {}, {"pos": 2}),
        (lambda m, text: interp.next_token(m, text)["probability"], {}, {}),
        (lambda m, text: interp.direct_logit_attribution(m, text, "a")["part"], {"pos": 3}, {}),
    ],
)
def test_a_comparison_draws_both_sides_and_the_difference(model, analysis, cut, settings):
    compared = interp.compare(*[analysis(model, text) for text in (PROMPT, "abcbcde")], **cut)
    data = figures.comparison(compared, **settings).data
    assert len(data) == 3
    if compared["first"].ndim == 2:
        for trace, name in zip(data, ("first", "second", "difference"), strict=True):
            want = compared[name].to_numpy()
            shown = np.array(trace.z)
            assert np.allclose(shown[~np.isnan(shown)], want[~np.isnan(shown)], atol=1e-5)
        assert data[2].zmin == -data[2].zmax
        assert (data[0].zmin, data[0].zmax) == (data[1].zmin, data[1].zmax)
    else:
        sides = [np.array(trace.x) for trace in data]
        assert np.allclose(sides[1] - sides[0], sides[2])
        assert np.allclose(np.sort(sides[0]), np.sort(compared["first"].to_numpy()))


def test_opened_parts_sum_to_what_was_opened(model, drawn):
    parts = interp.direct_logit_attribution(model, PROMPT, "a", "c")["part"][:, 0, 5]
    source = drawn[False]["source"].data[0]
    assert sum(source.y) == pytest.approx(float(parts.sel(component="L1H2")))
    assert len(source.x) == 6
    mlp = drawn[False]["mlp"].data[0]
    assert sum(mlp.x) == pytest.approx(float(parts.sel(component="1_mlp_out")))
    cells = np.array(drawn[False]["sources"].data[0].z)
    names = [f"L{layer}H{head}" for layer in range(2) for head in range(3)]
    assert np.allclose(cells.sum(1), parts.sel(component=names), atol=1e-5)


def test_whole_sublayers_sum_to_the_same_logit(model):
    parts = interp.direct_logit_attribution(model, PROMPT, "a", "c")
    bars = figures.attribution_bars(parts, 5, whole_sublayers=True, selected="0_attn_out").data[0]
    assert [each[0] for each in bars.customdata] == [
        "embed", "pos_embed", "0_attn_out", "0_mlp_out", "1_attn_out", "1_mlp_out", "bias"
    ]  # fmt: skip
    assert sum(bars.x) == pytest.approx(float(parts["logit"][0, 5]))
    inside = ["L0H0", "L0H1", "L0H2", "0_attn_bias"]
    want = float(parts["part"].sel(component=inside)[:, 0, 5].sum())
    assert bars.x[2] == pytest.approx(want)


def test_effects_are_drawn_beside_their_frozen_part(model, drawn):
    effects = interp.direct_effect(model, PROMPT, "a", "c").isel(batch=0, pos=5)
    frozen, exact = drawn[False]["effects"].data
    assert np.allclose(frozen.x, effects["frozen"])
    assert np.allclose(exact.x, effects["exact"])


def test_paths_are_drawn_for_whoever_hears_the_sender(model, drawn):
    pair, metric = contrast(model, PROMPT, "abcbcde"), logit_difference(model, "a", "c")
    change = interp.path_patching(model, pair, metric, senders=["L0H1"])["change"][0, 0]
    bars = drawn[False]["receivers"].data[0]
    heard = {each[0]: x for each, x in zip(bars.customdata, bars.x, strict=True)}
    assert "L0H1.q" not in heard
    assert set(heard) == set(change["receiver"].to_numpy()[np.isfinite(change)])
    assert all(heard[name] == pytest.approx(float(change.sel(receiver=name))) for name in heard)
    fewer = figures.receiver_bars(
        interp.path_patching(model, pair, metric, senders=["L0H1"]), most=2, selected="logits"
    )
    assert "logits" in {each[0] for each in fewer.data[0].customdata}
    estimates = interp.edge_attribution(model, pair, metric)[0]
    sizes = np.nansum(np.abs(estimates), axis=1)
    assert np.allclose(drawn[False]["senders"].data[0].x, sizes)


def test_the_followed_token_is_drawn_with_its_rank(model, drawn):
    lens = interp.logit_lens(model, PROMPT)
    line = drawn[False]["followed"].data[0]
    assert np.array_equal(line.x, lens["probability"][:, 0, 2])
    assert [each[2] for each in line.customdata] == lens["rank"][:, 0, 2].to_numpy().tolist()


def test_what_survives_of_an_update_is_written_beside_it(model, drawn):
    split = interp.update_split(model, PROMPT).isel(batch=0, pos=2)
    whole = split.isel(component=np.isin(split["kind"].to_numpy(), ("attn", "mlp")))
    told = [note.text for note in drawn[False]["split"].layout.annotations]
    assert told == [f"{1 - killed:.0%} survives" for killed in whole["killed"].to_numpy()]


def test_shares_of_an_update_sum_to_one(drawn):
    assert np.allclose(np.sum([bar.x for bar in drawn[False]["split"].data], axis=0), 1)


def test_figures_survive_a_file(drawn):
    for figure in drawn[False].values():
        assert json.loads(figure.to_json())["data"]
        assert "<div" in figure.to_html(include_plotlyjs=False)


@pytest.mark.parametrize("n_pos", [64, 96, 97, 256])
def test_long_prompts_have_readable_axes(n_pos):
    model = random_hooked(n_ctx=256)
    patterns = interp.attention_patterns(model, ("abcadefbgh" * 26)[:n_pos])
    axis = figures.attention_head(patterns, 0, 0).layout.xaxis
    if n_pos <= 96:
        assert list(axis.tickvals) == list(range(n_pos))
        assert len(axis.ticktext) == n_pos
    else:
        assert list(axis.tickvals) == list(range(0, n_pos, 16))
    assert len(axis.labelalias) == n_pos


@pytest.mark.parametrize(
    "draw",
    [
        lambda m: figures.attention_head(interp.attention_patterns(m, PROMPT), 2, 0),
        lambda m: figures.attention_montage(interp.attention_patterns(m, ["ab", "cd"])),
        lambda m: figures.lens_grid(interp.logit_lens(m, "ab"), vocabulary(m), show="loss"),
        lambda m: figures.lens_top(interp.logit_lens(m, "ab"), vocabulary(m), "9_pre", 0),
        lambda m: figures.lens_path(interp.logit_lens(m, "ab"), vocabulary(m), 0, 0, 1),
        lambda m: figures.attribution_bars(interp.direct_logit_attribution(m, "ab", "a", pos=0), 1),
        lambda m: figures.attribution_heads(interp.direct_logit_attribution(m, "ab", None), 1),
        lambda m: figures.sphere_ball(interp.sphere_view(m, "ab"), state="9_pre"),
        lambda m: figures.update_split(interp.update_split(m, "ab"), 2),
        lambda m: figures.pair_bars(interp.pair_places(m, "ab", 0, 0, "QK", "c", "d")),
        lambda m: figures.head_spectra(interp.circuit_spectra(m), 2, 0),
        lambda m: figures.composition_map(interp.composition_scores(m), 0, 3),
        lambda m: figures.neuron_histogram(interp.neuron_statistics(m, TEXT), 0, 23),
        lambda m: figures.comparison(
            interp.compare(*[interp.attention_patterns(m, "ab")] * 2, layer=1)
        ),
        lambda m: figures.patching_map(
            activation_patching(
                m,
                contrast(m, "ab", "cb"),
                logit_difference(m, "a", "b"),
                "z",
                over=("layer", "head", "pos"),
            )
        ),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_sentence(model, draw):
    with pytest.raises(InputError):
        draw(model)


def test_a_model_without_mlps_is_drawn(model):
    small = random_hooked(attn_only=True)
    grid = figures.lens_grid(interp.logit_lens(small, "abc"), vocabulary(small))
    assert list(grid.layout.yaxis.ticktext) == ["embedding", "L0 attention", "L1 attention"]
    hops = figures.sphere_hops(interp.sphere_path(small, "abc"))
    assert list(hops.layout.yaxis.ticktext) == ["L0 attention", "L1 attention"]


characters = st.characters(codec="utf-8")


@given(st.text())
def test_nothing_invisible_is_left(text):
    shown = visible(text)
    assert shown
    for character in shown:
        assert unicodedata.category(character)[0] not in "CZ"


@given(characters, characters)
def test_different_characters_look_different(one, other):
    assert (visible(one) == visible(other)) == (one == other)


@given(st.text())
def test_plotly_reads_back_what_was_written(text):
    written = escaped(text)
    assert html.unescape(written) == html.unescape(html.unescape(html.escape(text)))
    assert "<" not in written
    assert "$" not in written
    assert not re.search(r"&(?!amp;|lt;|gt;|#36;)", written)


def test_glyphs():
    assert visible("a b\n\tc") == "a␣b↵⇥c"
    assert visible("␣") == "U+2423"
    assert visible("\u200b\r\x00") == "U+200BU+000DU+0000"
    assert visible("\u0301") == "◌\u0301"
    assert visible("") == "∅"
    assert quoted("<\n>") == "'&lt;\\n&gt;'"
    assert "<b>" not in plain("<b>")
    assert legend(["a", " x", "\n"]) == "␣ space   ↵ newline"
    assert [signed(v) for v in (0.004, -0.004, -1.25, 2.0)] == ["0.00", "0.00", "−1.25", "+2.00"]
