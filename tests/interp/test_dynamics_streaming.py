"""Any analysis through training: the numbers of the single models, once each, whatever happens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from random_series import RandomSeries

import interp
from interp.dynamics.fingerprint import fingerprint

IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
STEPS = (0, 1, 4, 16)


@pytest.fixture
def series(tmp_path: Path) -> RandomSeries:
    return RandomSeries(STEPS, [tmp_path / "run", tmp_path / "user"])


@pytest.mark.parametrize("steps", [STEPS, (16, 0, 4, 1)])
@pytest.mark.parametrize("analysis", [interp.head_scores, interp.sphere_path, interp.logit_lens])
def test_each_step_is_what_the_single_model_gives(series, steps, analysis):
    series.steps = steps
    found = interp.through_training(series, analysis, IDS)
    assert found["step"].to_numpy().tolist() == list(STEPS)
    np.testing.assert_array_equal(found["tokens_seen"], 7.0 * np.array(STEPS))
    for step in STEPS:
        alone = analysis(series.alone(step), IDS)
        here = found.sel(step=step)
        assert str(here["checkpoint"].item()) == alone.attrs["checkpoint"]
        for name, expected in alone.data_vars.items():
            assert here[name].dims == expected.dims
            attrs = {key: each for key, each in expected.attrs.items() if key != "checkpoint"}
            assert here[name].attrs == attrs
            np.testing.assert_array_equal(here[name].to_numpy(), expected.to_numpy())
        for name in alone.coords:
            assert here[name].to_numpy().tolist() == alone[name].to_numpy().tolist()


def test_an_array_comes_as_one_variable(series):
    found = interp.through_training(series, interp.attention_patterns, IDS, cache=None)
    expected = interp.attention_patterns(series.alone(4), IDS)
    xr.testing.assert_equal(
        found["pattern"].sel(step=4).drop_vars(["step", "tokens_seen", "checkpoint"]), expected
    )


def test_settings_reach_the_analysis(series):
    found = interp.through_training(series, interp.induction_scores, block=3, n_blocks=5, seed=2)
    alone = interp.induction_scores(series.alone(16), block=3, n_blocks=5, seed=2)
    np.testing.assert_array_equal(found["value"].sel(step=16), alone["value"])
    assert found.attrs["settings"] == {"block": 3, "n_blocks": 5, "seed": 2}


def test_what_the_run_recorded_is_joined_and_gaps_are_unknown(series):
    found = interp.through_training(series, interp.copying_scores)
    expected = [5.0, np.nan, 4.5, 3.0]
    np.testing.assert_array_equal(found["val_loss"], expected)


def own_val_loss(model) -> xr.DataArray:
    return xr.DataArray(float(model.checkpoint_hash[-1]), name="val_loss")


def test_the_analysis_keeps_its_own_where_a_record_has_the_same_name(series):
    found = interp.through_training(series, own_val_loss)
    np.testing.assert_array_equal(found["val_loss"], [0, 1, 4, 6])


def test_what_is_kept_is_the_same_and_is_not_done_again(series):
    first = interp.through_training(series, interp.head_scores, IDS)
    assert series.loaded == list(STEPS)
    assert (series.folders[0] / "head_scores.safetensors").is_file()
    again = interp.through_training(series, interp.head_scores, IDS)
    assert series.loaded == list(STEPS)
    assert again.identical(first)
    some = interp.through_training(series, interp.head_scores, IDS, steps=(4, 1))
    assert series.loaded == list(STEPS)
    xr.testing.assert_equal(some, first.sel(step=[1, 4]))


def test_a_call_that_was_stopped_goes_on(series):
    class StoppedError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        interp.through_training(series, interp.head_scores, IDS, progress=stop)
    assert series.loaded == [0, 1]
    found = interp.through_training(series, interp.head_scores, IDS)
    assert series.loaded == [0, 1, 4, 16]
    fresh = interp.through_training(series, interp.head_scores, IDS, cache=None)
    xr.testing.assert_equal(found, fresh)


def test_other_settings_or_weights_are_done_anew(series):
    interp.through_training(series, interp.head_scores, IDS)
    other = interp.through_training(series, interp.head_scores, IDS.flip(1))
    np.testing.assert_array_equal(
        other["value"].sel(step=1), interp.head_scores(series.alone(1), IDS.flip(1))["value"]
    )
    series.seed, series.loaded = 1, []
    trained_again = interp.through_training(series, interp.head_scores, IDS.flip(1))
    assert series.loaded == list(STEPS)
    np.testing.assert_array_equal(
        trained_again["value"].sel(step=4),
        interp.head_scores(series.alone(4), IDS.flip(1))["value"],
    )


def test_only_the_changed_step_is_done_anew(series, monkeypatch):
    interp.through_training(series, interp.head_scores, IDS)
    own = series.checkpoint
    series.loaded = []
    monkeypatch.setattr(series, "checkpoint", lambda step: own(step) + " new" * (step == 4))
    interp.through_training(series, interp.head_scores, IDS)
    assert series.loaded == [4]


def test_missing_and_damaged_steps_are_named_and_left_out(series):
    series.missing, series.damaged = {1}, {4}
    found = interp.through_training(series, interp.head_scores, IDS)
    assert found["step"].to_numpy().tolist() == [0, 16]
    assert found.attrs["skipped"] == [[1, "step 1 is missing."], [4, "step 4 is damaged."]]
    series.missing, series.damaged = set(), set()
    mended = interp.through_training(series, interp.head_scores, IDS)
    assert mended["step"].to_numpy().tolist() == list(STEPS)
    assert mended.attrs["skipped"] == []
    assert series.loaded == [0, 16, 1, 4]


def broken_analysis(model) -> xr.DataArray:
    raise ValueError("a mistake of the analysis")


def test_a_mistake_of_the_analysis_is_not_taken_for_damage(series):
    with pytest.raises(ValueError, match="a mistake of the analysis"):
        interp.through_training(series, broken_analysis)


def test_a_damaged_cache_is_made_again(series):
    expected = interp.through_training(series, interp.head_scores, IDS)
    path = series.folders[0] / "head_scores.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    series.loaded = []
    assert interp.through_training(series, interp.head_scores, IDS).identical(expected)
    assert series.loaded == list(STEPS)


def test_a_folder_that_cannot_be_written_falls_back_on_the_next(series):
    series.folders[0].write_text("a file stands where the folder should be")
    interp.through_training(series, interp.head_scores, IDS)
    assert (series.folders[1] / "head_scores.safetensors").is_file()
    interp.through_training(series, interp.head_scores, IDS)
    assert series.loaded == list(STEPS)


def test_results_are_written_beside_and_renamed(series, monkeypatch):
    interp.through_training(series, interp.head_scores, IDS)
    path = series.folders[0] / "head_scores.safetensors"
    before = path.read_bytes()

    def full(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        interp.write_results(path, interp.head_scores(series.alone(0), IDS))
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def of_random_size(model) -> xr.DataArray:
    size = 2 + int(model.checkpoint_hash[-1])
    return xr.DataArray(np.zeros(size), dims="row", coords={"row": range(size)}, name="zeros")


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda s: interp.through_training(s, interp.head_scores, IDS, steps=(0, 3)), "Step 3"),
        (lambda s: interp.through_training(s, interp.head_scores, IDS, steps=()), "Step"),
        (lambda s: interp.through_training(s, lambda model: None), "cache=None"),
        (lambda s: interp.through_training(s, interp.head_scores, object()), "cache=None"),
        (lambda s: interp.through_training(s, of_random_size), "axes"),
        (lambda s: interp.read_results(__file__), "write_results"),
    ],
)
def test_what_cannot_be_done_is_said(series, call, word):
    with pytest.raises(interp.InputError, match=word):
        call(series)


def test_a_series_of_nothing_but_damage(series):
    series.missing = set(STEPS)
    with pytest.raises(interp.InputError, match="step 0 is missing"):
        interp.through_training(series, interp.head_scores, IDS)
    with pytest.raises(interp.InputError, match="step 0 is damaged"):
        interp.track_training(series)


def test_results_come_back_from_a_file(tmp_path):
    model = RandomSeries(STEPS).alone(1)
    result = interp.logit_lens(model, "abcab", target="d").assign(flag=True, none=np.nan)
    interp.write_results(tmp_path / "lens", result)
    back = interp.read_results(tmp_path / "lens")
    xr.testing.assert_equal(back, result)
    assert {n: v.dtype for n, v in back.data_vars.items()} == {
        n: v.dtype for n, v in result.data_vars.items()
    }
    assert back["rank"].attrs == result["rank"].attrs
    assert back.attrs["settings"] == result.attrs["settings"]


def test_a_fingerprint_tells_values_apart_and_nothing_else():
    ids = np.arange(6).reshape(2, 3)
    different = [
        (1,), (1.0,), ("1",), (True,), (None,), ((1,),), (1, 2), ((1, 2),), ({"a": 1},),
        ({"a": 2},), (ids,), (ids.T,), (ids.astype(np.int32),), (interp.head_scores,),
        (interp.Site("z", 1),), (interp.Site("z", 0),), ("ab", "c"), ("a", "bc"),
    ]  # fmt: skip
    assert len({fingerprint(*values) for values in different}) == len(different)
    assert fingerprint(torch.from_numpy(ids), {"b": 1, "a": [2]}) == fingerprint(
        ids.copy(), {"a": (2,), "b": 1}
    )
