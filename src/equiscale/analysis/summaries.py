"""The table behind each figure. Accuracies are in [0, 1]; what is missing stays missing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from equiscale.analysis.runs import CELL, RunSelection, sizes_of
from equiscale.analysis.statistics import (
    Correlation,
    Ranking,
    bootstrap_interval,
    bootstrap_means,
    compare_paired,
    pearson,
    rank_models,
)
from equiscale.core.spec import Scenario
from equiscale.sweeps.grid import TRIAL_SEEDS, choose_learning_rate

_ERROR_COLUMN = re.compile(r"equivariance\.(?P<stage>.+)_(?P<first>\d+)_(?P<second>\d+)$")


def reported_runs(table: pl.DataFrame) -> pl.DataFrame:
    """Return the runs that count: where a cell was run with several learning rates, one of them.

    The paper's rule: the higher median validation accuracy over the first five seeds that all
    rates have; ties go to the smaller rate.
    """
    kept = []
    for _, cell in table.group_by(CELL, maintain_order=True):
        rates = cell["learning_rate"].unique().to_list()
        kept.append(cell if len(rates) == 1 else _with_chosen_rate(cell, rates))
    runs = pl.concat(kept)
    return runs.sort(*CELL, "seed").unique([*CELL, "seed"], keep="first", maintain_order=True)


def reported_selections(
    selections: Iterable[RunSelection], reported: pl.DataFrame
) -> list[RunSelection]:
    """Return the scale selections of runs that count, in the order of their cells."""
    counted = set(reported["run_id"].to_list())
    return sorted((s for s in selections if s.run_id in counted), key=lambda s: s.cell)


def _with_chosen_rate(cell: pl.DataFrame, rates: Sequence[float]) -> pl.DataFrame:
    per_rate = {rate: cell.filter(pl.col("learning_rate") == rate) for rate in rates}
    shared = set.intersection(*(set(runs["seed"].to_list()) for runs in per_rate.values()))
    trials = sorted(shared)[:TRIAL_SEEDS]
    accuracies = {}
    for rate, runs in per_rate.items():
        compared = runs.filter(pl.col("seed").is_in(trials)) if trials else runs
        accuracies[rate] = [value or 0.0 for value in compared["valid_accuracy"].to_list()]
    return per_rate[choose_learning_rate(accuracies)]


def summarize_accuracy(runs: pl.DataFrame) -> pl.DataFrame:
    """Return one row per cell: statistics of the test accuracy, seeds and missing seeds.

    A seed counts as missing in a cell if another cell of the same protocol and dataset has it.
    `gap` is the generalisation gap: mean accuracy at the trained object sizes minus mean accuracy
    at the others, which is the area lost outside the training range divided by its width.
    """
    expected = {
        keys: set(group["seed"].to_list()) for keys, group in runs.group_by("protocol", "dataset")
    }
    rows = []
    for keys, cell in runs.group_by(CELL, maintain_order=True):
        rows.append(_summarize_cell(keys, cell, expected[keys[:2]]))
    return pl.DataFrame(rows, infer_schema_length=None).sort(*CELL)


def _summarize_cell(
    keys: tuple[Any, ...], cell: pl.DataFrame, expected: set[int]
) -> dict[str, Any]:
    defined = cell.filter(pl.col("test_accuracy").is_not_null())
    accuracies = defined["test_accuracy"].to_list()
    interval = bootstrap_interval(accuracies)
    gaps = [gap for gap in generalization_gaps(cell, Scenario(keys[2])) if np.isfinite(gap)]
    gap_interval = bootstrap_interval(gaps)
    return {
        **dict(zip(CELL, keys, strict=True)),
        "model_name": cell["model_name"][0],
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


def generalization_gaps(cell: pl.DataFrame, scenario: Scenario) -> NDArray[np.float64]:
    """`-> [runs]`: accuracy at trained sizes minus at others, per run; NaN in `all2all`."""
    sizes = sizes_of(cell)
    accuracies = cell.select(_columns(sizes)).to_numpy().astype(np.float64)
    trained = np.isin(sizes, scenario.train_sizes(sizes))
    if trained.all():
        return np.full(len(accuracies), np.nan)
    gaps: NDArray[np.float64] = accuracies[:, trained].mean(1) - accuracies[:, ~trained].mean(1)
    return gaps


def summarize_sizes(runs: pl.DataFrame) -> pl.DataFrame:
    """Return mean and interval of the accuracy at each object size, one row per cell and size."""
    parts = []
    for keys, cell in runs.group_by(CELL, maintain_order=True):
        sizes = sizes_of(cell)
        values = cell.select(_columns(sizes)).to_numpy().astype(np.float64)
        values = values[np.isfinite(values).all(axis=1)]
        if not len(values):
            continue
        low, high = bootstrap_means(values)
        part = {"object_size": sizes, "mean": values.mean(0), "low": low, "high": high}
        cells = {name: pl.lit(key) for name, key in zip(CELL, keys, strict=True)}
        parts.append(pl.DataFrame(part).with_columns(**cells, runs=pl.lit(len(values))))
    if not parts:
        return pl.DataFrame(schema={**dict.fromkeys(CELL, pl.String), "object_size": pl.Int64})
    return pl.concat(parts).fill_nan(None).sort(*CELL, "object_size")


def _columns(sizes: Iterable[int]) -> list[str]:
    return [f"accuracy_{size}" for size in sizes]


def summarize_equivariance(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the equivariance error of every run and stage, over the pairs inside its test sizes.

    `error` is the mean over all test objects and pairs whose error is defined; `undefined`
    counts the others. Stages are in the order of the model, `last` marks its last.
    """
    columns = [match for name in runs.columns if (match := _ERROR_COLUMN.match(name))]
    schema = {**dict.fromkeys((*CELL, "stage"), pl.String), "seed": pl.Int64}
    schema |= {"last": pl.Boolean, "error": pl.Float64, "undefined": pl.Int64}
    schema |= {"test_accuracy": pl.Float64}
    known_stages = list(dict.fromkeys(match["stage"] for match in columns))
    rows = []
    sizes = {str(keys[0]): sizes_of(part) for keys, part in runs.group_by("dataset")}
    for run in runs.iter_rows(named=True) if columns else ():
        tested = set(Scenario(run["scenario"]).test_sizes(sizes[run["dataset"]]))
        inside = [m for m in columns if {int(m["first"]), int(m["second"])} <= tested]
        known = {name: run[name] for name in (*CELL, "seed", "test_accuracy")}
        found = []
        for stage in _ordered_stages(run, known_stages):
            error, undefined = _mean_error(run, [m for m in inside if m["stage"] == stage])
            if error is not None or undefined:
                found.append({**known, "stage": stage, "error": error, "undefined": undefined})
        rows += [{**row, "last": row is found[-1]} for row in found]
    return pl.DataFrame(rows, schema=schema)


