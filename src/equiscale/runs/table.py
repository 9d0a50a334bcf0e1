"""Records as two tidy tables, written as CSV or Parquet.

The table of runs has one row per run: its key, its accuracy, its times and its environment. The
table of measurements has one row per run and measured value. It is stored beside the first:
`runs.csv` and `runs.measurements.csv`.
"""

from __future__ import annotations

import csv
import importlib
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from equiscale.core.errors import MissingExtraError, OptionError
from equiscale.core.files import atomic_write, canonical_json
from equiscale.runs.errors import NewerRecordError
from equiscale.runs.record import RunRecord

TABLE_SUFFIXES = (".csv", ".parquet")

_KEY = ("run_id", "model", "options", "dataset", "dataset_hash", "scenario")
_TIMES = ("first_epoch", "median_epoch", "last_epoch", "median_train", "run")
_VERSIONS = ("equiscale", "commit", "python", "torch", "numpy", "platform", "device", "device_name")
RUN_COLUMNS: dict[str, type] = {
    **dict.fromkeys(_KEY, str),
    "model_version": int,
    "seed": int,
    "learning_rate": float,
    "protocol": str,
    "test_accuracy": float,
    "valid_accuracy": float,
    "epochs": int,
    "best_epoch": int,
    **{f"{name}_seconds": float for name in _TIMES},
    **dict.fromkeys(_VERSIONS, str),
    "threads": int,
    "compiled": bool,
}
"""Columns of the table of runs. `options` is canonical JSON, empty for a model as it is."""

_ENVIRONMENT = (*_VERSIONS, "threads", "compiled")


class MeasuredValue(NamedTuple):
    """One row of the table of measurements; columns that do not apply are None."""

    run_id: str
    measurement: str  # its name in the record, or `test` for the accuracy at an object size
    quantity: str  # such as `accuracy`, `error` or `parameters`
    value: float | None = None  # None if it is undefined or a text
    stage: str | None = None  # the feature map
    from_size: int | None = None  # object size of the map that is resized
    to_size: int | None = None  # object size of the map that it is compared with
    object_size: int | None = None
    objects: int | None = None  # number of test objects
    undefined: int | None = None  # for how many of them the value is undefined
    text: str | None = None  # such as the reason why a measurement failed


MEASUREMENT_COLUMNS: dict[str, type] = {
    **dict.fromkeys(("run_id", "measurement", "quantity"), str),
    "value": float,
    "stage": str,
    **dict.fromkeys(("from_size", "to_size", "object_size", "objects", "undefined"), int),
    "text": str,
}


def record_rows(record: RunRecord) -> tuple[dict[str, Any], list[MeasuredValue]]:
    """Return a record's row of the table of runs and its rows of the table of measurements.

    Raises:
        NewerRecordError: The record holds something that does not fit into the tables.
    """
    try:
        row, values = run_row(record), list(measured_values(record))
        _check_types([tuple(row.values())], RUN_COLUMNS)
        _check_types(values, MEASUREMENT_COLUMNS)
    except Exception as error:  # measurements of others can hold anything
        raise NewerRecordError.for_record(f"run {record.key.run_id}", repr(error)) from error
    return row, values


def _check_types(rows: Iterable[Sequence[Any]], columns: Mapping[str, type]) -> None:
    kinds = list(columns.items())
    for row in rows:
        for (name, kind), value in zip(kinds, row, strict=True):
            too_large = isinstance(value, int) and value.bit_length() > 63
            if too_large or type(value) not in (kind, type(None)):
                raise ValueError(f"{name} {value!r:.100}")


def run_row(record: RunRecord) -> dict[str, Any]:
    """Return a record's row of the table of runs, a value for each of `RUN_COLUMNS`."""
    key = record.key
    seconds = record.timings.get("epoch_seconds") or [math.nan]
    training = record.timings.get("train_seconds") or [math.nan]
    return {
        "run_id": key.run_id,
        "model": key.model,
        "options": canonical_json(dict(key.model_options)) if key.model_options else "",
        "dataset": key.dataset,
        "dataset_hash": key.dataset_hash,
        "scenario": key.scenario.value,
        "model_version": key.model_version,
        "seed": key.seed,
        "learning_rate": key.learning_rate,
        "protocol": key.protocol.label,
        "test_accuracy": record.test_accuracy,
        "valid_accuracy": float(record.valid_accuracy),
        "epochs": len(record.history),
        "best_epoch": record.history.best_epoch,
        "first_epoch_seconds": float(seconds[0]),
        "median_epoch_seconds": float(np.median(seconds)),
        "last_epoch_seconds": float(seconds[-1]),
        "median_train_seconds": float(np.median(training)),
        "run_seconds": float(record.timings.get("run_seconds", math.nan)),
        **{name: record.environment.get(name) for name in _ENVIRONMENT},
    }


