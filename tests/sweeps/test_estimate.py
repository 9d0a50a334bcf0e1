from __future__ import annotations

from dataclasses import replace

from equiscale.core.spec import Scenario
from equiscale.runs.key import RunKey
from equiscale.sweeps.estimate import Timing, estimate_run, estimate_runs
from equiscale.sweeps.grid import DatasetChoice

EMOJI = DatasetChoice("emoji", "emoji", "aa", 36)
KEY = RunKey("standard", "emoji", "aa", Scenario.MID_TO_REST, 1)


def timing(key: RunKey, seconds: float, images: int = 576) -> Timing:
    return Timing(key, images, run_seconds=seconds)


def test_the_same_cell_is_the_best_guide() -> None:
    timings = [
        timing(KEY, 10),
        timing(replace(KEY, seed=2), 20),
        timing(replace(KEY, model="xu"), 99),
    ]
    assert estimate_run(replace(KEY, seed=3), timings, EMOJI) == 15


def test_another_scenario_counts_per_image() -> None:
    assert estimate_run(replace(KEY, scenario=Scenario.ALL_TO_ALL), [timing(KEY, 10)], EMOJI) == 30


def test_another_dataset_counts_per_image() -> None:
    other = replace(EMOJI, content_hash="bb", num_objects=72)
    assert estimate_run(replace(KEY, dataset_hash="bb"), [timing(KEY, 10)], other) == 20


def test_another_model_or_protocol_says_nothing() -> None:
    timings = [timing(replace(KEY, model_options={"a": 1}), 10)]
    assert estimate_run(KEY, timings, EMOJI) is None


def test_the_sum_says_what_it_does_not_know() -> None:
    keys = [KEY, replace(KEY, seed=2), replace(KEY, model="xu")]
    estimate = estimate_runs(keys, [timing(KEY, 10)], [EMOJI])
    assert estimate.seconds == 20
    assert estimate.unknown_runs == 1


def test_a_run_takes_its_time_however_many_run_at_once() -> None:
    timings = [timing(KEY, 10), timing(replace(KEY, model="xu"), 60)]
    keys = [replace(KEY, seed=2), replace(KEY, seed=3), replace(KEY, model="xu", seed=2)]
    estimate = estimate_runs(keys, timings, [EMOJI])
    assert estimate.seconds_left(slots=1) == 80
    assert estimate.seconds_left(slots=8) == 60
