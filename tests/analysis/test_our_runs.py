from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from tests.synthetic_runs import SyntheticRuns, write_records

from equiscale.analysis.our_runs import join_our_runs, our_runs
from equiscale.analysis.runs import read_study
from equiscale.analysis.study import Study
from equiscale.report.page_data import page_data


@pytest.fixture
def own(tmp_path: Path) -> Study:
    """Runs of two models, as if they were made on our images of emoji."""
    models = ("my_module:MyNet", "pixel_pool")
    write_records(SyntheticRuns(models=models, seeds=(1,)).records(), tmp_path)
    study = read_study(tmp_path)
    content = our_runs().runs.filter(dataset="emoji")["dataset_hash"][0]
    return replace(study, runs=study.runs.with_columns(dataset_hash=pl.lit(content)))


def test_ours_depend_on_no_machine() -> None:
    ours = our_runs()
    times = ours.runs.select(pl.selectors.ends_with("seconds"), "torch", "commit")
    assert all(column.is_null().all() for column in times)
    assert set(ours.measurements["quantity"]) == {"accuracy", "error", "parameters"}
    assert ours.runs["run_id"].is_unique().all()


def test_ours_are_joined_once_and_only_on_the_same_images(own: Study) -> None:
    both = join_our_runs(own)
    assert both.shipped == len(our_runs().runs.filter(dataset="emoji"))
    assert len(both.runs) == len(own.runs) + both.shipped
    assert set(both.runs["dataset"]) == {"emoji"}
    assert both.selections == own.selections != ()
    twice = join_our_runs(both)
    assert (twice.shipped, len(twice.runs)) == (0, len(both.runs))
    foreign = replace(own, runs=own.runs.with_columns(dataset_hash=pl.lit("other images")))
    assert join_our_runs(foreign).shipped == 0


def test_the_page_shows_them_and_says_so(own: Study) -> None:
    data = page_data(join_our_runs(own))
    shown = {cell["model"] for cell in data["cells"]}
    assert {"my_module:MyNet", "scale_channels", "standard"} <= shown
    assert data["provenance"]["our_runs"] == len(our_runs().runs.filter(dataset="emoji"))