def _ordered_stages(run: dict[str, Any], known_stages: list[str]) -> list[str]:
    """Return the stages of a run from first to last; tables without that order have their own."""
    recorded = run.get("equivariance.stages")
    return json.loads(recorded) if recorded else known_stages


def _mean_error(run: dict[str, Any], columns: Iterable[re.Match[str]]) -> tuple[float | None, int]:
    total, defined, undefined = 0.0, 0, 0
    objects = run.get("equivariance.objects") or 0
    for match in columns:
        lost = run.get(f"{match[0]}_undefined") or 0
        mean = run[match[0]]
        undefined += lost
        if mean is not None:
            total += mean * (objects - lost)
            defined += objects - lost
    return (total / defined if defined else None), undefined


def summarize_costs(runs: pl.DataFrame) -> pl.DataFrame:
    """Return seconds per epoch and image, memory and operations per protocol, dataset and model.

    Times are those of the fastest run, since whatever else a machine does only adds to them; the
    others are medians. An epoch contains the pass over the validation images, `train_seconds` does
    not. `epoch_ratio` and `train_ratio` are these times divided by those of `standard`, null
    without one.
    """
    wanted = {
        "median_epoch_seconds": "epoch_seconds",
        "first_epoch_seconds": "first_epoch_seconds",
        "last_epoch_seconds": "last_epoch_seconds",
        "median_train_seconds": "train_seconds",
        "cost.inference_seconds": "inference_seconds",
        "cost.peak_memory_bytes": "peak_memory_bytes",
        "cost.operations_by_formula": "operations_by_formula",
        "cost.operations_executed": "operations_executed",
        "cost.parameters": "parameters",
    }
    present = {name: label for name, label in wanted.items() if name in runs.columns}
    # An epoch of all2all sees three times the images of the others.
    comparable = runs.with_columns(
        pl.when(pl.col("scenario") == Scenario.ALL_TO_ALL.value)
        .then(pl.col(name) / 3)
        .otherwise(pl.col(name))
        .alias(name)
        for name in present
        if name.endswith(("epoch_seconds", "train_seconds"))
    )
    columns = [
        (values.min() if label.endswith("_seconds") else values.median()).alias(label)
        for name, label in present.items()
        for values in [pl.col(name).cast(pl.Float64)]
    ]
    keys = ("protocol", "dataset", "dataset_name", "model", "model_name")
    costs = comparable.group_by(*keys, maintain_order=True).agg(*columns, runs=pl.len())
    absent = [label for name, label in wanted.items() if name not in present]
    costs = costs.with_columns(pl.lit(None, pl.Float64).alias(name) for name in absent)
    return costs.with_columns(
        epoch_ratio=_ratio_to_standard("epoch_seconds"),
        train_ratio=_ratio_to_standard("train_seconds"),
    )


