"""Everything that is known about finished runs, read from a runs directory or a table."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from equiscale.core.errors import EquiscaleError, InputFileError, OptionError
from equiscale.core.registry import unknown_name_message
from equiscale.core.spec import OBJECT_SIZES, Scenario
from equiscale.runs.errors import RunsError
from equiscale.runs.record import RunRecord
from equiscale.runs.store import RunState, RunStore
from equiscale.runs.table import TABLE_SUFFIXES, record_row

CELL = ("protocol", "dataset", "scenario", "model")
"""What all seeds of a cell have in common; runs that differ in one of these are never mixed."""

SIZES = tuple(sorted(OBJECT_SIZES))
_REQUIRED = ("run_id", "model", "dataset", "scenario", "seed", "test_accuracy")
_HASH_LETTERS = 8


@dataclass(frozen=True, eq=False)
class RunSelection:
    """The scale selection of one run: the one with the smallest seed of its kind.

    Attributes:
        run_id: Of the run.
        cell: Protocol, dataset, scenario and model, as the table names them.
        seed: Of the run.
        pools: How each layer pools, by its name.
        class_names: Of the dataset.
        instances: Test objects per class.
        example: Index of the object that the maps show.
        chosen: `[48, objects, channels]` kernel sizes by layer; object sizes ascend.
        maps: `[48, channels, height, width]` kernel sizes by layer, for pixel pooling.
    """

    run_id: str
    cell: tuple[str, ...]
    seed: int
    pools: Mapping[str, str]
    class_names: tuple[str, ...]
    instances: int
    example: int
    chosen: Mapping[str, NDArray[np.uint8]]
    maps: Mapping[str, NDArray[np.uint8]]

    @property
    def last_layer(self) -> str:
        """The last layer that pools, whose choice the paper shows."""
        return list(self.pools)[-1]


@dataclass(frozen=True, eq=False)
class Runs:
    """Finished runs, and what is known of the others.

    Attributes:
        table: One row per run, see `equiscale.runs.table.record_row`; the columns of `CELL`
            name what must not be mixed.
        selections: Scale selection of one run per cell and learning rate.
        others: Number of running, failed and interrupted runs by state.
        problems: What could not be read.
        source: Where the runs come from, for messages.
        ours: How many of the runs come with equiscale.
    """

    table: pl.DataFrame
    selections: tuple[RunSelection, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    source: str = ""
    ours: int = 0


def read_runs(source: Path) -> Runs:
    """Read a runs directory, or a table that `equiscale collect` wrote.

    Raises:
        RunsError: There is no such directory, or no finished run in it.
        InputFileError: The file is not such a table.
    """
    return _read_table(source) if source.is_file() else RunsReader(source).read()


def choose_models(runs: Runs, names: Sequence[str]) -> Runs:
    """Return the runs of these models, whatever their options.

    Raises:
        OptionError: None of the runs is of one of these models.
    """
    known = runs.table["model_name"].unique().sort().to_list()
    for name in names:
        if name not in known:
            raise OptionError(unknown_name_message("model among these runs:", name, known))
    table = runs.table.filter(pl.col("model_name").is_in(names))
    labels = set(table["model"])
    selections = tuple(item for item in runs.selections if item.cell[3] in labels)
    return replace(runs, table=table, selections=selections)


class RunsReader:
    """Reads a runs directory again and again; each record is read once.

    Args:
        root: The runs directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._store = RunStore(root)
        self._rows: dict[str, dict[str, Any]] = {}
        self._selections: dict[str, RunSelection] = {}
        self._problems: list[str] = []

    def has_news(self) -> bool:
        """Whether runs were finished since the last `read`."""
        return bool(set(self._finished()) - set(self._rows))

    def read(self) -> Runs:
        """Return all runs that are finished by now."""
        if not self.root.is_dir():
            raise RunsError.missing(self.root)
        for run_id in self._finished():
            if run_id not in self._rows:
                self._load(run_id)
        if not self._rows:
            raise RunsError(_nothing_finished(self.root, self._others(), self._problems))
        table = normalize_table(list(self._rows.values()))
        return Runs(
            table=table,
            selections=name_cells(self._selections.values(), table),
            others=self._others(),
            problems=tuple(self._problems),
            source=str(self.root),
        )

    def _finished(self) -> list[str]:
        return self._store.run_ids(RunState.DONE)

    def _load(self, run_id: str) -> None:
        try:
            record = self._store.load(run_id)
            self._rows[run_id] = record_row(record)
        except EquiscaleError as error:
            self._problems.append(str(error))
            return
        kind = replace(record.key, seed=0).run_id
        known = self._selections.get(kind)
        if known is None or record.key.seed < known.seed:
            selection = read_selection(record)
            if selection is not None:
                self._selections[kind] = selection

    def _others(self) -> dict[str, int]:
        states = {
            "running": RunState.RUNNING,
            "failed": RunState.FAILED,
            "interrupted": RunState.MISSING,
        }
        counts = {name: len(self._store.run_ids(state)) for name, state in states.items()}
        return counts | {"quarantined": len(self._store.quarantined())}


