"""Runs that come with equiscale, so that a new model stands beside them at once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import polars as pl

from equiscale.analysis.comparison import read_reference
from equiscale.analysis.runs import Runs, name_cells, normalize_table

OUR_RUNS = "our_runs.csv"


@cache
def our_runs() -> pl.DataFrame:
    """Return a row per run that comes with equiscale: the paper's protocol, models as they are.

    Nothing in it depends on the machine: there are no times.
    """
    return normalize_table(read_reference(OUR_RUNS))


def join_our_runs(runs: Runs) -> Runs:
    """Return runs together with ours on the same images; a run that both have counts once."""
    ours = our_runs().filter(
        pl.col("dataset_hash").is_in(runs.table["dataset_hash"].unique().to_list()),
        ~pl.col("run_id").is_in(runs.table["run_id"].to_list()),
    )
    both = pl.concat([_as_collected(runs.table), _as_collected(ours)], how="diagonal_relaxed")
    table = normalize_table(both)
    return replace(runs, table=table, selections=name_cells(runs.selections, table), ours=len(ours))


def _as_collected(table: pl.DataFrame) -> pl.DataFrame:
    """Undo what `normalize_table` did to names: a larger table may need others."""
    restored = table.with_columns(model=pl.col("model_name"), dataset=pl.col("dataset_name"))
    return restored.drop("model_name", "dataset_name")
