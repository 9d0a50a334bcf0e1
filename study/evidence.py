"""Our runs, how the tables look cells up, and how they write numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from equiscale import Scenario
from equiscale.analysis.comparison import published_accuracy
from equiscale.analysis.runs import study_of
from equiscale.analysis.statistics import pearson
from equiscale.analysis.study import Study
from equiscale.core.protocol import PROTOCOL_VERSION, TrainingProtocol
from equiscale.report.figures import MAIN_MODELS
from equiscale.report.style import order_datasets
from equiscale.runs.record import RunRecord
from equiscale.runs.store import RunStore

ROOT = Path(__file__).parents[1]
TRANSFER = (Scenario.SMALL_TO_LARGE, Scenario.MID_TO_REST, Scenario.LARGE_TO_SMALL)
NONE = "–"
FEWEST = 4  # points for a correlation

TRAINING = {"deep_channels": TrainingProtocol(ema=0.99, break_ties=True).label}
"""How models are trained that are not trained by the paper's protocol."""

RUNS = ROOT / "study" / "runs"
RATES = ROOT / "study" / "rates"
"""Short runs at another learning rate."""

Cell = dict[str, Any]


def load_records(directory: Path) -> list[RunRecord]:
    """Return records, in an order that does not depend on when they were finished."""
    problems: list[str] = []
    store = RunStore(directory)
    records = list(store.load_all(problems=problems))
    if problems or store.quarantined():
        raise SystemExit(
            f"damaged records, nothing was published; bring them back into {directory / 'done'} "
            f"and empty {directory / 'quarantine'}: {'; '.join(problems)}"
        )
    return sorted(records, key=lambda record: (record.key.protocol.label, str(record.key)))


class Evidence:
    """Our runs: all in `study`, those by the paper's protocol in `paper`.

    In `usual` each model is trained as it is meant to be; cells and curves are looked up there.
    """

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self.study = study_of(records)
        self.paper: Study = self.study.where(protocol=PROTOCOL_VERSION)
        meant = pl.col("model").replace_strict(TRAINING, default=PROTOCOL_VERSION)
        self.usual: Study = self.study.where(pl.col("protocol") == meant)
        self.datasets = order_datasets(self.paper.cells["dataset"])
        self._records = records

    @cached_property
    def _cells(self) -> dict[tuple[str, str, str, str], Cell]:
        names = ("dataset", "scenario", "model", "options")
        return {tuple(row[n] for n in names): row for row in self.usual.cells.to_dicts()}

    @cached_property
    def _curves(self) -> dict[tuple[Any, ...], pl.DataFrame]:
        sizes = self.usual.sizes.filter(options="")
        return sizes.partition_by("dataset", "scenario", "model", as_dict=True)

    def cell(self, dataset: str, scenario: Scenario, model: str, options: str = "") -> Cell | None:
        """Return a cell, if it was run."""
        return self._cells.get((dataset, scenario.value, model, options))

    def mean(self, dataset: str, scenario: Scenario, model: str) -> float | None:
        """Return the mean accuracy of a cell, if it was run."""
        cell = self.cell(dataset, scenario, model)
        return None if cell is None else cell["mean"]

    def curve(self, dataset: str, scenario: Scenario, model: str) -> dict[int, float] | None:
        """Return the mean accuracy by object size, if the cell was run."""
        found = self._curves.get((dataset, scenario.value, model))
        return None if found is None else dict(found.select("object_size", "mean").iter_rows())

    def records(self, model: str, dataset: str, scenario: Scenario) -> list[RunRecord]:
        """Return the records of a cell, with model and training as they are meant, by seed."""
        training = TRAINING.get(model, PROTOCOL_VERSION)
        found = (
            record
            for record in self._records
            for key in [record.key]
            if (key.model, key.dataset, key.scenario) == (model, dataset, scenario)
            and not key.model_options
            and key.protocol.label == training
        )
        return sorted(found, key=lambda record: record.key.seed)

    @cached_property
    def costs(self) -> dict[str, dict[str, Any]]:
        """Measured cost of each model, from `perf/models.py`."""
        return {row["model"]: row for row in measured("models")}


def measured(benchmark: str) -> list[dict[str, Any]]:
    """Return the rows that a script of `perf/` has written."""
    rows: list[dict[str, Any]] = _figures(benchmark)["rows"]
    return rows


def processors(*benchmarks: str) -> str:
    """Return a line that names the processors on which scripts of `perf/` were run."""
    found = {_figures(benchmark)["environment"]["processor"] for benchmark in benchmarks}
    return f"Measured on: {', '.join(sorted(found))}.\n"


def _figures(benchmark: str) -> dict[str, Any]:
    path = ROOT / "perf" / "figures" / f"{benchmark}.json"
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return figures


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

    Of the means of `groups` that were subtracted, each but the first costs a point.
    """
    if len(frame) - (groups - 1) < FEWEST:
        return "too few"
    found = pearson(frame[cause].to_list(), frame["test_accuracy"].to_list(), controls=groups - 1)
    low, high = found.interval.low, found.interval.high
    between = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return f"{found.r:.2f}{between} ({len(frame)})"
