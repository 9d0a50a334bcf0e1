"""A study: a set of runs and everything that is computed from them.

Page, figures, standings and comparison all read this one object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import polars as pl

from equiscale.analysis.comparison import compare_costs, compare_published
from equiscale.analysis.selection import ScaleSelection
from equiscale.analysis.statistics import Ranking
from equiscale.analysis.summaries import (
    CELL,
    Accuracies,
    DatasetSizes,
    ModelKey,
    accuracies_by_size,
    compare_models,
    dataset_sizes,
    model_keys,
    rank_cells,
    reported_runs,
    summarize_accuracy,
    summarize_costs,
    summarize_equivariance,
    summarize_sizes,
)
from equiscale.core.files import canonical_json
from equiscale.core.protocol import PROTOCOL_VERSION, protocol_changes
from equiscale.core.registry import check_name
from equiscale.runs.table import MEASUREMENT_COLUMNS, RUN_COLUMNS

_HASH_LETTERS = 8
_DEFAULTS = {
    "options": "",
    "dataset_hash": "",
    "protocol": "unknown",
    "learning_rate": 1e-3,
    "model_version": 1,
}


@dataclass(frozen=True, eq=False)
class Study:
    """Finished runs and what follows from them. Make one with `read_study` or `Study.from_tables`.

    Every summary is computed once, when it is first read.

    Attributes:
        runs: One row per run, see `equiscale.runs.table.RUN_COLUMNS`. Datasets of one name but
            different contents have a part of their hash in `dataset`; `dataset_name` has none.
            `variant` marks models with options that were also run without.
        measurements: One row per run and value, see `equiscale.runs.table.MeasuredValue`.
        selections: Scale selection of one run per cell and learning rate.
        others: Number of running, failed and interrupted runs by state.
        problems: What could not be read.
        shipped: How many of the runs come with equiscale.
    """

    runs: pl.DataFrame
    measurements: pl.DataFrame
    selections: tuple[ScaleSelection, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    shipped: int = 0

    @classmethod
    def from_tables(
        cls,
        runs: pl.DataFrame | Sequence[Mapping[str, Any]],
        measurements: pl.DataFrame | Sequence[Sequence[Any]] = (),
        selections: Iterable[ScaleSelection] = (),
        others: Mapping[str, int] | None = None,
        problems: Iterable[str] = (),
        shipped: int = 0,
    ) -> Study:
        """Return a study of two tables, or of their rows.

        Columns may be missing; values that are not finite become null.
        """
        if not isinstance(runs, pl.DataFrame):
            runs = pl.DataFrame(runs, schema=RUN_COLUMNS)
        if not isinstance(measurements, pl.DataFrame):
            rows = [tuple(row) for row in measurements]
            measurements = pl.DataFrame(rows, schema=MEASUREMENT_COLUMNS, orient="row")
        return cls(
            _named(_typed(runs, RUN_COLUMNS)),
            _typed(measurements, MEASUREMENT_COLUMNS),
            tuple(selections),
            others or {},
            tuple(problems),
            shipped,
        )

    def where(self, *predicates: pl.Expr, **equal: object) -> Study:
        """Return the study of those runs that fulfil all conditions, as `DataFrame.filter` does."""
        return replace(self, runs=self.runs.filter(*predicates, **equal))

    def of_models(self, names: Sequence[str]) -> Study:
        """Return the study of these models, with any options.

        Raises:
            OptionError: There is no run of one of these models.
        """
        known = self.runs["model"].unique().sort().to_list()
        for name in names:
            check_name("model among these runs:", name, known)
        return self.where(pl.col("model").is_in(names))

    @property
    def main_protocol(self) -> str:
        """The paper's protocol if there are runs of it, otherwise the one with most runs."""
        counts: dict[str, int] = dict(self.runs["protocol"].value_counts().iter_rows())
        if PROTOCOL_VERSION in counts:
            return PROTOCOL_VERSION
        return max(sorted(counts), key=lambda name: counts[name], default=PROTOCOL_VERSION)

    def side_by_side(self) -> Study:
        """Return the study in which changes of the training are options of the models.

        All its runs have the main protocol, so models that were trained differently are compared.
        """
        main = self.main_protocol
        changed = [
            options if protocol == main else _with_training(options, protocol)
            for options, protocol in self.runs.select("options", "protocol").iter_rows()
        ]
        options = pl.Series("options", changed, pl.String)
        runs = self.runs.with_columns(options, protocol=pl.lit(main)).with_columns(_IS_VARIANT)
        return replace(self, runs=runs)

    @cached_property
    def reported(self) -> pl.DataFrame:
        """The runs that count, see `reported_runs`."""
        return reported_runs(self.runs)

    @cached_property
    def object_sizes(self) -> DatasetSizes:
        """Object sizes of each dataset, see `dataset_sizes`."""
        return dataset_sizes(self.runs, self.measurements)

    @cached_property
    def _accuracies(self) -> Accuracies:
        return accuracies_by_size(self.reported, self.measurements, self.object_sizes)

    @cached_property
    def cells(self) -> pl.DataFrame:
        """Statistics of each cell, see `summarize_accuracy`."""
        return summarize_accuracy(self.reported, self._accuracies, self.object_sizes)

    @cached_property
    def models(self) -> list[ModelKey]:
        """Models with their options, sorted."""
        return model_keys(self.cells)

    @cached_property
    def sizes(self) -> pl.DataFrame:
        """Accuracy at each object size of each cell, see `summarize_sizes`."""
        return summarize_sizes(self.reported, self._accuracies, self.object_sizes)

    @cached_property
    def errors(self) -> pl.DataFrame:
        """Equivariance error of each run and stage, see `summarize_equivariance`."""
        return summarize_equivariance(self.reported, self.measurements, self.object_sizes)

    @cached_property
    def costs(self) -> pl.DataFrame:
        """Time, memory and operations, see `summarize_costs` and `compare_costs`."""
        costs = summarize_costs(self.reported, self.measurements, self.object_sizes)
        return compare_costs(costs)

    @cached_property
    def pairs(self) -> pl.DataFrame:
        """Paired comparison of every two models of a cell, see `compare_models`."""
        return compare_models(self.cells)

    @cached_property
    def published(self) -> pl.DataFrame:
        """Cells beside the published ones, see `compare_published`."""
        return compare_published(self.cells)

    def ranking(self, protocol: str) -> Ranking[ModelKey] | None:
        """Return the average ranks of the models, see `rank_cells`."""
        return rank_cells(self.cells, protocol)

    @cached_property
    def reported_selections(self) -> list[tuple[dict[str, Any], ScaleSelection]]:
        """Cell and scale selection of the runs that count, sorted by cell."""
        cells = {row["run_id"]: row for row in self.reported.select("run_id", *CELL).to_dicts()}
        found = [(cells[s.run_id], s) for s in self.selections if s.run_id in cells]
        return sorted(found, key=lambda pair: [pair[0][name] for name in CELL])


