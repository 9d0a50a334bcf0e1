"""A key and a record with some of their parts changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import safetensors.numpy

from equiscale.core.spec import OBJECT_SIZES, Scenario
from equiscale.runs.key import RunKey
from equiscale.runs.record import History, Measurement, Predictions, RunRecord


def make_key(**changes: Any) -> RunKey:
    fields = {"model": "standard", "dataset": "emoji", "dataset_hash": "ab" * 32, "seed": 1}
    return RunKey(**{**fields, "scenario": Scenario.MID_TO_REST, **changes})


def make_record(**changes: Any) -> RunRecord:
    sizes = np.repeat(np.array(OBJECT_SIZES, np.uint8), 4)
    labels = np.tile(np.arange(4, dtype=np.uint8), len(OBJECT_SIZES))
    predicted = np.where(sizes % 2 == 0, labels, (labels + 1) % 4).astype(np.uint8)
    errors = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    measured = Measurement({"stage1": 0.5, "undefined": 3}, {"errors": errors}, {"seconds": 1.5})
    seconds = {"epoch_seconds": [2.0, 1.0, 1.5], "train_seconds": [1.5, 0.5, 1.0]}
    return RunRecord(
        key=make_key(**changes),
        history=History((2.0, 1.5, 1.25), (0.25, 0.75, 0.75)),
        predictions=Predictions(predicted, labels, sizes),
        measurements={"equivariance": measured},
        timings={**seconds, "run_seconds": 5.0},
        environment={"torch": "2.0", "device": "cpu"},
        weights=safetensors.numpy.save({"w": np.ones(3, np.float32)}),
    )
