from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats
from tests.synthetic_runs import Study, write_records

from equiscale.analysis.comparison import (
    compare_costs,
    compare_published,
    published_accuracy,
    published_epoch_seconds,
    published_sizes,
)
from equiscale.analysis.runs import SIZES, RunSelection, RunsReader, normalize_table, read_runs
from equiscale.analysis.summaries import (
    best_channels,
    channel_correlations,
    compare_models,
    count_strong,
    rank_cells,
    reported_runs,
    reported_selections,
    summarize_accuracy,
    summarize_costs,
    summarize_equivariance,
    summarize_sizes,
)
from equiscale.core.errors import InputFileError
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.runs.errors import RunsError
from equiscale.runs.record import History
from equiscale.runs.table import record_row, write_table

MID = (Scenario.MID_TO_REST,)


def rows(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "run_id": "x",
        "model": "standard",
        "dataset": "emoji",
        "scenario": "mid2rest",
    }
    base |= {"seed": 1, "test_accuracy": 0.5, "valid_accuracy": 0.5, "protocol": "paper-1"}
    return {**base, **{f"accuracy_{size}": 0.5 for size in SIZES}, **changes}


def table(*changes: dict[str, Any]) -> pl.DataFrame:
    return reported_runs(normalize_table([rows(**change) for change in changes]))


def test_a_cell_is_summarised_as_numpy_does(tmp_path: Path) -> None:
    study = Study(scenarios=MID, models=("standard", "slice_pool"), seeds=(1, 2, 3, 4))
    records = list(study.records())
    write_records(records, tmp_path)
    runs = read_runs(tmp_path)
    cells = summarize_accuracy(reported_runs(runs.table))
    for row in cells.iter_rows(named=True):
        same = [r for r in records if r.key.model == row["model"]]
        own = [r.test_accuracy for r in same]
        assert row["mean"] == pytest.approx(np.mean(own))
        assert row["std"] == pytest.approx(np.std(own, ddof=1))
        assert row["low"] <= row["mean"] <= row["high"]
        trained = np.mean([r.predictions.accuracy(tuple(range(33, 49))) for r in same])
        assert row["gap"] == pytest.approx(trained - row["mean"])
    curve = summarize_sizes(reported_runs(runs.table)).filter(pl.col("model") == "standard")
    by_hand = np.mean([r.predictions.accuracy((40,)) for r in records if r.key.model == "standard"])
    assert curve.filter(pl.col("object_size") == 40)["mean"][0] == pytest.approx(by_hand)


def test_missing_seeds_are_named_not_averaged_away() -> None:
    seeds: list[dict[str, Any]] = [
        {"seed": 1},
        {"seed": 2},
        {"seed": 2, "model": "xu", "test_accuracy": 0.9},
    ]
    cells = summarize_accuracy(table(*seeds)).to_dicts()
    assert [(c["model"], c["seeds"], c["missing"]) for c in cells] == [
        ("standard", [1, 2], []),
        ("xu", [2], [1]),
    ]
    assert cells[1]["low"] is None


def test_protocols_options_and_contents_are_never_mixed() -> None:
    runs = table(
        {},
        {"protocol": "paper-1 max_epochs=3"},
        {"model_options": '{"kernel_size":5}'},
        {"dataset_hash": "aaaaaaaaaaaa"},
    )
    cells = summarize_accuracy(runs)
    assert len(cells) == 4
    assert set(cells["runs"]) == {1}
    assert 'standard {"kernel_size":5}' in cells["model"].to_list()
    assert "emoji aaaaaaaa" in cells["dataset"].to_list()


def test_the_learning_rate_is_chosen_by_validation_accuracy() -> None:
    runs = table(
        *({"seed": s, "learning_rate": 1e-3, "valid_accuracy": 0.6} for s in range(1, 4)),
        *({"seed": s, "learning_rate": 1e-2, "valid_accuracy": 0.7} for s in range(1, 8)),
    )
    assert runs["learning_rate"].unique().to_list() == [1e-2]
    assert len(runs) == 7


def test_nan_is_missing() -> None:
    runs = table({"seed": 1, "test_accuracy": float("nan")}, {"seed": 2, "test_accuracy": 0.25})
    (cell,) = summarize_accuracy(runs).to_dicts()
    assert (cell["mean"], cell["runs"], cell["missing"]) == (0.25, 1, [1])


def test_equivariance_averages_the_pairs_inside_the_test_sizes() -> None:
    errors = {
        "equivariance.objects": 10,
        "equivariance.stage2_64_49": 0.2,
        "equivariance.stage2_64_49_undefined": 5,
        "equivariance.stage2_17_32": 0.5,
        "equivariance.stage2_17_32_undefined": 0,
        "equivariance.stage2_48_33": 9.0,  # trained on in mid2rest
        "equivariance.stage2_48_33_undefined": 0,
    }
    (row,) = summarize_equivariance(table(errors)).to_dicts()
    assert row["error"] == pytest.approx((5 * 0.2 + 10 * 0.5) / 15)
    assert row["undefined"] == 5


