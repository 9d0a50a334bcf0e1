from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import polars
import pytest

from equiscale.core.errors import OptionError
from equiscale.runs.record import RunRecord
from equiscale.runs.table import record_row, write_table

MakeRecord = Callable[..., RunRecord]


def test_csv_and_parquet_hold_the_same(make_record: MakeRecord, tmp_path: Path) -> None:
    rows = [record_row(make_record(seed=seed)) for seed in (1, 2)]
    rows[1]["only here"] = 'ünï,"code"'
    write_table(rows, tmp_path / "runs.csv")
    write_table(rows, tmp_path / "runs.parquet")
    table = polars.read_parquet(tmp_path / "runs.parquet")
    with (tmp_path / "runs.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert table["seed"].to_list() == [1, 2]
    assert table["accuracy_18"].to_list() == [1.0, 1.0]
    assert table["equivariance.stage1"].to_list() == [0.5, 0.5]
    assert table["only here"].to_list() == [None, 'ünï,"code"']
    assert table.columns == list(listed[0])
    assert [float(row["test_accuracy"]) for row in listed] == table["test_accuracy"].to_list()
    assert [row["only here"] for row in listed] == ["", 'ünï,"code"']


def test_row_says_what_an_epoch_costs(make_record: MakeRecord) -> None:
    row = record_row(make_record())
    assert row["first_epoch_seconds"] == 2.0
    assert row["median_epoch_seconds"] == 1.5
    assert row["median_train_seconds"] == 1.0
    assert row["run_seconds"] == 5.0


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"must end in \.csv or \.parquet"):
        write_table([], tmp_path / "runs.xls")