def measured_values(record: RunRecord) -> Iterator[MeasuredValue]:
    """Yield a record's rows of the table of measurements."""
    run_id = record.key.run_id
    for size, accuracy in record.predictions.accuracy_per_size().items():
        yield MeasuredValue(run_id, "test", "accuracy", accuracy, object_size=size)
    for name, measurement in record.measurements.items():
        values = {**measurement.values, **measurement.timings}
        if "stages" in values:
            yield from _errors(run_id, name, values)
            continue
        for quantity, value in values.items():
            if isinstance(value, str):
                yield MeasuredValue(run_id, name, quantity, text=value)
            elif isinstance(value, (int, float)):
                yield MeasuredValue(run_id, name, quantity, float(value))


def _errors(run_id: str, name: str, values: Mapping[str, Any]) -> Iterator[MeasuredValue]:
    """Yield the error of each stage, first to last, and pair of object sizes."""
    for stage in values["stages"]:
        for first, second in sorted(values["pairs"]):
            item = f"{stage}_{first}_{second}"
            yield MeasuredValue(
                run_id,
                name,
                "error",
                None if values[item] is None else float(values[item]),
                stage=stage_name(stage),
                from_size=int(first),
                to_size=int(second),
                objects=int(values["objects"]),
                undefined=int(values[f"{item}_undefined"]),
            )


_OLD_VIEW = re.compile(r"(?P<kind>level|channel)(?P<index>\d+)\.(?P<stage>\w+)")
_RATIOS = {"level": 0.5, "channel": 0.5**0.5}


def stage_name(name: str) -> str:
    """Return the name of a stage as `stage1`, or `stage1@0.5` for that of one view.

    Records of format 1 name the stages of views in three other ways.

    Examples:
        >>> [stage_name(n) for n in ("stage2", "level1.stage2", "channel3.stage1", "stage1 at 0.5")]
        ['stage2', 'stage2@0.5', 'stage1@0.354', 'stage1@0.5']
    """
    if match := _OLD_VIEW.fullmatch(name):
        return f"{match['stage']}@{_RATIOS[match['kind']] ** int(match['index']):.3g}"
    return name.replace(" at ", "@")


def write_tables(
    records: Iterable[RunRecord], path: Path, problems: list[str] | None = None
) -> int:
    """Write the table of runs to a path, that of measurements beside it; return the runs' number.

    The path ends in `.csv` or `.parquet`. A record that does not fit into the tables is left out
    and added to `problems`; without such a list it raises `NewerRecordError`.
    """
    check_table_path(path)
    runs: list[Sequence[Any]] = []
    values: list[Sequence[Any]] = []
    for record in records:
        try:
            row, own = record_rows(record)
        except NewerRecordError as error:
            if problems is None:
                raise
            problems.append(str(error))
        else:
            runs.append(tuple(row.values()))
            values += own
    _write(runs, RUN_COLUMNS, path)
    _write(values, MEASUREMENT_COLUMNS, measurements_path(path))
    return len(runs)


def measurements_path(path: Path) -> Path:
    """Return where the measurements of a table of runs are stored.

    Examples:
        >>> measurements_path(Path("runs.csv")).name
        'runs.measurements.csv'
    """
    return path.with_name(f"{path.stem}.measurements{path.suffix}")


def check_table_path(path: Path) -> None:
    """Raise unless a table can be written to this path."""
    if path.suffix not in TABLE_SUFFIXES:
        raise OptionError(f"{str(path)!r} must end in {' or '.join(TABLE_SUFFIXES)}")
    if path.suffix == ".parquet":
        _import_polars()


def _import_polars() -> ModuleType:
    try:
        return importlib.import_module("polars")
    except ImportError as error:
        raise MissingExtraError("polars", "report") from error


def _write(rows: Sequence[Sequence[Any]], columns: Mapping[str, type], path: Path) -> None:
    data = _csv(rows, columns) if path.suffix == ".csv" else _parquet(rows, columns)
    with atomic_write(path) as file:
        file.write(data)


def _csv(rows: Iterable[Sequence[Any]], columns: Iterable[str]) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(value) for value in row] for row in rows)
    return buffer.getvalue().encode()


def _csv_cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _parquet(rows: Sequence[Sequence[Any]], columns: Mapping[str, type]) -> bytes:
    buffer = io.BytesIO()
    frame = _import_polars().DataFrame([tuple(row) for row in rows], columns, orient="row")
    frame.write_parquet(buffer)
    return buffer.getvalue()
