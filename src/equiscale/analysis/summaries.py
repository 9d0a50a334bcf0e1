"""Summaries of runs, one function each. Accuracies are in [0, 1]; what is missing stays null.

`Study` calls each of them once; read them there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from equiscale.analysis.selection import SIZES
from equiscale.analysis.statistics import (
    Ranking,
    bootstrap_interval,
    bootstrap_means,
    compare_paired,
    rank_models,
)
from equiscale.core.errors import OptionError
from equiscale.core.spec import Scenario
from equiscale.runs.record import LARGEST_SIZE
from equiscale.sweeps.grid import TRIAL_SEEDS, choose_learning_rate

CELL = ("protocol", "dataset", "scenario", "model", "options")
"""What all seeds of a cell have in common; runs that differ in one of these are never mixed."""

DatasetSizes = Mapping[str, tuple[int, ...]]
"""Object sizes of each dataset, ascending."""

Accuracies = dict[int, NDArray[np.float64]]
"""Accuracy of each run by object size."""


class ModelKey(NamedTuple):
    """A model and those of its options that differ from the defaults.

    Attributes:
        model: Name of the model.
        options: Canonical JSON; empty for the model as it is.
    """

    model: str
    options: str = ""

    def __str__(self) -> str:
        return f"{self.model} {self.options}".rstrip()


def model_keys(frame: pl.DataFrame) -> list[ModelKey]:
    """Return the models of a frame with columns `model` and `options`, sorted."""
    return sorted(ModelKey(*row) for row in frame.select("model", "options").unique().iter_rows())


def reported_runs(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs that count: of the newest version of each model, with one learning rate.

    Of a cell with several learning rates, the paper's rule chooses one: the highest median
    validation accuracy over the first five seeds that all rates have; ties go to the smaller.
    """
    kept = []
    version = pl.col("model_version")
    runs = runs.filter(version == version.max().over("model"))
    for _, cell in runs.group_by(CELL, maintain_order=True):
        rates = cell["learning_rate"].unique().to_list()
        kept.append(cell if len(rates) == 1 else _with_chosen_rate(cell, rates))
    chosen = pl.concat(kept) if kept else runs
    return chosen.sort(*CELL, "seed").unique([*CELL, "seed"], keep="first", maintain_order=True)


def _with_chosen_rate(cell: pl.DataFrame, rates: Sequence[float]) -> pl.DataFrame:
    per_rate = {rate: cell.filter(learning_rate=rate) for rate in rates}
    shared = set.intersection(*(set(runs["seed"].to_list()) for runs in per_rate.values()))
    trials = sorted(shared)[:TRIAL_SEEDS]
    accuracies = {}
    for rate, runs in per_rate.items():
        compared = runs.filter(pl.col("seed").is_in(trials)) if trials else runs
        accuracies[rate] = [value or 0.0 for value in compared["valid_accuracy"].to_list()]
    return per_rate[choose_learning_rate(accuracies)]


def dataset_sizes(runs: pl.DataFrame, measurements: pl.DataFrame) -> DatasetSizes:
    """Return the object sizes of each dataset: those at which a run has an accuracy.

    If the scenarios cannot divide them, the table is incomplete, and the sizes of the paper count.
    """
    tested = _tested(measurements)
    found = (
        runs.select("run_id", "dataset", "scenario")
        .join(tested, on="run_id", how="left")
        .group_by("dataset", maintain_order=True)
        .agg(pl.col("scenario").unique(), pl.col("object_size").drop_nulls().unique().sort())
    )
    return {
        dataset: tuple(sizes) if all(train_spans(Scenario(s), sizes) for s in names) else SIZES
        for dataset, names, sizes in found.iter_rows()
    }


def _tested(measurements: pl.DataFrame) -> pl.DataFrame:
    possible = pl.col("object_size").is_between(1, LARGEST_SIZE)
    return measurements.filter(possible, measurement="test", quantity="accuracy")


