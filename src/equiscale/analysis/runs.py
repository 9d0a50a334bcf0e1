"""Reads a study from a runs directory or from a table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from equiscale.analysis.selection import ScaleSelection, read_selection
from equiscale.analysis.study import Study
from equiscale.core.errors import EquiscaleError, InputFileError
from equiscale.core.files import parse_json
from equiscale.core.spec import Scenario
from equiscale.runs.errors import RunsError
from equiscale.runs.record import RunRecord
from equiscale.runs.store import RunState, RunStore
from equiscale.runs.table import (
    MEASUREMENT_COLUMNS,
    RUN_COLUMNS,
    TABLE_SUFFIXES,
    MeasuredValue,
    measurements_path,
    record_rows,
)

_REQUIRED = ("run_id", "model", "dataset", "scenario", "seed", "test_accuracy")
_EXPECTED = "a table of runs, as `equiscale collect` writes it"


def read_study(source: Path) -> Study:
    """Read a runs directory, or a table that `equiscale collect` wrote.

    Raises:
        RunsError: There is no such directory, or no finished run in it.
        InputFileError: The file is not such a table.
    """
    return _read_tables(source) if source.is_file() else RunsReader(source).read()


def study_of(records: Iterable[RunRecord]) -> Study:
    """Return the study of records that were read already."""
    collected = _Collected()
    for record in records:
        collected.add(record)
    return collected.study({}, ())


class RunsReader:
    """Reads a runs directory repeatedly; each record is read once.

    Args:
        root: The runs directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._store = RunStore(root)
        self._records = _Collected()
        self._problems: list[str] = []
        self._seen: set[str] = set()

    def has_news(self) -> bool:
        """Whether runs were finished since the last `read`."""
        return bool(set(self._finished()) - self._seen)

    def read(self) -> Study:
        """Return the study of all runs that are finished by now."""
        if not self.root.is_dir():
            raise RunsError.missing(self.root)
        for run_id in self._finished():
            if run_id not in self._seen:
                self._load(run_id)
        if not self._records.runs:
            raise RunsError(_nothing_finished(self.root, self._others(), self._problems))
        return self._records.study(self._others(), self._problems)

    def _finished(self) -> list[str]:
        return self._store.run_ids(RunState.DONE)

    def _load(self, run_id: str) -> None:
        try:
            self._records.add(self._store.load(run_id))
        except EquiscaleError as error:
            self._problems.append(str(error))
            if not self._store.directory(run_id).exists():
                return  # in quarantine; the run may be computed anew
        self._seen.add(run_id)

    def _others(self) -> dict[str, int]:
        states = {
            "running": RunState.RUNNING,
            "failed": RunState.FAILED,
            "interrupted": RunState.MISSING,
        }
        counts = {name: len(self._store.run_ids(state)) for name, state in states.items()}
        return counts | {"quarantined": len(self._store.quarantined())}


class _Collected:
    """What a study needs of the records that were read."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self._values: list[MeasuredValue] = []
        self._selections: dict[str, ScaleSelection] = {}

    def add(self, record: RunRecord) -> None:
        row, values = record_rows(record)
        kind = replace(record.key, seed=0).run_id
        known = self._selections.get(kind)
        if known is None or record.key.seed < known.seed:
            selection = read_selection(record)
            if selection is not None:
                self._selections[kind] = selection
        self.runs[record.key.run_id] = row
        self._values += values

    def study(self, others: Mapping[str, int], problems: Sequence[str]) -> Study:
        runs = list(self.runs.values())
        return Study.from_tables(
            runs, self._values, self._selections.values(), others=others, problems=problems
        )


def _read_tables(path: Path) -> Study:
    if path.suffix not in TABLE_SUFFIXES:
        raise InputFileError(path, f"a file that ends in {path.suffix!r}", _EXPECTED)
    runs = _read_frame(path, RUN_COLUMNS)
    lacking = [name for name in _REQUIRED if name not in runs.columns]
    if lacking:
        raise InputFileError(path, f"no column {', '.join(lacking)}", _EXPECTED)
    for name in runs["scenario"].unique():
        try:
            Scenario(name)
        except ValueError:
            raise InputFileError(path, f"the scenario {name!r}", _EXPECTED) from None
    for options in runs["options"].unique() if "options" in runs.columns else ():
        if options and not _is_object(options):
            raise InputFileError(path, f"the options {options[:100]!r}", _EXPECTED)
    if runs.is_empty():
        raise InputFileError(path, "no runs", _EXPECTED)
    beside = measurements_path(path)
    values = _read_frame(beside, MEASUREMENT_COLUMNS) if beside.exists() else ()
    with _explained(path):
        return Study.from_tables(runs, values)


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text.encode()), dict)
    except ValueError:
        return False


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputFileError(path, f"an unreadable file ({reason})", _EXPECTED) from error


def _read_frame(path: Path, columns: Mapping[str, type]) -> pl.DataFrame:
    with _explained(path):
        return read_table(path.read_bytes(), path.suffix, columns)


def read_table(content: bytes, suffix: str, columns: Mapping[str, type]) -> pl.DataFrame:
    """Return a table from its file's content; the columns say of which types."""
    if suffix == ".parquet":
        return pl.read_parquet(content)
    missing = ["nan", "inf", "-inf"]
    types = {name: pl.Series([], dtype=kind).dtype for name, kind in columns.items()}  # type: ignore[arg-type]
    return pl.read_csv(content, schema_overrides=types, null_values=missing)


def _nothing_finished(root: Path, others: Mapping[str, int], problems: Sequence[str]) -> str:
    known = ", ".join(f"{count} {name}" for name, count in others.items() if count)
    found = f" ({known})" if known else ""
    detail = f": {problems[0]}" if problems else ""
    return (
        f"no finished run in {str(root)!r}{found}{detail}; `equiscale train --model standard` "
        "makes one, `equiscale status` says what is there"
    )
