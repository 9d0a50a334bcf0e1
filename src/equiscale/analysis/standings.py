"""Standings on one dataset: measured, shipped and published results in one table, best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from equiscale.analysis.comparison import published_accuracy, published_curves
from equiscale.analysis.our_runs import our_runs
from equiscale.analysis.study import Study
from equiscale.analysis.summaries import ModelKey, generalization_gaps
from equiscale.core.spec import Scenario

MEASURED, OURS, PUBLISHED = "measured", "equiscale", "published"
SCHEMA = {
    "place": pl.Int64,
    "model": pl.String,
    "options": pl.String,
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
    study: Study, protocol: str, dataset: str, scenarios: Sequence[Scenario]
) -> pl.DataFrame:
    """Return one row per model and source, best mean accuracy over the scenarios first.

    Models that lack a scenario have no place and come last. Columns: `place`, `model`, `options`,
    `source` (measured, published, or equiscale for runs that come with it), `runs`, the accuracy on
    the test sizes of each scenario, their `mean`, the mean generalisation `gap`, the
    `equivariance_error` of the last stage, `parameters`, `epoch_seconds`, and `epoch_ratio`, the
    seconds divided by those of `standard` measured here.

    Args:
        study: The runs.
        protocol: Measured runs of other protocols are left out.
        dataset: As the column `dataset` of the study's runs names it.
        scenarios: The scenarios to compare.
    """
    wanted = [scenario.value for scenario in scenarios]
    in_wanted = pl.col("scenario").is_in(wanted)
    same_data = study.runs.filter(dataset=dataset)
    hashes = same_data["dataset_hash"].unique().to_list()
    rows = _rows(study.where(in_wanted, protocol=protocol, dataset=dataset), MEASURED)
    rows += _rows(our_runs().where(in_wanted, pl.col("dataset_hash").is_in(hashes)), OURS)
    names = same_data.filter(in_wanted, protocol=protocol)["dataset_name"].to_list()
    rows += _published_rows(names[0] if names else dataset, wanted)
    return _in_order(rows, wanted)


def _rows(study: Study, source: str) -> list[dict[str, Any]]:
    if study.runs.is_empty():
        return []
    costs = {(row["model"], row["options"]): row for row in study.costs.iter_rows(named=True)}
    errors = _last_stage_errors(study)
    rows = []
    for keys, cells in study.cells.group_by("model", "options", maintain_order=True):
        model = ModelKey(*map(str, keys))
        cost = costs[model]
        rows.append(
            {
                **model._asdict(),
                "source": source,
                **dict(zip(cells["scenario"], cells["mean"], strict=True)),
                "runs": int(cells["runs"].sum()),
                "gap": _mean(cells["gap"].to_list()),
                "equivariance_error": errors.get(model),
                "parameters": None if cost["parameters"] is None else int(cost["parameters"]),
                "epoch_seconds": cost["epoch_seconds"],
                "epoch_ratio": cost["epoch_ratio"],
            }
        )
    return rows


def _last_stage_errors(study: Study) -> dict[tuple[Any, ...], float | None]:
    """Return the mean equivariance error after the last stage by model."""
    last = study.errors.filter("last")
    groups = last.group_by("model", "options", maintain_order=True)
    return {keys: _mean(part["error"].to_list()) for keys, part in groups}


def _published_rows(dataset: str, scenarios: Sequence[str]) -> list[dict[str, Any]]:
    cells = published_accuracy().filter(pl.col("scenario").is_in(scenarios), dataset=dataset)
    rows = []
    for (model,), part in cells.group_by("model", maintain_order=True):
        gaps: list[float | None] = []
        for scenario in part["scenario"]:
            curve = np.array([published_curves()[dataset, scenario, str(model)]])
            gaps += generalization_gaps(curve, Scenario(scenario))
        rows.append(
            {
                **ModelKey(str(model))._asdict(),
                "source": PUBLISHED,
                **dict(zip(part["scenario"], part["mean"], strict=True)),
                "runs": int(part["runs"].sum()),
                "gap": _mean(gaps),
            }
        )
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def _in_order(rows: list[dict[str, Any]], scenarios: Sequence[str]) -> pl.DataFrame:
    for row in rows:
        accuracies = [row.get(scenario) for scenario in scenarios]
        row["mean"] = None if None in accuracies else _mean(accuracies)
    rows.sort(key=lambda r: (r["mean"] is None, -(r["mean"] or 0.0), r["model"], r["options"]))
    for place, row in enumerate(rows, start=1):
        row["place"] = None if row["mean"] is None else place
    known = list(SCHEMA.items())
    after = list(SCHEMA).index("mean")
    columns = [*known[:after], *((name, pl.Float64) for name in scenarios), *known[after:]]
    return pl.DataFrame(rows, schema=dict(columns))
