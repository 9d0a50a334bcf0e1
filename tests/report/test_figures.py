from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from equiscale.analysis.runs import Runs, normalize_table
from equiscale.core.errors import OptionError
from equiscale.core.spec import Scenario
from equiscale.report.figure_data import FigureData
from equiscale.report.figures import FIGURES, MAIN_MODELS, write_figures
from equiscale.report.page_data import encode_sizes, page_data

STARTS = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_drawn(runs: Runs, tmp_path: Path, name: str) -> None:
    outcome = write_figures(runs, tmp_path, [name], ["png"])
    assert (tmp_path / f"{name}.png").stat().st_size > 5000, outcome


def test_the_formats_are_what_they_say(runs: Runs, tmp_path: Path, hostile: str) -> None:
    name = "suppl1-accuracy"
    write_figures(runs, tmp_path, [name])
    for ending, start in STARTS.items():
        assert (tmp_path / f"{name}.{ending}").read_bytes().startswith(start)
    assert hostile not in (tmp_path / f"{name}.svg").read_text()
    assert len(pl.read_csv(tmp_path / f"{name}.csv")) == 10


def test_a_figure_is_the_same_each_time(runs: Runs, tmp_path: Path) -> None:
    for directory in ("a", "b"):
        write_figures(runs, tmp_path / directory, ["ranks"], ["svg"])
    assert (tmp_path / "a/ranks.svg").read_bytes() == (tmp_path / "b/ranks.svg").read_bytes()


def test_one_run_draws_what_it_can_and_says_what_is_missing(tmp_path: Path) -> None:
    row = {
        "run_id": "a",
        "model": "my:$Net_{",
        "dataset": "$x^ $y",
        "scenario": "mid2rest",
        "seed": 1,
    }
    row |= {"test_accuracy": 0.5, "protocol": "paper-1"}
    runs = Runs(normalize_table([row]))
    outcome = write_figures(runs, tmp_path, formats=["svg"])
    assert outcome["fig7-slice-selection"] == "not drawn: no run has a layer with slice pooling"
    assert (tmp_path / "suppl1-accuracy.svg").exists()
    assert page_data(runs)["cells"][0]["curve"]["mean"] == []


@pytest.mark.parametrize("name", ["fig5-accuracy-per-size", "suppl3-equivariance"])
def test_nothing_is_cut_off_a_narrow_figure(runs: Runs, name: str) -> None:
    table = runs.table.filter(scenario="mid2rest", protocol="paper-1", dataset="emoji")
    data = FigureData(replace(runs, table=table), "paper-1")
    figure = FIGURES[name](data)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_variants_of_ours_do_not_crowd_the_figures_of_the_paper() -> None:
    rows = [
        {"run_id": m, "model": m, "dataset": "emoji", "scenario": "mid2rest", "seed": 1}
        | {"test_accuracy": 0.5, "protocol": "paper-1"}
        for m in ("standard", "scale_channels", "my.module:Net")
    ]
    rows += [
        {**row, "run_id": f"{row['run_id']} 2", "model_options": '{"depth":2}'} for row in rows
    ]
    data = FigureData(Runs(normalize_table(rows)), "paper-1")
    variant = '{"depth":2}'
    assert data.models(MAIN_MODELS) == [
        "standard",
        "my.module:Net",
        f"my.module:Net {variant}",
        f"standard {variant}",
    ]
    assert len(data.models(None)) == 6


def test_the_last_stage_is_the_models_not_the_alphabets() -> None:
    pair = {"equivariance.body_49_64": 0.1, "equivariance.stem_49_64": 0.9}
    run = _run("a", "mine", "small2large", None) | pair
    rows = [run | {"equivariance.stages": '["stem","body"]'}]
    figure = FIGURES["fig6-equivariance"](FigureData(Runs(normalize_table(rows)), "paper-1"))
    (axis,) = figure.axes
    (points,) = axis.lines
    assert np.asarray(points.get_xdata()).tolist() == [0.1]