def train_spans(scenario: Scenario, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return first and last of each group of adjacent sizes that a scenario trains on.

    Empty for a scenario that cannot divide these sizes.

    Examples:
        >>> train_spans(Scenario("train@28+80-160"), (28, 40, 56, 80, 112, 160, 224))
        [(28, 28), (80, 160)]
    """
    try:
        trained = scenario.train_sizes(sizes)
    except OptionError:
        return []
    rows = [sizes.index(size) for size in trained]
    breaks = [i for i in range(1, len(rows)) if rows[i] != rows[i - 1] + 1]
    ends = zip([0, *breaks], [*breaks, len(rows)], strict=True)
    return [(trained[first], trained[last - 1]) for first, last in ends if trained]


def accuracies_by_size(
    runs: pl.DataFrame, measurements: pl.DataFrame, sizes: DatasetSizes
) -> Accuracies:
    """`-> {object size: [runs]}`: accuracy of each run at each size; NaN where missing."""
    rows = runs.select("run_id").with_row_index("row")
    found = _tested(measurements).join(rows, on="run_id")
    columns = {size: np.full(len(runs), np.nan) for own in sizes.values() for size in own}
    for size, column in columns.items():
        part = found.filter(object_size=size)
        column[part["row"]] = part["value"]
    return columns


def summarize_accuracy(
    runs: pl.DataFrame, accuracies: Accuracies, sizes: DatasetSizes
) -> pl.DataFrame:
    """Return one row per cell: statistics of the test accuracy, seeds and missing seeds.

    A seed is missing in a cell if another cell of the same protocol and dataset has it. `gap` is
    the generalisation gap: mean accuracy at the trained object sizes minus mean accuracy at the
    others. It is null in `all2all`.
    """
    expected = {
        keys: set(group["seed"].to_list()) for keys, group in runs.group_by("protocol", "dataset")
    }
    rows = []
    for keys, cell in runs.with_row_index("row").group_by(CELL, maintain_order=True):
        own = sizes[str(keys[1])]
        gaps = generalization_gaps(_of_cell(cell, accuracies, own), Scenario(keys[2]), own)
        rows.append(_summarize_cell(keys, cell, gaps, expected[keys[:2]]))
    return pl.DataFrame(rows, infer_schema_length=None).sort(*CELL)


def _of_cell(
    cell: pl.DataFrame, accuracies: Accuracies, sizes: Sequence[int]
) -> NDArray[np.float64]:
    """`-> [runs, sizes]`: the accuracies of a cell."""
    return np.stack([accuracies[size][cell["row"]] for size in sizes], axis=1)


def _summarize_cell(
    keys: tuple[Any, ...], cell: pl.DataFrame, gaps: list[float], expected: set[int]
) -> dict[str, Any]:
    defined = cell.filter(pl.col("test_accuracy").is_not_null())
    accuracies = defined["test_accuracy"].to_list()
    interval, gap_interval = bootstrap_interval(accuracies), bootstrap_interval(gaps)
    return {
        **dict(zip(CELL, keys, strict=True)),
        "variant": cell["variant"][0],
        "dataset_name": cell["dataset_name"][0],
        "learning_rate": cell["learning_rate"][0],
        "seeds": defined["seed"].to_list(),
        "missing": sorted(expected - set(defined["seed"].to_list())),
        "accuracies": accuracies,
        "runs": len(accuracies),
        "mean": float(np.mean(accuracies)) if accuracies else None,
        "std": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        "median": float(np.median(accuracies)) if accuracies else None,
        "low": interval.low,
        "high": interval.high,
        "gap": float(np.mean(gaps)) if gaps else None,
        "gap_low": gap_interval.low,
        "gap_high": gap_interval.high,
    }


def generalization_gaps(
    accuracies: NDArray[np.float64], scenario: Scenario, sizes: Sequence[int] = SIZES
) -> list[float]:
    """`[runs, sizes] -> gaps`: accuracy at trained sizes minus at others, where both are known."""
    trained = np.isin(sizes, scenario.train_sizes(sizes))
    if trained.all():
        return []
    gaps = accuracies[:, trained].mean(1) - accuracies[:, ~trained].mean(1)
    return [float(gap) for gap in gaps if np.isfinite(gap)]


def summarize_sizes(
    runs: pl.DataFrame, accuracies: Accuracies, sizes: DatasetSizes
) -> pl.DataFrame:
    """Return mean and interval of the accuracy at each object size, one row per cell and size."""
    schema: dict[str, Any] = {"object_size": pl.Int64} | dict.fromkeys(
        ("mean", "low", "high"), pl.Float64
    )
    schema |= {**dict.fromkeys(CELL, pl.String), "runs": pl.Int32}
    parts = [pl.DataFrame(schema=schema)]
    for keys, cell in runs.with_row_index("row").group_by(CELL, maintain_order=True):
        own = sizes[str(keys[1])]
        values = _of_cell(cell, accuracies, own)
        values = values[np.isfinite(values).all(axis=1)]
        if not len(values):
            continue
        low, high = bootstrap_means(values)
        part = {"object_size": own, "mean": values.mean(0), "low": low, "high": high}
        cells = {name: pl.lit(key) for name, key in zip(CELL, keys, strict=True)}
        parts.append(pl.DataFrame(part).with_columns(**cells, runs=pl.lit(len(values))))
    return pl.concat(parts).fill_nan(None).sort(*CELL, "object_size")


def summarize_equivariance(
    runs: pl.DataFrame, measurements: pl.DataFrame, sizes: DatasetSizes
) -> pl.DataFrame:
    """Return the equivariance error of every run and stage, over the pairs inside its test sizes.

    `error` is the mean over all test objects and pairs whose error is defined; `undefined`
    counts the others. Stages are in the order of the model; `last` marks its last.
    """
    is_tested = [pl.lit(False)]
    for dataset, scenario in runs.select("dataset", "scenario").unique().iter_rows():
        tested = Scenario(scenario).test_sizes(sizes[dataset])
        inside = pl.col("from_size").is_in(tested) & pl.col("to_size").is_in(tested)
        is_tested.append(inside & (pl.col("dataset") == dataset) & (pl.col("scenario") == scenario))
    undefined = pl.col("undefined").fill_null(0)
    weight = pl.when(pl.col("value").is_not_null()).then(pl.col("objects") - undefined)
    run = ("run_id", *CELL, "seed", "test_accuracy")
    return (
        runs.select(run)
        .join(
            measurements.filter(measurement="equivariance", quantity="error"),
            on="run_id",
            maintain_order="left_right",
        )
        .filter(pl.any_horizontal(is_tested))
        .group_by(*run, "stage", maintain_order=True)
        .agg(
            error=pl.when(weight.sum() > 0).then((pl.col("value") * weight).sum() / weight.sum()),
            undefined=undefined.sum(),
        )
        .filter(pl.col("error").is_not_null() | (pl.col("undefined") > 0))
        .with_columns(last=pl.int_range(1, pl.len() + 1).over("run_id") == pl.len().over("run_id"))
        .select(*CELL, "stage", "seed", "last", "error", "undefined", "test_accuracy")
    )


_TIMES = {
    "median_epoch_seconds": "epoch_seconds",
    "first_epoch_seconds": "first_epoch_seconds",
    "last_epoch_seconds": "last_epoch_seconds",
    "median_train_seconds": "train_seconds",
}
_COSTS = (
    "inference_seconds",
    "peak_memory_bytes",
    "operations_by_formula",
    "operations_executed",
    "parameters",
)


def summarize_costs(
    runs: pl.DataFrame, measurements: pl.DataFrame, sizes: DatasetSizes
) -> pl.DataFrame:
    """Return seconds per epoch and image, memory and operations per protocol, dataset and model.

    Times are those of the fastest run, since other load on the machine only adds to them, for
    training on a third of the object sizes; the rest are medians. An epoch includes the pass over
    the validation images, `train_seconds` does not. `epoch_ratio` and `train_ratio` divide these
    times by those of `standard`; they are null without one.
    """
    measured = measurements.filter(measurement="cost")
    # An epoch of all2all sees three times the images of a third of the sizes.
    shares = [
        (dataset, scenario, len(own) / (3 * len(Scenario(scenario).train_sizes(own))))
        for dataset, scenario in runs.select("dataset", "scenario").unique().iter_rows()
        for own in [sizes[dataset]]
    ]
    schema = {"dataset": pl.String, "scenario": pl.String, "third": pl.Float64}
    joined = runs.join(
        pl.DataFrame(shares, schema, orient="row"),
        on=("dataset", "scenario"),
        maintain_order="left",
    ).with_columns((pl.col(name) * pl.col("third")).alias(label) for name, label in _TIMES.items())
    for name in _COSTS:
        values = measured.filter(quantity=name).select("run_id", pl.col("value").alias(name))
        joined = joined.join(values, on="run_id", how="left", maintain_order="left")
    columns = [*_TIMES.values(), *_COSTS]
    keys = ("protocol", "dataset", "dataset_name", "model", "options")
    costs = joined.group_by(*keys, maintain_order=True).agg(
        *(pl.col(c).min() if c.endswith("_seconds") else pl.col(c).median() for c in columns),
        runs=pl.len(),
    )
    return costs.with_columns(
        epoch_ratio=_ratio_to_standard("epoch_seconds"),
        train_ratio=_ratio_to_standard("train_seconds"),
    )


def _ratio_to_standard(name: str) -> pl.Expr:
    is_standard = (pl.col("model") == "standard") & (pl.col("options") == "")
    return pl.col(name) / pl.col(name).filter(is_standard).first().over("protocol", "dataset")


def rank_cells(cells: pl.DataFrame, protocol: str) -> Ranking[ModelKey] | None:
    """Rank the models of one protocol over datasets and scenarios by their mean accuracy.

    Variants, whose model was also run as it is, are left out.
    """
    scores: dict[object, dict[ModelKey, float]] = {}
    ranked = cells.drop_nulls("mean").filter(protocol=protocol, variant=False)
    for row in ranked.iter_rows(named=True):
        key = ModelKey(row["model"], row["options"])
        scores.setdefault((row["dataset"], row["scenario"]), {})[key] = row["mean"]
    return rank_models(scores)


def compare_models(cells: pl.DataFrame) -> pl.DataFrame:
    """Return the paired comparison of every two models of a cell over the seeds they share."""
    rows = []
    names = ("protocol", "dataset", "scenario")
    for keys, group in cells.group_by(*names, maintain_order=True):
        for first, second in combinations(group.to_dicts(), 2):
            models = {
                "first": first["model"],
                "first_options": first["options"],
                "second": second["model"],
                "second_options": second["options"],
            }
            paired = compare_paired(_by_seed(first), _by_seed(second))
            rows.append({**dict(zip(names, keys, strict=True)), **models, **vars(paired)})
    return pl.DataFrame(rows, infer_schema_length=None)


def _by_seed(cell: dict[str, Any]) -> dict[int, float]:
    return dict(zip(cell["seeds"], cell["accuracies"], strict=True))
