from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.synthetic_runs import Study, write_records

from equiscale.analysis.our_runs import join_our_runs, our_runs
from equiscale.analysis.runs import Runs, read_runs
from equiscale.report.page_data import page_data


@pytest.fixture
def own(tmp_path: Path) -> Runs:
    """Runs of one model, as if they were made on our images of emoji."""
    write_records(Study(models=("my_module:MyNet", "pixel_pool"), seeds=(1,)).records(), tmp_path)
    runs = read_runs(tmp_path)
    content = our_runs().filter(dataset="emoji")["dataset_hash"][0]
    table = runs.table.with_columns(dataset_hash=pl.lit(content))
    return Runs(table, runs.selections, source=runs.source)


def test_ours_depend_on_no_machine() -> None:
    names = our_runs().columns
    assert not [name for name in names if "seconds" in name or "memory" in name]
    assert our_runs()["run_id"].is_unique().all()


def test_ours_are_joined_once_and_only_on_the_same_images(own: Runs) -> None:
    both = join_our_runs(own)
    assert both.ours == len(our_runs().filter(dataset="emoji"))
    assert len(both.table) == len(own.table) + both.ours
    assert set(both.table["dataset"]) == {"emoji"}
    cells = [[selection.cell for selection in runs.selections] for runs in (both, own)]
    assert cells[0] == cells[1] != []
    twice = join_our_runs(both)
    assert (twice.ours, len(twice.table)) == (0, len(both.table))
    foreign = Runs(own.table.with_columns(dataset_hash=pl.lit("other images")))
    assert join_our_runs(foreign).ours == 0


def test_the_page_shows_them_and_says_so(own: Runs) -> None:
    data = page_data(join_our_runs(own))
    shown = {cell["model"] for cell in data["cells"]}
    assert {"my_module:MyNet", "scale_channels", "standard"} <= shown
    assert data["provenance"]["our_runs"] == len(our_runs().filter(dataset="emoji"))
