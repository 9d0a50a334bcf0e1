from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from equiscale.core.spec import Scenario
from equiscale.runs.key import RunKey
from equiscale.sweeps.estimate import Timing, estimate_run, estimate_runs
from equiscale.sweeps.grid import DatasetChoice

EMOJI = DatasetChoice("emoji", "emoji", "aa", 36)
KEY = RunKey("standard", "emoji", "aa", Scenario.MID_TO_REST, 1)


OTHER_DATA = replace(EMOJI, content_hash="bb", num_objects=72)
MEASURED = [
    Timing(KEY, 576, 10),
    Timing(replace(KEY, seed=2), 576, 20),
    Timing(replace(KEY, model="xu"), 576, 60),
]


@pytest.mark.parametrize(
    ("changes", "dataset", "seconds"),
    [
        ({"seed": 3}, EMOJI, 15),
        ({"scenario": Scenario.ALL_TO_ALL}, EMOJI, 45),
        ({"dataset_hash": "bb"}, OTHER_DATA, 30),
        ({"model_options": {"a": 1}}, EMOJI, None),
    ],
    ids=["same cell", "another scenario, per image", "another dataset, per image", "another model"],
)
def test_the_nearest_runs_are_the_guide(
    changes: dict[str, Any], dataset: DatasetChoice, seconds: float | None
) -> None:
    assert estimate_run(replace(KEY, **changes), MEASURED, dataset) == seconds


def test_the_sum_says_what_it_does_not_know_and_how_long_the_longest_takes() -> None:
    keys = [replace(KEY, seed=3), replace(KEY, model="xu", seed=2), replace(KEY, model="disco")]
    estimate = estimate_runs(keys, MEASURED, [EMOJI])
    assert (estimate.seconds, estimate.unknown_runs) == (75, 1)
    assert estimate.seconds_left(slots=1) == 75
    assert estimate.seconds_left(slots=8) == 60