def _typed(frame: pl.DataFrame, columns: Mapping[str, type]) -> pl.DataFrame:
    """Return a frame with all of these columns and no others, with null for what is not finite."""
    missing = {name: pl.lit(_DEFAULTS.get(name)) for name in columns if name not in frame.columns}
    frame = frame.with_columns(**missing).select(*columns).cast(dict(columns))  # type: ignore[arg-type]
    floats = [pl.col(name) for name, kind in columns.items() if kind is float]
    return frame.with_columns(
        pl.when(column.is_finite()).then(column).name.keep() for column in floats
    ).with_columns(pl.col(name).fill_null(_DEFAULTS[name]) for name in _DEFAULTS if name in columns)


def _with_training(options: str, protocol: str) -> str:
    """Return options together with what differs from the paper's protocol."""
    changes = (change.partition("=") for change in protocol_changes(protocol).split())
    return canonical_json(
        {**json.loads(options or "{}"), **{name: value for name, _, value in changes}}
    )


_IS_VARIANT = ((pl.col("options") != "") & (pl.col("options") == "").any().over("model")).alias(
    "variant"
)
"""Options of a model that was also run without."""


def _named(runs: pl.DataFrame) -> pl.DataFrame:
    ambiguous = pl.col("dataset_hash").n_unique().over("dataset") > 1
    short_hash = pl.col("dataset_hash").str.slice(0, _HASH_LETTERS)
    return runs.with_columns(
        _IS_VARIANT,
        dataset_name=pl.col("dataset"),
        dataset=pl.when(ambiguous)
        .then(pl.col("dataset") + " " + short_hash)
        .otherwise(pl.col("dataset")),
    )
