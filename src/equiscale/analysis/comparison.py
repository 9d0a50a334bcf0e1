"""Ours against the published figures, cell by cell."""

from __future__ import annotations

from functools import cache
from importlib import resources

import polars as pl

from equiscale.analysis.summaries import CELL
from equiscale.core.protocol import PROTOCOL_VERSION

CITATION = "Altstidl et al., Just a Matter of Scale?, arXiv 2211.10288"
FEWEST_RUNS = 5
"""Fewest runs whose interval is wide enough to judge by."""
_JOIN = ("dataset_name", "scenario", "model", "options")
_PUBLISHED = ("dataset", "scenario", "model")


@cache
def published_accuracy() -> pl.DataFrame:
    """Return dataset, scenario, model, lr, runs, mean, std and median of the 176 cells."""
    return _read_reference("published_accuracy.csv")


@cache
def published_sizes() -> pl.DataFrame:
    """Return dataset, scenario, model, object_size and mean."""
    return _read_reference("published_accuracy_per_size.csv")


@cache
def published_curves() -> dict[tuple[str, ...], list[float]]:
    """Return the mean at each object size, ascending, by dataset, scenario and model."""
    parts = published_sizes().sort("object_size").partition_by(*_PUBLISHED, as_dict=True)
    return {keys: part["mean"].to_list() for keys, part in parts.items()}


@cache
def published_epoch_seconds() -> pl.DataFrame:
    """Return model, dataset and seconds per epoch on the authors' A100."""
    wide = _read_reference("published_epoch_seconds.csv")
    return wide.unpivot(index="model", variable_name="dataset", value_name="seconds")


def compare_published(cells: pl.DataFrame) -> pl.DataFrame:
    """Return our cells beside the published ones; those without a counterpart are left out.

    Columns in addition to those of a cell: `published`; `difference`, ours minus published;
    `inside`, whether the published mean lies in our interval, null for fewer than five runs;
    `near`, whether our mean lies within two published standard deviations of the published mean;
    `near_runs`, how many of our runs do; `same_protocol` and `same_rate`. Runs by another protocol
    or at another learning rate are not judged: `inside`, `near` and `near_runs` are null.
    """
    published = published_accuracy().select(
        pl.col("dataset").alias("dataset_name"),
        "scenario",
        "model",
        pl.lit("").alias("options"),
        pl.col("mean").alias("published"),
        pl.col("std").alias("published_std"),
        pl.col("runs").alias("published_runs"),
        pl.col("lr").alias("published_lr"),
    )
    wanted = (*CELL, "dataset_name", "learning_rate", "runs")
    return (
        cells.filter(pl.col("mean").is_not_null())
        .select(*wanted, "missing", "accuracies", "mean", "low", "high")
        .with_columns(pl.col("low", "high").cast(pl.Float64))
        .join(published, on=_JOIN, maintain_order="left")
        .with_columns(
            difference=pl.col("mean") - pl.col("published"),
            inside=pl.when(pl.col("runs") >= FEWEST_RUNS).then(
                pl.col("published").is_between(pl.col("low"), pl.col("high"))
            ),
            near=_is_near(pl.col("mean")),
            same_protocol=pl.col("protocol") == PROTOCOL_VERSION,
            same_rate=pl.col("learning_rate") == pl.col("published_lr"),
        )
        .join(_count_near_runs(cells, published), on=CELL, maintain_order="left")
        .with_columns(
            pl.when(pl.col("same_protocol") & pl.col("same_rate")).then(
                pl.col("inside", "near", "near_runs")
            )
        )
    )


def _is_near(accuracy: pl.Expr) -> pl.Expr:
    return (accuracy - pl.col("published")).abs() <= 2 * pl.col("published_std")


def _count_near_runs(cells: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    runs = cells.select(*CELL, "dataset_name", "accuracies").explode("accuracies")
    joined = runs.join(published, on=_JOIN)
    return joined.group_by(CELL).agg(near_runs=_is_near(pl.col("accuracies")).sum())


def compare_costs(costs: pl.DataFrame) -> pl.DataFrame:
    """Return costs with `published_seconds` per epoch and `published_ratio`, that to `standard`."""
    published = published_epoch_seconds().rename({"dataset": "dataset_name"})
    standard = published.filter(pl.col("model") == "standard").select(
        "dataset_name", standard="seconds"
    )
    ratios = published.join(standard, on="dataset_name").select(
        "dataset_name",
        "model",
        pl.lit("").alias("options"),
        published_seconds="seconds",
        published_ratio=pl.col("seconds") / pl.col("standard"),
    )
    return costs.join(
        ratios, on=("dataset_name", "model", "options"), how="left", maintain_order="left"
    )


def _read_reference(name: str) -> pl.DataFrame:
    path = resources.files("equiscale") / "reference" / name
    return pl.read_csv(path.read_bytes(), infer_schema_length=None)
