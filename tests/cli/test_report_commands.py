from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Run
from tests.mutations import add_odd_records
from tests.synthetic_runs import SyntheticRuns, write_records

from equiscale import create_model
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.models.checkpoint import save_model
from equiscale.runs.store import RunState, RunStore


@pytest.fixture(autouse=True)
def _in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    models = ("standard", "slice_pool")
    synthetic = SyntheticRuns(scenarios=(Scenario.MID_TO_REST,), models=models, seeds=range(1, 6))
    write_records(synthetic.records(), tmp_path / "runs")
    return tmp_path / "runs"


@pytest.mark.parametrize(
    "command", [("report",), ("bench", "standard"), ("data", "preview", "emoji")]
)
def test_a_file_of_another_kind_is_not_overwritten(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    script = tmp_path / "script.py"
    script.write_text("mine")
    done = run(*command, "--out", "script.py")
    assert done.code == 2
    assert "'script.py' must end in ." in done.err
    assert script.read_text() == "mine"


def test_report_writes_one_file(run: Run, results: Path, tmp_path: Path) -> None:
    done = run("report", "--out", "page.html")
    assert done.code == 0, done.err
    assert done.out.startswith("page.html: 10 runs")
    text = (tmp_path / "page.html").read_text()
    assert "connect-src 'none'" in text
    assert "https://" not in text


def test_compare_prints_every_cell_on_one_line(run: Run, results: Path, tmp_path: Path) -> None:
    done = run("compare", "--runs", results, "--out", "c.csv")
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if "mid2rest  standard" in line]
    assert "39.11 %" in line
    assert line.split()[-5:] == ["yes", "yes", "5", "of", "5"]
    assert "inside: 2 of 2 published means lie in our interval" in done.out
    assert "near: 2 of 2 means of ours lie within two published standard" in done.out
    assert len((tmp_path / "c.csv").read_text().splitlines()) == 3


def test_compare_names_what_was_changed_in_the_protocol(run: Run, tmp_path: Path) -> None:
    changed = TrainingProtocol(augmentation="rescale_object", max_epochs=77)
    synthetic = SyntheticRuns(
        scenarios=(Scenario.MID_TO_REST,), models=("standard",), protocol=changed
    )
    write_records(synthetic.records(), tmp_path / "runs")
    done = run("compare")
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if "mid2rest  standard" in line]
    assert "standard, max_epochs=77 augmentation=rescale_object" in line
    assert "39.11 %" in line
    assert "near: 0 of 0 means" in done.out
    assert "not judged: 1, trained otherwise than by the paper's protocol" in done.out


def test_a_damaged_record_is_mentioned_every_time(run: Run, tmp_path: Path) -> None:
    synthetic = SyntheticRuns(scenarios=(Scenario.MID_TO_REST,), models=("standard",), seeds=(1, 2))
    write_records(synthetic.records(), tmp_path / "runs")
    damaged = min((tmp_path / "runs" / "done").iterdir())
    (damaged / "record.json").write_text("{}")
    first, second = (run("compare") for _ in range(2))
    assert first.code == second.code == 0
    assert damaged.name in first.err
    for done in (first, second):
        assert "damaged records: 1 in 'runs/quarantine'" in done.err


def test_odd_records_of_others_are_shown_or_reported(run: Run, results: Path) -> None:
    """Intact records that hold anything, in any place, among good ones."""
    store = RunStore(results)
    add_odd_records(store, 40, random.Random(5))
    count = len(store.run_ids(RunState.DONE))
    page = run("report")
    shown = int(page.out.split()[1])
    assert shown >= 5
    assert shown + page.err.count("left out: ") == count
    for command in ("status", "compare", "collect --out t.csv", "collect --out t.parquet"):
        done = run(*command.split())
        assert done.code in (0, 2), done.err
        assert "Traceback" not in done.err
    for table in ("t.csv", "t.parquet"):
        assert f" {shown} runs" in run("report", "--runs", table).out
    assert not store.quarantined()


def test_figures_and_comparisons_of_some_models(run: Run, results: Path, tmp_path: Path) -> None:
    done = run("compare", "--models", "slice_pool")
    assert done.code == 0, done.err
    assert "mid2rest  slice_pool" in done.out
    assert "mid2rest  standard" not in done.out
    choice = ("--models", "standard", "--only", "suppl1-accuracy", "--formats", "svg")
    assert run("figures", *choice).code == 0
    rows = (tmp_path / "figures" / "suppl1-accuracy.csv").read_text()
    assert "standard" in rows
    assert "slice_pool" not in rows
    done = run("figures", "--models", "slice_pol")
    assert done.code == 2
    assert "did you mean 'slice_pool'?" in done.err


def test_an_absent_or_empty_directory_is_explained(run: Run, tmp_path: Path) -> None:
    for message in ("no runs directory", "no finished run"):
        done = run("report")
        assert done.code == 2
        assert message in done.err
        (tmp_path / "runs").mkdir(exist_ok=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


@pytest.mark.slow
def test_measure_prints_and_writes(run: Run, emoji_file: Path, tmp_path: Path) -> None:
    model = create_model("standard", in_channels=1, num_classes=36)
    save_model(model, tmp_path / "model.safetensors")
    arguments = ("--checkpoint", "model.safetensors", "--data", emoji_file, "--out", "m.npz")
    done = run("measure", *arguments)
    assert done.code == 0, done.err
    for text in ("17…32", "stage2_64_49", "operations_executed", "scale_selection: does not apply"):
        assert text in done.out
    with np.load(tmp_path / "m.npz", allow_pickle=False) as file:
        assert file["equivariance.stage2"].shape == (6, 36)
        assert len(json.loads(str(file["values"]))["accuracy_per_size"]) == 48


def test_measure_refuses_a_model_of_other_classes(
    run: Run, emoji_file: Path, tmp_path: Path
) -> None:
    model = create_model("standard", in_channels=3, num_classes=7)
    save_model(model, tmp_path / "model.safetensors")
    arguments = ("--checkpoint", "model.safetensors", "--data", emoji_file)
    done = run("measure", *arguments)
    assert done.code == 2
    assert "3 channels and has 7 classes" in done.err
