"""Where models stand on one dataset: measured, our and published rows in one table, best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from equiscale.analysis.comparison import published_accuracy, published_sizes
from equiscale.analysis.our_runs import our_runs
from equiscale.analysis.summaries import (
    reported_runs,
    summarize_accuracy,
    summarize_costs,
    summarize_equivariance,
)
from equiscale.core.spec import Scenario

MEASURED, OURS, PUBLISHED = "measured", "equiscale", "published"
SCHEMA = {
    "place": pl.Int64,
    "model": pl.String,
    "source": pl.String,
    "runs": pl.Int64,
    "mean": pl.Float64,
    "gap": pl.Float64,
    "equivariance_error": pl.Float64,
    "parameters": pl.Int64,
    "epoch_seconds": pl.Float64,
    "epoch_ratio": pl.Float64,
}


def rank_standings(
    table: pl.DataFrame, protocol: str, dataset: str, scenarios: Sequence[Scenario]
) -> pl.DataFrame:
    """Return one row per model and source, best mean accuracy over the scenarios first.

    Models that lack a scenario have no place and come last. Columns: `place`, `model`, `source`
    (measured, published, or equiscale for the runs that come with it), `runs`, the accuracy on the
    test sizes of each scenario, their `mean`, the mean generalisation `gap`, the
    `equivariance_error` of the last stage, `parameters`, `epoch_seconds` and `epoch_ratio`, the
    seconds beside those of `standard` measured here.

    Args:
        table: Runs, see `equiscale.analysis.runs.Runs.table`.
        protocol: Only measured runs of this protocol stand in the table.
        dataset: As the column `dataset` names it.
        scenarios: Columns of the table.
    """
    wanted = [scenario.value for scenario in scenarios]
    chosen = table.filter(
        (pl.col("protocol") == protocol)
        & (pl.col("dataset") == dataset)
        & pl.col("scenario").is_in(wanted)
    )
    rows = _rows_of_runs(chosen, MEASURED)
    rows += _rows_of_runs(_our_runs(table, dataset, wanted), OURS)
    names = chosen["dataset_name"].unique().to_list() or [dataset]
    rows += _published_rows(names[0], wanted)
    return _in_order(rows, wanted)


def _our_runs(table: pl.DataFrame, dataset: str, scenarios: Sequence[str]) -> pl.DataFrame:
    """Return the runs that come with equiscale on the very images of a dataset."""
    hashes = table.filter(dataset=dataset)["dataset_hash"].unique().to_list()
    return our_runs().filter(
        pl.col("dataset_hash").is_in(hashes),
        pl.col("scenario").is_in(scenarios),
    )


def _rows_of_runs(runs: pl.DataFrame, source: str) -> list[dict[str, Any]]:
    if runs.is_empty():
        return []
    reported = reported_runs(runs)
    costs = {row["model"]: row for row in summarize_costs(reported).iter_rows(named=True)}
    errors = _last_stage_errors(reported)
    rows = []
    for keys, cells in summarize_accuracy(reported).group_by("model", maintain_order=True):
        model, cost = str(keys[0]), costs[str(keys[0])]
        row = _row(model, source, dict(zip(cells["scenario"], cells["mean"], strict=True)))
        row |= {
            "runs": int(cells["runs"].sum()),
            "gap": _mean(cells["gap"].to_list()),
            "equivariance_error": errors.get(model),
            "parameters": None if cost["parameters"] is None else int(cost["parameters"]),
            "epoch_seconds": cost["epoch_seconds"],
            "epoch_ratio": cost["epoch_ratio"],
        }
        rows.append(row)
    return rows


def _last_stage_errors(reported: pl.DataFrame) -> dict[str, float]:
    """Return the mean equivariance error after the last stage by model."""
    errors = summarize_equivariance(reported).filter(pl.col("last"))
    found = {}
    for keys, part in errors.group_by("model", maintain_order=True):
        mean = _mean(part["error"].to_list())
        if mean is not None:
            found[str(keys[0])] = mean
    return found


def _published_rows(dataset: str, scenarios: Sequence[str]) -> list[dict[str, Any]]:
    cells = published_accuracy().filter(
        (pl.col("dataset") == dataset) & pl.col("scenario").is_in(scenarios)
    )
    rows = []
    for keys, part in cells.group_by("model", maintain_order=True):
        row = _row(str(keys[0]), PUBLISHED, dict(zip(part["scenario"], part["mean"], strict=True)))
        gaps = [_published_gap(dataset, scenario, str(keys[0])) for scenario in part["scenario"]]
        rows.append(row | {"runs": int(part["runs"].sum()), "gap": _mean(gaps)})
    return rows


def _published_gap(dataset: str, scenario: str, model: str) -> float | None:
    curve = published_sizes().filter(
        (pl.col("dataset") == dataset)
        & (pl.col("scenario") == scenario)
        & (pl.col("model") == model)
    )
    trained = pl.col("object_size").is_in(list(Scenario(scenario).train_sizes()))
    seen, unseen = curve.filter(trained)["mean"], curve.filter(~trained)["mean"]
    if not len(seen) or not len(unseen):
        return None
    return float(np.mean(seen.to_numpy()) - np.mean(unseen.to_numpy()))


def _row(model: str, source: str, accuracies: dict[str, float | None]) -> dict[str, Any]:
    return {"model": model, "source": source, **accuracies}


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _in_order(rows: list[dict[str, Any]], scenarios: Sequence[str]) -> pl.DataFrame:
    for row in rows:
        accuracies = [row.get(scenario) for scenario in scenarios]
        row["mean"] = None if None in accuracies else _mean(accuracies)
    rows.sort(key=lambda row: (row["mean"] is None, -(row["mean"] or 0.0), row["model"]))
    for place, row in enumerate(rows, start=1):
        row["place"] = None if row["mean"] is None else place
    schema = list(SCHEMA.items())
    columns = [(name, pl.Float64) for name in scenarios]
    return pl.DataFrame(rows, schema=dict([*schema[:4], *columns, *schema[4:]]))