def normalize_table(rows: Sequence[Mapping[str, Any]] | pl.DataFrame) -> pl.DataFrame:
    """Return rows of runs as a table whose `CELL` columns tell apart what must not be mixed.

    Models with options carry them in their name, datasets of one name but different contents
    carry a part of their hash, and values that are not finite become null.
    """
    table = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(rows, infer_schema_length=None)
    table = _with_defaults(table)
    table = table.with_columns(
        pl.col(pl.Float32, pl.Float64).map_batches(_finite_or_null),
        model_name=pl.col("model"),
        model=pl.when(pl.col("model_options").is_in(["{}", ""]))
        .then(pl.col("model"))
        .otherwise(pl.col("model") + " " + pl.col("model_options")),
    )
    hashes = table.group_by("dataset").agg(pl.col("dataset_hash").n_unique().alias("hashes"))
    return (
        table.join(hashes, on="dataset", maintain_order="left")
        .with_columns(
            dataset_name=pl.col("dataset"),
            dataset=pl.when(pl.col("hashes") > 1)
            .then(pl.col("dataset") + " " + pl.col("dataset_hash").str.slice(0, _HASH_LETTERS))
            .otherwise(pl.col("dataset")),
        )
        .drop("hashes")
    )


def _finite_or_null(column: pl.Series) -> pl.Series:
    return pl.select(pl.when(column.is_finite()).then(column)).to_series().alias(column.name)


def _with_defaults(table: pl.DataFrame) -> pl.DataFrame:
    """Add the columns that an own table may lack."""
    defaults: dict[str, Any] = {
        "model_options": "{}",
        "dataset_hash": "",
        "protocol": "unknown",
        "learning_rate": 1e-3,
        "valid_accuracy": None,
    }
    missing = {name: value for name, value in defaults.items() if name not in table.columns}
    table = table.with_columns(**{name: pl.lit(value) for name, value in missing.items()})
    sizes = [f"accuracy_{size}" for size in SIZES if f"accuracy_{size}" not in table.columns]
    texts = ["model", "model_options", "dataset", "dataset_hash", "protocol"]
    return table.with_columns(
        *(pl.lit(None, pl.Float64).alias(name) for name in sizes),
        pl.col(texts).cast(pl.String).fill_null(""),
        pl.col("test_accuracy", "valid_accuracy", "learning_rate").cast(pl.Float64),
    )


def _read_table(path: Path) -> Runs:
    expected = "a table that `equiscale collect` wrote"
    if path.suffix not in TABLE_SUFFIXES:
        raise InputFileError(path, f"a file that ends in {path.suffix!r}", expected)
    with _explained(path, expected):
        table = _read_frame(path)
    lacking = [name for name in _REQUIRED if name not in table.columns]
    if lacking:
        raise InputFileError(path, f"no column {', '.join(lacking)}", expected)
    unknown = set(table["scenario"].unique()) - {scenario.value for scenario in Scenario}
    if unknown:
        raise InputFileError(path, f"the scenarios {sorted(map(str, unknown))}", expected)
    if table.is_empty():
        raise InputFileError(path, "no runs", expected)
    with _explained(path, expected):
        return Runs(normalize_table(table), source=str(path))


@contextlib.contextmanager
def _explained(path: Path, expected: str) -> Iterator[None]:
    """Turn what a table's reader says into one sentence."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InputFileError(path, f"an unreadable file ({reason})", expected) from error


def _read_frame(path: Path) -> pl.DataFrame:
    if path.suffix == ".parquet":
        return pl.read_parquet(path)
    table = pl.read_csv(path, infer_schema_length=None, null_values=["nan", "inf", "-inf"])
    empty = [column.name for column in table if column.null_count() == len(table)]
    return table.with_columns(pl.col(empty).cast(pl.Float64))


def read_selection(record: RunRecord) -> RunSelection | None:
    """Return the scale selection of a run, its cell not yet named; None if it has none."""
    measurement = record.measurements.get("scale_selection")
    if measurement is None:
        return None
    values, arrays = measurement.values, measurement.arrays
    with contextlib.suppress(KeyError, TypeError):
        pools = values["layers"]
        chosen = {name: arrays[f"chosen.{name}"] for name in pools}
        maps = {name: arrays[f"maps.{name}"] for name in pools if f"maps.{name}" in arrays}
        order = values.get("order") or sorted(pools)  # older records have none
        return RunSelection(
            run_id=record.key.run_id,
            cell=(),
            seed=record.key.seed,
            pools={name: pools[name] for name in order},
            class_names=tuple(values["class_names"]),
            instances=values["instances"],
            example=values["example"],
            chosen=chosen,
            maps=maps,
        )
    return None


def name_cells(selections: Iterable[RunSelection], table: pl.DataFrame) -> tuple[RunSelection, ...]:
    """Return the selections with the cells that the table has them in."""
    cells = {run_id: cell for run_id, *cell in table.select("run_id", *CELL).iter_rows()}
    return tuple(replace(found, cell=tuple(cells[found.run_id])) for found in selections)


def _nothing_finished(root: Path, others: Mapping[str, int], problems: Sequence[str]) -> str:
    counts = Counter({name: count for name, count in others.items() if count})
    known = ", ".join(f"{count} {name}" for name, count in counts.items())
    found = f" ({known})" if known else ""
    detail = f": {problems[0]}" if problems else ""
    return (
        f"no finished run in {str(root)!r}{found}{detail}; `equiscale train --model standard` "
        "makes one, `equiscale status` says what is there"
    )
