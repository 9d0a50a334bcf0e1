from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats
from tests.synthetic_runs import SyntheticRuns, write_records

from equiscale.analysis.comparison import (
    published_accuracy,
    published_epoch_seconds,
    published_sizes,
)
from equiscale.analysis.runs import RunsReader, read_study
from equiscale.analysis.selection import (
    SIZES,
    ScaleSelection,
    best_channels,
    channel_correlations,
    count_strong,
)
from equiscale.analysis.study import Study
from equiscale.core.errors import InputFileError
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.runs.record import History
from equiscale.runs.table import MeasuredValue, write_tables

MID = (Scenario.MID_TO_REST,)


def study(*changes: dict[str, Any], values: list[MeasuredValue] | None = None) -> Study:
    base: dict[str, Any] = {"model": "standard", "dataset": "emoji", "scenario": "mid2rest"}
    base |= {"seed": 1, "test_accuracy": 0.5, "valid_accuracy": 0.5, "protocol": "paper-1"}
    rows = [{"run_id": str(index), **base, **change} for index, change in enumerate(changes)]
    return Study.from_tables(rows, values or [])


def error(stage: str, pair: tuple[int, int], value: float | None, lost: int = 0) -> MeasuredValue:
    return MeasuredValue("0", "equivariance", "error", value, stage, *pair, None, 10, lost)


def test_only_the_newest_version_of_a_model_counts() -> None:
    row = {"model": "m", "dataset": "emoji", "scenario": "mid2rest", "seed": 1}
    runs = [
        {**row, "run_id": f"{version}", "model_version": version, "test_accuracy": version / 10}
        for version in (2, 1)
    ]
    reported = Study.from_tables(pl.DataFrame(runs), pl.DataFrame({"run_id": []})).reported
    assert reported["model_version"].to_list() == [2]


def test_missing_seeds_are_named_not_averaged_away() -> None:
    cells = study({"seed": 1}, {"seed": 2}, {"seed": 2, "model": "xu"}).cells.to_dicts()
    assert [(c["model"], c["seeds"], c["missing"]) for c in cells] == [
        ("standard", [1, 2], []),
        ("xu", [2], [1]),
    ]
    assert cells[1]["low"] is None


def test_protocols_options_and_contents_are_never_mixed() -> None:
    found = study(
        {},
        {"protocol": "paper-1 max_epochs=3"},
        {"options": '{"kernel_size":5}'},
        {"dataset_hash": "aaaaaaaaaaaa"},
    )
    assert set(found.cells["runs"]) == {1}
    cells = found.cells.select("protocol", "dataset", "model", "options", "variant").rows()
    assert cells == [
        ("paper-1", "emoji ", "standard", "", False),
        ("paper-1", "emoji ", "standard", '{"kernel_size":5}', True),
        ("paper-1", "emoji aaaaaaaa", "standard", "", False),
        ("paper-1 max_epochs=3", "emoji ", "standard", "", False),
    ]


def test_side_by_side_a_training_is_an_option_of_the_model() -> None:
    longer = {"protocol": "paper-1 max_epochs=300 reshuffle=true"}
    alone = {"model": "net", "options": '{"width":8}', **longer}
    cells = study({}, longer, alone).side_by_side().cells
    found = {(row["model"], row["options"]): row["variant"] for row in cells.to_dicts()}
    training = '"max_epochs":"300","reshuffle":"true"'
    assert found == {
        ("standard", ""): False,
        ("standard", f"{{{training}}}"): True,
        ("net", f'{{{training},"width":8}}'): False,
    }
    assert set(cells["protocol"]) == {"paper-1"}
    assert set(study(longer).side_by_side().cells["options"]) == {""}, "the only training"


def test_the_learning_rate_is_chosen_by_validation_accuracy() -> None:
    found = study(
        *({"seed": s, "learning_rate": 1e-3, "valid_accuracy": 0.6} for s in range(1, 4)),
        *({"seed": s, "learning_rate": 1e-2, "valid_accuracy": 0.7} for s in range(1, 8)),
    )
    assert found.reported["learning_rate"].unique().to_list() == [1e-2]
    assert len(found.reported) == 7