def test_stages_are_in_the_order_of_the_model() -> None:
    errors = {
        "equivariance.objects": 10,
        "equivariance.stages": '["stem","body"]',
        "equivariance.body_64_49": 0.1,
        "equivariance.stem_64_49": 0.9,
    }
    found = summarize_equivariance(table(errors)).select("stage", "error", "last").rows()
    assert found == [("stem", 0.9, False), ("body", 0.1, True)]


def test_no_measurement_gives_an_empty_table() -> None:
    assert summarize_equivariance(table({})).is_empty()
    assert summarize_costs(table({}))["epoch_seconds"].to_list() == [None]


def test_the_published_figures_are_complete() -> None:
    assert len(published_accuracy()) == 176
    assert len(published_sizes()) == 176 * 48
    assert len(published_epoch_seconds()) == 9 * 4


def test_the_comparison_says_whether_the_published_mean_is_inside() -> None:
    near = [{"seed": s, "test_accuracy": 0.3911 + d} for s, d in enumerate((-0.01, 0, 0, 0, 0.02))]
    far = [{"seed": s, "test_accuracy": 0.9, "model": "xu"} for s in range(5)]
    unknown = [{"model": "my:net"}]
    compared = compare_published(summarize_accuracy(table(*near, *far, *unknown))).to_dicts()
    assert [(c["model"], c["inside"]) for c in compared] == [("standard", True), ("xu", False)]
    assert [c["near"] for c in compared] == [True, False]
    assert compared[0]["published"] == 0.3911


def test_an_interval_of_few_runs_is_not_judged_by() -> None:
    runs = [{"seed": s, "test_accuracy": 0.4} for s in range(4)]
    (compared,) = compare_published(summarize_accuracy(table(*runs))).to_dicts()
    assert compared["low"] is not None
    assert (compared["inside"], compared["near"]) == (None, True)


def test_runs_by_another_protocol_are_shown_and_not_judged() -> None:
    runs = [{"seed": s, "protocol": "paper-1 augmentation=rescale"} for s in (1, 2, 3)]
    (compared,) = compare_published(summarize_accuracy(table(*runs))).to_dicts()
    assert compared["difference"] == pytest.approx(0.5 - 0.3911)
    assert (compared["inside"], compared["near"], compared["same_protocol"]) == (None, None, False)


def test_runs_at_another_learning_rate_are_shown_and_not_judged() -> None:
    runs = [{"seed": s, "learning_rate": 0.01} for s in (1, 2, 3)]
    (compared,) = compare_published(summarize_accuracy(table(*runs))).to_dicts()
    assert (compared["learning_rate"], compared["published_lr"]) == (0.01, 0.001)
    judged = ("inside", "near", "near_runs")
    assert [compared[name] for name in judged] == [None, None, None]
    assert (compared["same_protocol"], compared["same_rate"]) == (True, False)


def test_single_runs_are_judged_too() -> None:
    runs = [{"seed": s, "test_accuracy": value} for s, value in enumerate((0.20, 0.39, 0.58))]
    (compared,) = compare_published(summarize_accuracy(table(*runs))).to_dicts()
    assert (compared["near"], compared["near_runs"], compared["runs"]) == (True, 1, 3)


def test_every_two_models_are_compared_and_ranked() -> None:
    cells = summarize_accuracy(
        table(*({"seed": s, "model": m} for s in (1, 2) for m in ("standard", "xu", "disco")))
    )
    assert len(compare_models(cells)) == 3
    ranking = rank_cells(cells, "paper-1")
    assert ranking is not None
    assert ranking.ranks == (2.0, 2.0, 2.0)


def test_a_collected_table_gives_the_same_cells(tmp_path: Path) -> None:
    records = list(Study(scenarios=MID, models=("standard", "xu"), seeds=(1, 2)).records())
    write_records(records, tmp_path / "runs")
    expected = summarize_accuracy(reported_runs(read_runs(tmp_path / "runs").table))
    for name in ("runs.csv", "runs.parquet"):
        write_table([record_row(record) for record in records], tmp_path / name)
        found = summarize_accuracy(reported_runs(read_runs(tmp_path / name).table))
        assert found["mean"].to_list() == pytest.approx(expected["mean"].to_list())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "x,y\n1,2\n"),
        ("a.parquet", "not parquet"),
        ("a.txt", "runs"),
        ("b.csv", ""),
        ("c.csv", "run_id,model,dataset,scenario,seed,test_accuracy\na,b,c,mid2rest,1,good\n"),
    ],
)
def test_a_foreign_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputFileError, match=name):
        read_runs(tmp_path / name)