def _run(run_id: str, dataset: str, scenario: str, error: float | None = 1.0) -> dict[str, object]:
    pair = "17_32" if scenario == "large2small" else "49_64"
    return {
        "run_id": run_id,
        "model": "standard",
        "dataset": dataset,
        "scenario": scenario,
        "seed": 1,
        "test_accuracy": 0.5,
        "protocol": "paper-1",
        "equivariance.objects": 10,
        f"equivariance.stage2_{pair}": error,
        f"equivariance.stage2_{pair}_undefined": 10 if error is None else 0,
    }


@pytest.mark.parametrize("name", ["suppl1-accuracy", "suppl3-equivariance"])
def test_a_cell_without_runs_says_so(name: str) -> None:
    rows = [_run("a", "mine", "small2large"), _run("b", "yours", "large2small")]
    figure = FIGURES[name](FigureData(Runs(normalize_table(rows)), "paper-1"))
    empty = [axis for axis in figure.axes if any(t.get_text() == "not run" for t in axis.texts)]
    assert len(figure.axes) == 4
    assert empty == [figure.axes[1], figure.axes[2]]
    assert not any(len(axis.get_xticks()) for axis in empty)


@pytest.mark.parametrize(
    ("other", "scale"), [(2.0, "linear"), (100.0, "log"), (0.0, "linear"), (None, "linear")]
)
def test_errors_far_apart_are_drawn_on_a_logarithmic_axis(other: float | None, scale: str) -> None:
    rows = [_run("a", "mine", "small2large"), _run("b", "mine", "small2large", other)]
    rows[1]["seed"] = 2
    figure = FIGURES["fig6-equivariance"](FigureData(Runs(normalize_table(rows)), "paper-1"))
    assert [axis.get_xscale() for axis in figure.axes] == [scale]


def test_unknown_names_are_refused(runs: Runs, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean 'ranks'"):
        write_figures(runs, tmp_path, ["rank"])
    with pytest.raises(OptionError, match="gif"):
        write_figures(runs, tmp_path, ["ranks"], ["gif"])


def test_the_page_data_keep_what_must_not_be_mixed_apart(runs: Runs, hostile: str) -> None:
    data = page_data(runs)
    assert data["protocols"] == ["paper-1", "paper-1 max_epochs=3"]
    assert [s["key"] for s in data["scenarios"]] == ["mid2rest", "all2all"]
    cells = {(c["protocol"], c["dataset"], c["scenario"], c["model"]): c for c in data["cells"]}
    assert cells["paper-1", "emoji", "mid2rest", "xu"]["missing"] == [2]
    assert cells["paper-1 max_epochs=3", "emoji", "mid2rest", "xu"]["runs"] == 1
    assert cells["paper-1", "emoji", Scenario.ALL_TO_ALL.value, "xu"]["gap"] is None
    assert hostile in {model["key"] for model in data["models"]}
    assert {s["pool"] for s in data["selections"]} == {"pixel", "slice"}


def test_kernel_sizes_are_encoded_one_letter_each() -> None:
    import json

    import numpy as np

    sizes = np.arange(1, 65, dtype=np.uint8)
    text = encode_sizes(sizes)
    assert json.dumps(text) == f'"{text}"'
    decoded = [ord(letter) - 48 - (ord(letter) > 92) for letter in text]
    assert decoded == sizes.tolist()


def test_a_selection_that_does_not_fit_leaves_room_for_the_others(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = page_data(runs)["selections"]
    large = whole[0]["chosen"]
    monkeypatch.setattr("equiscale.report.page_data.SELECTION_BUDGET", len(whole))
    monkeypatch.setattr(
        "equiscale.report.page_data._compressed",
        lambda text: 10 * len(whole) if text == large else 1,
    )
    data = page_data(runs)
    assert data["selections"] == [found for found in whole if found["chosen"] != large]
    assert data["provenance"]["selections_left_out"] == len(whole) - len(data["selections"])
    assert 0 < len(data["selections"]) < len(whole)
