from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.mutations import add_odd_records
from tests.synthetic_runs import SyntheticRuns, write_records

from equiscale import create_model
from equiscale.cli import main
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.models.checkpoint import save_model
from equiscale.runs.store import RunState, RunStore


class Done(NamedTuple):
    returncode: object
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def equiscale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Run:
    """Run the command in this process, in a narrow terminal and an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["equiscale", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        return Done(caught.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def results(tmp_path: Path) -> Path:
    models = ("standard", "slice_pool")
    synthetic = SyntheticRuns(scenarios=(Scenario.MID_TO_REST,), models=models, seeds=range(1, 6))
    write_records(synthetic.records(), tmp_path / "runs")
    return tmp_path / "runs"


def test_report_writes_one_file(equiscale: Run, results: Path, tmp_path: Path) -> None:
    done = equiscale("report", "--out", "page.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("page.html: 10 runs")
    text = (tmp_path / "page.html").read_text()
    assert "connect-src 'none'" in text
    assert "https://" not in text


def test_compare_prints_every_cell_on_one_line(
    equiscale: Run, results: Path, tmp_path: Path
) -> None:
    done = equiscale("compare", "--runs", results, "--out", "c.csv")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "mid2rest  standard" in line]
    assert "39.11 %" in line
    assert line.split()[-5:] == ["yes", "yes", "5", "of", "5"]
    assert "inside: 2 of 2 published means lie in our interval" in done.stdout
    assert "near: 2 of 2 means of ours lie within two published standard" in done.stdout
    assert len((tmp_path / "c.csv").read_text().splitlines()) == 3


def test_compare_names_what_was_changed_in_the_protocol(equiscale: Run, tmp_path: Path) -> None:
    changed = TrainingProtocol(augmentation="rescale_object", max_epochs=77)
    synthetic = SyntheticRuns(
        scenarios=(Scenario.MID_TO_REST,), models=("standard",), protocol=changed
    )
    write_records(synthetic.records(), tmp_path / "runs")
    done = equiscale("compare")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "mid2rest  standard" in line]
    assert "standard, max_epochs=77 augmentation=rescale_object" in line
    assert "39.11 %" in line
    assert "near: 0 of 0 means" in done.stdout
    assert "not judged: 1, trained otherwise than by the paper's protocol" in done.stdout


def test_compare_without_published_cells_says_so(equiscale: Run, tmp_path: Path) -> None:
    synthetic = SyntheticRuns(scenarios=(Scenario.MID_TO_REST,), models=("riesz",), seeds=(1,))
    write_records(synthetic.records(), tmp_path / "runs")
    done = equiscale("compare", "--out", "compared.csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "nothing to compare: no cell of ours (1) is published\n"
    (heading,) = (tmp_path / "compared.csv").read_text().splitlines()
    assert heading.startswith("protocol,dataset,")


def test_a_damaged_record_is_mentioned_every_time(equiscale: Run, tmp_path: Path) -> None:
    synthetic = SyntheticRuns(scenarios=(Scenario.MID_TO_REST,), models=("standard",), seeds=(1, 2))
    write_records(synthetic.records(), tmp_path / "runs")
    damaged = min((tmp_path / "runs" / "done").iterdir())
    (damaged / "record.json").write_text("{}")
    first, second = (equiscale("compare") for _ in range(2))
    assert first.returncode == second.returncode == 0
    assert damaged.name in first.stderr
    for done in (first, second):
        assert "damaged records: 1 in 'runs/quarantine'" in done.stderr


def test_odd_records_of_others_are_shown_or_reported(equiscale: Run, results: Path) -> None:
    """Intact records that hold anything, in any place, among good ones."""
    store = RunStore(results)
    add_odd_records(store, 40, random.Random(5))
    count = len(store.run_ids(RunState.DONE))
    page = equiscale("report")
    shown = int(page.stdout.split()[1])
    assert shown >= 5
    assert shown + page.stderr.count("left out: ") == count
    for command in ("status", "compare", "collect --out t.csv", "collect --out t.parquet"):
        done = equiscale(*command.split())
        assert done.returncode in (0, 2), done.stderr
        assert "Traceback" not in done.stderr
    for table in ("t.csv", "t.parquet"):
        assert f" {shown} runs" in equiscale("report", "--runs", table).stdout
    assert not store.quarantined()


def test_figures_says_what_it_wrote_and_what_is_missing(
    equiscale: Run, results: Path, tmp_path: Path
) -> None:
    names = "ranks,suppl4-pixel-selection"
    done = equiscale("figures", "--only", names, "--formats", "svg")
    assert done.returncode == 0, done.stderr
    assert "ranks: figures/ranks.svg" in done.stdout
    assert "not drawn: no run has a layer with pixel pooling" in done.stdout


def test_figures_and_comparisons_of_some_models(
    equiscale: Run, results: Path, tmp_path: Path
) -> None:
    done = equiscale("compare", "--models", "slice_pool")
    assert done.returncode == 0, done.stderr
    assert "mid2rest  slice_pool" in done.stdout
    assert "mid2rest  standard" not in done.stdout
    choice = ("--models", "standard", "--only", "suppl1-accuracy", "--formats", "svg")
    assert equiscale("figures", *choice).returncode == 0
    rows = (tmp_path / "figures" / "suppl1-accuracy.csv").read_text()
    assert "standard" in rows
    assert "slice_pool" not in rows
    done = equiscale("figures", "--models", "slice_pol")
    assert done.returncode == 2
    assert "did you mean 'slice_pool'?" in done.stderr


@pytest.mark.parametrize("command", ["report", "figures", "compare"])
def test_an_empty_directory_is_explained(equiscale: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "runs").mkdir()
    done = equiscale(command)
    assert done.returncode == 2
    assert "no finished run" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


@pytest.mark.slow
def test_measure_prints_and_writes(equiscale: Run, emoji_file: Path, tmp_path: Path) -> None:
    model = create_model("standard", in_channels=1, num_classes=36)
    save_model(model, tmp_path / "model.safetensors")
    arguments = ("--checkpoint", "model.safetensors", "--data", emoji_file, "--out", "m.npz")
    done = equiscale("measure", *arguments)
    assert done.returncode == 0, done.stderr
    for text in ("17…32", "stage2_64_49", "operations_executed", "scale_selection: does not apply"):
        assert text in done.stdout
    with np.load(tmp_path / "m.npz", allow_pickle=False) as file:
        assert file["equivariance.stage2"].shape == (6, 36)
        assert len(json.loads(str(file["values"]))["accuracy_per_size"]) == 48


def test_measure_refuses_a_model_of_other_classes(
    equiscale: Run, emoji_file: Path, tmp_path: Path
) -> None:
    model = create_model("standard", in_channels=3, num_classes=7)
    save_model(model, tmp_path / "model.safetensors")
    arguments = ("--checkpoint", "model.safetensors", "--data", emoji_file)
    done = equiscale("measure", *arguments)
    assert done.returncode == 2
    assert "3 channels and has 7 classes" in done.stderr