def test_equivariance_averages_the_pairs_inside_the_test_sizes() -> None:
    trained = error("stage2", (48, 33), 9.0)
    values = [error("stage2", (64, 49), 0.2, lost=5), error("stage2", (17, 32), 0.5), trained]
    (row,) = study({}, values=values).errors.to_dicts()
    assert row["error"] == pytest.approx((5 * 0.2 + 10 * 0.5) / 15)
    assert row["undefined"] == 5


def test_stages_are_in_the_order_of_the_model_and_undefined_errors_are_counted() -> None:
    values = [error("stem", (64, 49), 0.9), error("body", (64, 49), None, lost=10)]
    found = study({}, values=values).errors.select("stage", "error", "undefined", "last").rows()
    assert found == [("stem", 0.9, 0, False), ("body", None, 10, True)]


def test_the_published_figures_are_complete() -> None:
    assert len(published_accuracy()) == 176
    assert len(published_sizes()) == 176 * 48
    assert len(published_epoch_seconds()) == 9 * 4


def test_the_comparison_says_whether_the_published_mean_is_inside() -> None:
    near = [{"seed": s, "test_accuracy": 0.3911 + d} for s, d in enumerate((-0.01, 0, 0, 0, 0.02))]
    far = [{"seed": s, "test_accuracy": 0.9, "model": "xu"} for s in range(5)]
    others = [{"model": "my:net"}, {"options": '{"width":2}'}]
    compared = study(*near, *far, *others).published.to_dicts()
    assert [(c["model"], c["inside"]) for c in compared] == [("standard", True), ("xu", False)]
    assert [c["near"] for c in compared] == [True, False]
    assert compared[0]["published"] == 0.3911


@pytest.mark.parametrize(
    ("changes", "judged"),
    [
        ({}, (None, True, 1)),  # three runs: the interval is too narrow to judge by
        ({"protocol": "paper-1 augmentation=rescale"}, (None, None, None)),
        ({"learning_rate": 0.01}, (None, None, None)),
    ],
)
def test_runs_that_are_not_comparable_are_shown_and_not_judged(
    changes: dict[str, Any], judged: tuple[object, ...]
) -> None:
    accuracies = (0.2, 0.4, 0.6)  # only the second is near by itself
    runs = [{"seed": s, "test_accuracy": a, **changes} for s, a in enumerate(accuracies)]
    (compared,) = study(*runs).published.to_dicts()
    assert compared["difference"] == pytest.approx(0.4 - 0.3911)
    assert tuple(compared[name] for name in ("inside", "near", "near_runs")) == judged


def test_every_two_models_are_compared_and_ranked() -> None:
    found = study(*({"seed": s, "model": m} for s in (1, 2) for m in ("standard", "xu", "disco")))
    assert len(found.pairs) == 3
    ranking = found.ranking("paper-1")
    assert ranking is not None
    assert ranking.ranks == (2.0, 2.0, 2.0)


def test_epoch_times_are_compared_with_those_of_standard() -> None:
    seconds = {"standard": 2.0, "pixel_pool": 10.0, "mine": 5.0}
    found = study(*({"model": m, "median_epoch_seconds": s} for m, s in seconds.items()))
    costs = {row["model"]: row for row in found.costs.iter_rows(named=True)}
    assert [costs[model]["epoch_ratio"] for model in seconds] == [1.0, 5.0, 2.5]
    assert costs["pixel_pool"]["published_ratio"] == pytest.approx(6.79 / 0.11)
    assert costs["mine"]["published_ratio"] is None


@pytest.mark.parametrize("name", ["runs.csv", "runs.parquet"])
def test_collected_tables_give_the_same_study(tmp_path: Path, name: str) -> None:
    records = list(SyntheticRuns(scenarios=MID, models=("standard", "xu"), seeds=(1, 2)).records())
    changed = replace(records[0].key, model_options={"widths": [1, 2.5]})
    records.append(replace(records[0], key=changed))
    write_records(records, tmp_path / "runs")
    write_tables(records, tmp_path / name)
    expected, found = read_study(tmp_path / "runs"), read_study(tmp_path / name)
    for summary in ("cells", "sizes", "errors", "costs", "published", "pairs"):
        assert getattr(found, summary).equals(getattr(expected, summary)), summary


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "x,y\n1,2\n"),
        ("a.parquet", "not parquet"),
        ("a.txt", "runs"),
        ("b.csv", ""),
        ("c.csv", "run_id,model,dataset,scenario,seed,test_accuracy\na,b,c,mid2rest,1,good\n"),
        (
            "d.csv",
            "run_id,model,options,dataset,scenario,seed,test_accuracy\na,b,{,c,mid2rest,1,0.5\n",
        ),
    ],
)
def test_a_foreign_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputFileError, match=name):
        read_study(tmp_path / name)


