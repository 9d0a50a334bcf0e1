"""Records as one flat table, one row per run, written as CSV or Parquet."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from equiscale.core.errors import MissingExtraError, OptionError
from equiscale.core.files import atomic_write, canonical_json
from equiscale.runs.record import RunRecord

TABLE_SUFFIXES = (".csv", ".parquet")


def record_row(record: RunRecord) -> dict[str, Any]:
    """Return a record as one row: key, results, accuracy at each object size, measurements."""
    key = record.key
    row: dict[str, Any] = {
        "run_id": key.run_id,
        "model": key.model,
        "model_options": canonical_json(dict(key.model_options)),
        "dataset": key.dataset,
        "dataset_hash": key.dataset_hash,
        "scenario": key.scenario.value,
        "seed": key.seed,
        "learning_rate": key.learning_rate,
        "protocol": key.protocol.label,
        "test_accuracy": record.test_accuracy,
        "valid_accuracy": record.valid_accuracy,
        "epochs": len(record.history),
        "best_epoch": record.history.best_epoch,
    }
    per_size = record.predictions.accuracy_per_size()
    row |= {f"accuracy_{size}": accuracy for size, accuracy in per_size.items()}
    stages = _stages(record)
    if stages is not None:
        row["equivariance.stages"] = canonical_json(stages)
    for name, measurement in record.measurements.items():
        row |= {f"{name}.{item}": v for item, v in measurement.values.items() if _is_scalar(v)}
        row |= {f"{name}.{item}": v for item, v in measurement.timings.items() if _is_scalar(v)}
    return row | _timings(record) | _environment(record)


def write_table(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write rows atomically; the name's ending, `.csv` or `.parquet`, says in which format.

    Columns that only some rows have are empty in the others.
    """
    check_table_path(path)
    listed = list(rows)
    columns = list(dict.fromkeys(column for row in listed for column in row))
    data = _csv(listed, columns) if path.suffix == ".csv" else _parquet(listed, columns)
    with atomic_write(path) as file:
        file.write(data)


def check_table_path(path: Path) -> None:
    """Raise unless a table can be written to this path."""
    if path.suffix not in TABLE_SUFFIXES:
        raise OptionError(
            f"{str(path)!r} must end in {' or '.join(TABLE_SUFFIXES)}, which says how to write it"
        )
    if path.suffix == ".parquet":
        _import_polars()


def _import_polars() -> ModuleType:
    try:
        return importlib.import_module("polars")
    except ImportError as error:
        raise MissingExtraError("polars", "report") from error


def _csv(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> bytes:
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()


def _parquet(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    table = {column: [row.get(column) for row in rows] for column in columns}
    _import_polars().DataFrame(table, strict=False).write_parquet(buffer)
    return buffer.getvalue()


def _stages(record: RunRecord) -> list[str] | None:
    """Return the stages that were measured, from first to last, which no other column tells."""
    measurement = record.measurements.get("equivariance")
    return None if measurement is None else measurement.values.get("stages")


def _timings(record: RunRecord) -> dict[str, Any]:
    seconds = record.timings.get("epoch_seconds") or [float("nan")]
    training = record.timings.get("train_seconds") or [float("nan")]
    return {
        "first_epoch_seconds": seconds[0],
        "median_epoch_seconds": float(np.median(seconds)),
        "last_epoch_seconds": seconds[-1],
        "median_train_seconds": float(np.median(training)),
        "run_seconds": record.timings.get("run_seconds"),
    }


def _environment(record: RunRecord) -> dict[str, Any]:
    names = ("equiscale", "commit", "python", "torch", "numpy", "platform", "device", "device_name")
    more = ("threads", "compiled", "model_fingerprint")
    return {name: record.environment.get(name) for name in (*names, *more)}


def _is_scalar(value: object) -> bool:
    return isinstance(value, (bool, int, float, str))