@pytest.mark.parametrize("name", ["runs.csv", "runs.parquet"])
def test_values_that_are_not_finite_count_as_missing(tmp_path: Path, name: str) -> None:
    found = [record_row(r) for r in Study(scenarios=MID, models=("standard", "xu")).records()]
    for row in found:
        row["median_epoch_seconds"] = math.nan
        if row["model"] == "xu":
            row["test_accuracy"] = math.nan
        elif row["seed"] == 2:
            row |= {"test_accuracy": -math.inf, "accuracy_20": math.nan}
    write_table(found, tmp_path / name)
    runs = reported_runs(read_runs(tmp_path / name).table)
    cells = {row["model"]: row for row in summarize_accuracy(runs).iter_rows(named=True)}
    assert cells["standard"]["seeds"] == [1, 3]
    assert cells["standard"]["missing"] == [2]
    assert cells["xu"]["mean"] is None
    assert summarize_costs(runs)["epoch_ratio"].to_list() == [None, None]
    assert summarize_sizes(runs).filter(pl.col("model") == "standard")["runs"][0] == 2


def test_an_absent_or_empty_directory_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RunsError, match="no runs directory"):
        read_runs(tmp_path / "nowhere")
    with pytest.raises(RunsError, match="equiscale train"):
        read_runs(tmp_path)


def test_half_written_records_are_left_out_and_said(tmp_path: Path) -> None:
    store = write_records(Study(scenarios=MID, models=("standard",)).records(), tmp_path)
    broken, *_ = sorted((tmp_path / "done").iterdir())
    (broken / "arrays.npz").write_bytes(b"half")
    (tmp_path / "active" / "0123456789abcdef").mkdir(parents=True)
    (tmp_path / "done" / "notes.txt").write_text("not a run")
    runs = read_runs(tmp_path)
    assert len(runs.table) == 2
    assert "checksum" in runs.problems[0]
    assert runs.others["quarantined"] == 1
    assert runs.others["interrupted"] == 1
    assert len(store.quarantined()) == 1


def test_a_reader_reads_each_record_once(tmp_path: Path) -> None:
    records = list(Study(scenarios=MID, models=("slice_pool",), seeds=(2, 1)).records())
    write_records(records[:1], tmp_path)
    reader = RunsReader(tmp_path)
    assert len(reader.read().table) == 1
    assert not reader.has_news()
    write_records(records[1:], tmp_path)
    assert reader.has_news()
    runs = reader.read()
    assert len(runs.table) == 2
    assert [s.seed for s in runs.selections] == [1]


def test_another_protocol_is_another_selection(tmp_path: Path) -> None:
    other = TrainingProtocol(max_epochs=3)
    for protocol in (TrainingProtocol(), other):
        study = Study(scenarios=MID, models=("slice_pool",), seeds=(1,), protocol=protocol)
        write_records(study.records(), tmp_path)
    assert len(read_runs(tmp_path).selections) == 2


def test_the_selection_shown_is_that_of_the_reported_rate_and_content(tmp_path: Path) -> None:
    study = Study(models=("slice_pool",), scenarios=(Scenario.MID_TO_REST,), seeds=(1, 2))
    usual = list(study.records())
    better = [
        replace(
            record,
            key=replace(record.key, learning_rate=1e-2),
            history=History((1.0,), (0.99,)),
        )
        for record in usual
    ]
    other = [replace(usual[1], key=replace(usual[1].key, dataset_hash="y" * 64))]
    write_records([*usual, *better, *other], tmp_path)
    runs = read_runs(tmp_path)
    shown = reported_selections(runs.selections, reported_runs(runs.table))
    assert [(s.cell[1], s.run_id) for s in shown] == [
        ("emoji emojixxx", better[0].key.run_id),
        ("emoji yyyyyyyy", other[0].key.run_id),
    ]


def test_epoch_times_are_compared_with_those_of_standard() -> None:
    seconds = {"standard": 2.0, "pixel_pool": 10.0, "mine": 5.0}
    runs = table(*({"model": m, "median_epoch_seconds": s} for m, s in seconds.items()))
    costs = compare_costs(summarize_costs(runs))
    found = {row["model"]: row for row in costs.iter_rows(named=True)}
    assert [found[model]["epoch_ratio"] for model in seconds] == [1.0, 5.0, 2.5]
    assert found["pixel_pool"]["published_ratio"] == pytest.approx(6.79 / 0.11)
    assert found["mine"]["published_ratio"] is None


def test_channels_are_sorted_by_their_correlation_with_its_interval() -> None:
    falling, constant = 81 - np.array(SIZES), np.full(len(SIZES), 7)
    rising = np.array(SIZES) + np.tile([0, 6], len(SIZES) // 2)
    chosen = np.stack([falling, constant, rising], axis=1).astype(np.uint8)[:, None]
    selection = RunSelection("a", (), 1, {"conv": "slice"}, ("x",), 1, 0, {"conv": chosen}, {})
    found = channel_correlations(selection, "conv", 0)
    assert best_channels(found) == [2, 0, 1]
    assert count_strong(found) == 1
    low, high = found[2].interval.low, found[2].interval.high
    expected = stats.pearsonr(SIZES, rising).confidence_interval()
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert found[1].r is None
