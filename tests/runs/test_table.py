from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import polars
from tests.runs.conftest import make_record

from equiscale.runs.record import Measurement
from equiscale.runs.table import (
    MEASUREMENT_COLUMNS,
    RUN_COLUMNS,
    MeasuredValue,
    measured_values,
    run_row,
    write_tables,
)


def test_csv_and_parquet_hold_the_same(tmp_path: Path) -> None:
    records = [make_record(seed=seed, model_options={"pool": 'ü,"x"'}) for seed in (1, 2)]
    for name in ("runs.csv", "runs.parquet"):
        assert write_tables(records, tmp_path / name) == 2
    for path, columns in (("runs", RUN_COLUMNS), ("runs.measurements", MEASUREMENT_COLUMNS)):
        table = polars.read_parquet(tmp_path / f"{path}.parquet")
        with (tmp_path / f"{path}.csv").open(newline="") as file:
            listed = list(csv.DictReader(file))
        assert table.columns == list(columns) == list(listed[0])
        assert len(table) == len(listed)
        for row, texts in zip(table.to_dicts(), listed, strict=True):
            for name, kind in columns.items():
                assert row[name] == (kind(texts[name]) if texts[name] else None)


def test_a_run_row_holds_key_accuracy_times_and_environment() -> None:
    record = make_record(model_options={"depth": 2})
    row = run_row(record)
    assert list(row) == list(RUN_COLUMNS)
    assert (row["model"], row["options"]) == ("standard", '{"depth":2}')
    assert row["test_accuracy"] == record.test_accuracy
    assert (row["first_epoch_seconds"], row["median_epoch_seconds"]) == (2.0, 1.5)
    assert (row["median_train_seconds"], row["run_seconds"]) == (1.0, 5.0)
    assert (row["torch"], row["numpy"]) == ("2.0", None)


def test_every_measured_value_is_a_row() -> None:
    error = {"stages": ["level1.stage1"], "pairs": [[32, 17], [17, 32]], "objects": 4}
    error |= {"level1.stage1_17_32": 0.5, "level1.stage1_17_32_undefined": 1}
    error |= {"level1.stage1_32_17": None, "level1.stage1_32_17_undefined": 4}
    measurements = {
        "equivariance": Measurement(values=error),
        "cost": Measurement(values={"parameters": 7}, timings={"inference_seconds": 0.5}),
        "scale_selection": Measurement(values={"error": "ValueError: no layer"}),
    }
    record = replace(make_record(), measurements=measurements)
    run = record.key.run_id
    per_size = record.predictions.accuracy_per_size()
    found = list(measured_values(record))
    assert found[:48] == [
        MeasuredValue(run, "test", "accuracy", value, object_size=size)
        for size, value in per_size.items()
    ]
    assert found[48:] == [
        MeasuredValue(run, "equivariance", "error", 0.5, "stage1@0.5", 17, 32, None, 4, 1),
        MeasuredValue(run, "equivariance", "error", None, "stage1@0.5", 32, 17, None, 4, 4),
        MeasuredValue(run, "cost", "parameters", 7.0),
        MeasuredValue(run, "cost", "inference_seconds", 0.5),
        MeasuredValue(run, "scale_selection", "error", text="ValueError: no layer"),
    ]