def _ratio_to_standard(name: str) -> pl.Expr:
    standard = pl.col(name).filter(pl.col("model") == "standard").first()
    return pl.col(name) / standard.over("protocol", "dataset")


def find_variants(models: Iterable[str]) -> set[str]:
    """Return those that are another one of them with some options changed, `name {…}`.

    Examples:
        >>> find_variants(["xu", "xu {…}", "mine {…}"])
        {'xu {…}'}
    """
    names = set(models)
    return {name for name in names if name.partition(" {")[0] in names - {name}}


def rank_cells(cells: pl.DataFrame, protocol: str) -> Ranking | None:
    """Rank the models of one protocol over datasets and scenarios by their mean accuracy.

    Variants are left out.
    """
    scores: dict[object, dict[str, float]] = {}
    variants = find_variants(cells["model"])
    for row in cells.filter(pl.col("protocol") == protocol).iter_rows(named=True):
        if row["mean"] is not None and row["model"] not in variants:
            scores.setdefault((row["dataset"], row["scenario"]), {})[row["model"]] = row["mean"]
    return rank_models(scores)


def compare_models(cells: pl.DataFrame) -> pl.DataFrame:
    """Return the paired comparison of every two models of a cell over the seeds they share."""
    rows = []
    names = ("protocol", "dataset", "scenario")
    for keys, group in cells.group_by(*names, maintain_order=True):
        results = {
            row["model"]: dict(zip(row["seeds"], row["accuracies"], strict=True))
            for row in group.iter_rows(named=True)
        }
        for first, second in combinations(results, 2):
            paired = compare_paired(results[first], results[second])
            rows.append(
                {
                    **dict(zip(names, keys, strict=True)),
                    "first": first,
                    "second": second,
                    "seeds": len(paired.seeds),
                    "missing": len(paired.missing),
                    "difference": paired.difference,
                    "low": paired.interval.low,
                    "high": paired.interval.high,
                    "wins": paired.wins,
                    "ties": paired.ties,
                    "p_value": paired.p_value,
                }
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def channel_correlations(selection: RunSelection, layer: str, item: int) -> list[Correlation]:
    """Return Pearson's r of object size and chosen kernel size by channel, for one test object."""
    chosen = selection.chosen[layer][:, item]
    return [pearson(selection.sizes, kernel_sizes) for kernel_sizes in chosen.T]


def count_strong(correlations: Iterable[Correlation], above: float = 0.9) -> int:
    """Return how many channels follow the object with an r above a bound."""
    return sum(c.r is not None and c.r > above for c in correlations)


def best_channels(correlations: Sequence[Correlation]) -> list[int]:
    """Return the channels, those that follow the object best first; constant ones come last."""
    return sorted(range(len(correlations)), key=lambda c: -_r_or_least(correlations[c]))


def _r_or_least(correlation: Correlation) -> float:
    return -2.0 if correlation.r is None else correlation.r
