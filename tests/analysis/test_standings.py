from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from tests.synthetic_runs import SyntheticRuns, write_records

from equiscale.analysis.our_runs import our_runs
from equiscale.analysis.runs import read_study
from equiscale.analysis.standings import MEASURED, OURS, PUBLISHED, rank_standings
from equiscale.analysis.study import Study
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario

SCENARIOS = (Scenario.MID_TO_REST, Scenario.ALL_TO_ALL)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    root = tmp_path_factory.mktemp("standings")
    models = ("standard", "pixel_pool", "my_module:MyNet")
    write_records(SyntheticRuns(scenarios=SCENARIOS, models=models, seeds=(1, 2)).records(), root)
    short = TrainingProtocol(max_epochs=1)
    write_records(SyntheticRuns(models=("standard",), seeds=(1,), protocol=short).records(), root)
    one = SyntheticRuns(scenarios=SCENARIOS[:1], models=("disco",), seeds=(1,))
    write_records(one.records(), root)
    return read_study(root)


@pytest.fixture(scope="module")
def standings(study: Study) -> pl.DataFrame:
    return rank_standings(study, "paper-1", "emoji", SCENARIOS)


def row(standings: pl.DataFrame, model: str, source: str) -> dict[str, object]:
    found = standings.filter((pl.col("model") == model) & (pl.col("source") == source))
    assert len(found) == 1
    return found.to_dicts()[0]


def test_measured_and_published_stand_in_one_order(standings: pl.DataFrame) -> None:
    placed = standings.filter(pl.col("place").is_not_null())
    assert placed["place"].to_list() == list(range(1, len(placed) + 1))
    assert placed["mean"].is_sorted(descending=True)
    assert set(placed["source"]) == {MEASURED, PUBLISHED}
    assert row(standings, "my_module:MyNet", MEASURED)["runs"] == 4
    # A model that lacks a scenario has no place.
    assert row(standings, "disco", MEASURED)["place"] is None
    assert standings["model"][-1] == "disco"


def test_other_protocols_are_not_mixed_in(study: Study) -> None:
    short = rank_standings(study, "paper-1 max_epochs=1", "emoji", SCENARIOS)
    assert set(short.filter(pl.col("source") == MEASURED)["model"]) == {"standard"}


def test_a_dataset_of_ones_own_has_no_published_rows(study: Study) -> None:
    own = study.runs.with_columns(dataset=pl.lit("mine"), dataset_name=pl.lit("mine"))
    found = rank_standings(replace(study, runs=own), "paper-1", "mine", SCENARIOS)
    assert set(found["source"]) == {MEASURED}


def test_our_runs_on_the_same_images_stand_beside_them(study: Study) -> None:
    ours = our_runs().runs.filter(dataset="emoji", scenario="mid2rest", model="standard")
    runs = study.runs.with_columns(dataset_hash=pl.lit(ours["dataset_hash"][0]))
    same = replace(study, runs=runs)
    for protocol in ("paper-1", "paper-1 max_epochs=1"):
        found = rank_standings(same, protocol, "emoji", SCENARIOS[:1])
        assert set(found["source"]) == {MEASURED, OURS, PUBLISHED}
        standard = row(found, "standard", OURS)
        assert standard["mid2rest"] == pytest.approx(ours["test_accuracy"].mean())
        assert standard["epoch_seconds"] is None  # of another machine
