"""What our runs and benchmarks say, and how it is written down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from equiscale.analysis.comparison import published_accuracy
from equiscale.analysis.runs import Runs
from equiscale.analysis.statistics import pearson
from equiscale.analysis.summaries import reported_runs, summarize_accuracy
from equiscale.core.protocol import PROTOCOL_VERSION, protocol_changes
from equiscale.core.spec import Scenario
from equiscale.models import list_models
from equiscale.report.figure_data import FigureData
from equiscale.report.figures import MAIN_MODELS
from equiscale.runs.record import RunRecord
from equiscale.runs.store import RunStore

ROOT = Path(__file__).parents[1]
TRANSFER = (Scenario.SMALL_TO_LARGE, Scenario.MID_TO_REST, Scenario.LARGE_TO_SMALL)
NONE = "–"
FEWEST = 4  # points that a correlation is worth computing from


class Evidence:
    """Our runs, and what follows from them.

    Args:
        runs: What `study/runs` holds.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.data = FigureData(runs, PROTOCOL_VERSION)

    @cached_property
    def shown_runs(self) -> Runs:
        """The runs for figures, which ablations and controls would crowd."""
        shown = [*list_models("paper"), *list_models("beyond")]
        table = self.runs.table.filter(pl.col("model").is_in(shown))
        return replace(self.runs, table=table)

    @cached_property
    def cells(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """Cells of the paper's protocol by dataset, scenario and model."""
        names = ("dataset", "scenario", "model")
        rows = self.data.cells.iter_rows(named=True)
        return {tuple(row[name] for name in names): row for row in rows}

    @cached_property
    def changed_cells(self) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
        """Cells of emoji that depart from the paper's protocol, by model and changes, scenario."""
        cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for row in summarize_accuracy(reported_runs(self.runs.table)).iter_rows(named=True):
            changes = protocol_changes(row["protocol"])
            if changes and row["dataset"] == "emoji":
                cells.setdefault((row["model"], changes), {})[row["scenario"]] = row
        return cells

    def records(self, model: str, dataset: str, scenario: Scenario) -> list[RunRecord]:
        """Return the records of a cell, with model and protocol as they are, by their seeds."""
        wanted = model, dataset, scenario
        found = (
            record
            for record in self._records
            if (record.key.model, record.key.dataset, record.key.scenario) == wanted
            and not record.key.model_options
            and not record.key.protocol.changes
        )
        return sorted(found, key=lambda record: record.key.seed)

    @cached_property
    def _records(self) -> list[RunRecord]:
        return list(RunStore(ROOT / "study" / "runs").load_all())

    @cached_property
    def costs(self) -> dict[str, dict[str, Any]]:
        """Measured cost of each model, from `perf/models.py`."""
        return {row["model"]: row for row in measured("models")}

    def mean(self, dataset: str, scenario: Scenario, model: str) -> float | None:
        """Return the mean accuracy of a cell, if it was run."""
        cell = self.cells.get((dataset, scenario.value, model))
        return None if cell is None else cell["mean"]

    def sizes(self, dataset: str, scenario: Scenario, model: str) -> pl.DataFrame:
        """Return the accuracy at each object size."""
        wanted = {"dataset": dataset, "scenario": scenario.value, "model": model}
        return self.data.sizes.filter(pl.col(name) == value for name, value in wanted.items())

    def curve(self, dataset: str, scenario: Scenario, model: str) -> dict[int, float] | None:
        """Return the mean accuracy by object size, if the cell was run."""
        sizes = self.sizes(dataset, scenario, model)
        return dict(sizes.select("object_size", "mean").iter_rows()) if len(sizes) else None


def measured(benchmark: str) -> list[dict[str, Any]]:
    """Return the rows that a script of `perf/` has written."""
    path = ROOT / "perf" / "figures" / f"{benchmark}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def percent(value: float | None, digits: int = 1) -> str:
    """Return an accuracy in per cent, or a dash."""
    return NONE if value is None else f"{100 * value:.{digits}f}"


def ratio(value: float | None) -> str:
    """Return a ratio with two digits, or a dash."""
    return NONE if value is None else f"{value:.2g}" if value < 100 else f"{value:.0f}"


def published_nine(dataset: str, scenario: Scenario) -> pl.DataFrame:
    """Return the published cells of the paper's nine models, the best first."""
    cells = published_accuracy().filter(dataset=dataset, scenario=scenario.value)
    return cells.filter(pl.col("model").is_in(MAIN_MODELS)).sort("mean", descending=True)


def correlation(frame: pl.DataFrame, cause: str, groups: int = 1) -> str:
    """Return r of a column and the accuracy, its interval and the number of points.

    Args:
        frame: One row per point.
        cause: The column.
        groups: How many means were taken off the values: each but the first costs a point.
    """
    if len(frame) - (groups - 1) < FEWEST:
        return "too few"
    found = pearson(frame[cause].to_list(), frame["test_accuracy"].to_list(), controls=groups - 1)
    low, high = found.interval.low, found.interval.high
    between = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return f"{found.r:.2f}{between} ({len(frame)})"