def test_values_that_are_not_finite_count_as_missing() -> None:
    nan = MeasuredValue("0", "test", "accuracy", math.nan, object_size=20)
    found = study(
        {"seed": 1, "test_accuracy": math.nan, "median_epoch_seconds": math.nan},
        {"seed": 2, "test_accuracy": 0.25},
        {"seed": 3, "test_accuracy": -math.inf},
        values=[nan],
    )
    (cell,) = found.cells.to_dicts()
    assert (cell["mean"], cell["seeds"], cell["missing"]) == (0.25, [2], [1, 3])
    assert found.costs["epoch_ratio"].to_list() == [None]
    assert found.sizes.is_empty()


def test_a_reader_reads_each_record_once(tmp_path: Path) -> None:
    records = list(SyntheticRuns(scenarios=MID, models=("slice_pool",), seeds=(2, 1)).records())
    write_records(records[:1], tmp_path)
    reader = RunsReader(tmp_path)
    assert len(reader.read().runs) == 1
    assert not reader.has_news()
    write_records(records[1:], tmp_path)
    assert reader.has_news()
    found = reader.read()
    assert len(found.runs) == 2
    assert found.measurements["run_id"].n_unique() == 2
    assert not found.measurements.is_duplicated().any()
    assert [s.seed for s in found.selections] == [1]
    newer = tmp_path / "done" / ("0" * 16)
    newer.mkdir()
    (newer / "record.json").write_text('{"format": 99}')
    assert reader.has_news()
    assert len(reader.read().problems) == 1
    assert not reader.has_news()
    assert len(reader.read().problems) == 1


def test_the_selection_shown_is_that_of_the_reported_rate_and_content(tmp_path: Path) -> None:
    synthetic = SyntheticRuns(models=("slice_pool",), scenarios=MID, seeds=(1, 2))
    usual = list(synthetic.records())
    better = [
        replace(
            record, key=replace(record.key, learning_rate=1e-2), history=History((1.0,), (0.99,))
        )
        for record in usual
    ]
    other = replace(usual[1], key=replace(usual[1].key, dataset_hash="y" * 64))
    short = replace(usual[0], key=replace(usual[0].key, protocol=TrainingProtocol(max_epochs=3)))
    write_records([*usual, *better, other, short], tmp_path)
    shown = read_study(tmp_path).reported_selections
    assert [(cell["protocol"], cell["dataset"], s.run_id) for cell, s in shown] == [
        ("paper-1", "emoji emojixxx", better[0].key.run_id),
        ("paper-1", "emoji yyyyyyyy", other.key.run_id),
        ("paper-1 max_epochs=3", "emoji emojixxx", short.key.run_id),
    ]


def test_channels_are_sorted_by_their_correlation_with_its_interval() -> None:
    falling, constant = 81 - np.array(SIZES), np.full(len(SIZES), 7)
    rising = np.array(SIZES) + np.tile([0, 6], len(SIZES) // 2)
    chosen = np.stack([falling, constant, rising], axis=1).astype(np.uint8)[:, None]
    selection = ScaleSelection("a", 1, {"conv": "slice"}, ("x",), 1, 0, {"conv": chosen}, {})
    found = channel_correlations(selection, "conv", 0)
    assert best_channels(found) == [2, 0, 1]
    assert count_strong(found) == 1
    low, high = found[2].interval.low, found[2].interval.high
    expected = stats.pearsonr(SIZES, rising).confidence_interval()
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert found[1].r is None


def test_a_huge_object_size_takes_no_memory() -> None:
    sizes = (1, 2, 65_535, 10**9)
    values = [MeasuredValue("0", "test", "accuracy", 0.5, object_size=size) for size in sizes]
    many = study(*({"seed": seed} for seed in range(1000)), values=values)
    tracemalloc.start()
    try:
        assert many.object_sizes == {"emoji": (1, 2, 65_535)}
        assert many.sizes["runs"].to_list() == [1, 1, 1]
        assert many.cells["runs"].to_list() == [1000]
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
