"""Runs that come with equiscale, so that a new model can be compared with them at once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources

import polars as pl

from equiscale.analysis.runs import read_table
from equiscale.analysis.study import Study
from equiscale.runs.table import MEASUREMENT_COLUMNS, RUN_COLUMNS


@cache
def our_runs() -> Study:
    """Return the study of the runs that come with equiscale.

    Models are as they are, trained by the paper's protocol; `deep_channels` by its own. Nothing in
    them depends on the machine: there are no times.
    """
    folder = resources.files("equiscale") / "reference"
    runs, measurements = (
        read_table((folder / name).read_bytes(), ".csv", columns)
        for name, columns in (
            ("our_runs.csv", RUN_COLUMNS),
            ("our_runs.measurements.csv", MEASUREMENT_COLUMNS),
        )
    )
    return Study.from_tables(runs, measurements)


def join_our_runs(study: Study) -> Study:
    """Return a study together with our runs on the same images; a run in both counts once."""
    ours = our_runs().runs.filter(
        pl.col("dataset_hash").is_in(study.runs["dataset_hash"].unique().to_list()),
        ~pl.col("run_id").is_in(study.runs["run_id"].to_list()),
    )
    added = our_runs().measurements.filter(pl.col("run_id").is_in(ours["run_id"].to_list()))
    joined = Study.from_tables(
        pl.concat([study.runs, ours]).with_columns(dataset="dataset_name"),
        pl.concat([study.measurements, added]),
    )
    return replace(study, runs=joined.runs, measurements=joined.measurements, shipped=len(ours))
