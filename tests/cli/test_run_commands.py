from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import polars
import pytest
from tests.cli.conftest import PYTHONPATH, Run

from equiscale.runs.store import RunState, RunStore

LogCapture = pytest.LogCaptureFixture
TRAIN = ("train", "--model", "tiny_models:TinyNet", "--epochs", "2")
SWEEP = ("sweep", "--models", "tiny_models:TinyNet", "--scenarios", "mid2rest", "--epochs", "2")


def test_train_shows_progress_and_ends_in_a_record(run: Run) -> None:
    options = "--seed 3 --lr 0.01 --option pause=0.0001 --no-weights --batch-size 64 --patience 3"
    command = (
        *TRAIN,
        *options.split(),
        *["--optimizer", "sgd", "--reshuffle", "--augmentation", "shift", "--ema", "0.9"],
        "--break-ties",
    )
    code, out, err = run(*command)
    assert code == 0, err
    assert "epoch 1/2  loss 3." in err
    assert err.count("left unless it improves") == 1  # the last epoch leaves nothing
    assert "test accuracy" in out
    directory = Path(out.splitlines()[-1])
    key = json.loads((directory / "record.json").read_text())["science"]["key"]
    assert (key["seed"], key["learning_rate"], key["model_options"]) == (3, 0.01, {"pause": 0.0001})
    assert key["protocol"] == "paper-1"
    changes = {"batch_size": 64, "max_epochs": 2, "patience": 3, "reshuffle": True, "ema": 0.9}
    changes["break_ties"] = True
    assert key["protocol_changes"] == {"augmentation": "shift", "optimizer": "sgd", **changes}
    assert not (directory / "weights.safetensors").exists()
    again = run(*command)
    assert again[:2] == (0, out)
    assert "epoch" not in again.err


def test_a_failed_run_says_why_and_can_be_tried_again(run: Run) -> None:
    diverged = run("train", "--model", "tiny_models:Diverging", "--epochs", "1")
    assert diverged.code == 1
    assert "failed: DivergedError: training diverged in epoch 1" in diverged.err
    assert "Traceback" not in diverged.err
    failing = ("train", "--model", "tiny_models:Raising", "--epochs", "1")
    code, _, err = run(*failing)
    assert code == 1
    assert "Traceback" in err
    assert "failed: RuntimeError: no such luck" in err
    run(*failing, "--retry-failed")
    code, out, _ = run("status")
    assert code == 0
    assert "RuntimeError: no such luck" in out
    assert run("collect", "--out", "runs.csv")[0] == 2
    min(Path("runs/failed").iterdir()).write_text("{")  # does not hide the other
    out = run("status").out
    assert "cannot read why a run failed" in out
    assert ("no such luck" in out) != ("DivergedError" in out)


def test_sweep_dry_run_run_and_run_again(run: Run) -> None:
    code, out, _ = run(*SWEEP, "--seeds", "2", "--dry-run")
    assert code == 0
    assert "2 runs: 0 done, 0 running, 0 failed, 2 missing" in out
    assert "unknown; 2 runs whose model has not been timed yet" in out
    assert not Path("runs").exists()
    code, out, err = run(*SWEEP, "--seeds", "2", "--workers", "1", "--threads", "1")
    assert code == 0, err
    assert "2 runs: 2 done, 0 running, 0 failed, 0 missing" in out
    assert "\x1b" not in err, "a log, not a terminal"
    done = re.findall(r"^done: .*seed (\d): test accuracy \d+\.\d%, 2 epochs, ", err, re.MULTILINE)
    assert sorted(done) == ["1", "2"]
    stamps = {path: path.stat().st_mtime_ns for path in Path("runs/done").glob("*/*")}
    assert run(*SWEEP, "--seeds", "2", "--workers", "1", "--threads", "1")[0] == 0
    assert {path: path.stat().st_mtime_ns for path in Path("runs/done").glob("*/*")} == stamps
    code, out, _ = run(*SWEEP, "--seeds", "3", "--dry-run", "--workers", "1")
    assert "3 runs: 2 done, 0 running, 0 failed, 1 missing" in out
    assert "left, 1 at once" in out
    code, out, _ = run("collect", "--out", "runs.parquet")
    assert code == 0
    table = polars.read_parquet("runs.parquet")
    assert table["seed"].sort().to_list() == [1, 2]


def test_sweep_from_a_file(run: Run) -> None:
    Path("sweep.toml").write_text(
        "models = 'tiny_models:TinyNet'\nselect_learning_rate = true\nseeds = 7\n"
        "[training]\nmax_epochs = 1\n[options.'tiny_models:TinyNet']\npause = 0.0\n",
        encoding="utf-8",
    )
    code, out, _ = run("sweep", "sweep.toml", "--dry-run")
    assert code == 0
    assert "40 runs: 0 done, 0 running, 0 failed, 40 missing; 8 more when" in out
    code, _, err = run("sweep", "sweep.toml", "--dry-run", "--epochs", "3")
    assert code == 2
    assert "--epochs cannot be combined with a sweep file" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--model", "standart"), "unknown model 'standart'; did you mean 'standard'"),
        (("train", "--model", "standard", "--data", "emojy"), "did you mean 'emoji'"),
        (("train", "--model", "tiny_models:colour_only"), "cannot take the images of 'emoji'"),
        ((*TRAIN, "--lr", "nan"), "learning rate must be positive"),
        ((*TRAIN, "--lr", "0.1,0.2"), "--lr takes one learning rate"),
        ((*TRAIN, "--optimizer", "adm"), "did you mean 'adam'"),
        ((*TRAIN, "--option", "pause"), "must be written name=value"),
        ((*TRAIN, "--track", "wandb"), "unknown tracker 'wandb'"),
        ((*TRAIN, "--runs", "/proc/runs"), "cannot use the runs directory '/proc/runs'"),
        ((*TRAIN, "--runs", __file__), "it is a file"),
        (("bench", TRAIN[2], "--out", "/proc/page.html"), "cannot write /proc/page.html"),
        ((*SWEEP, "--seeds", "some"), "--seeds must be numbers"),
        ((*SWEEP, "--lr", "some"), "--lr must be numbers separated by commas, or published"),
        ((*SWEEP, "--lr", "0.1", "--select-lr"), "either give learning rates or have them"),
        ((*SWEEP, "--on", "slrum"), "unknown launcher 'slrum'; did you mean 'slurm'"),
        ((*SWEEP, "--launcher-option", "minutes=3"), "unknown option of local: 'minutes'"),
        ((*TRAIN, "--option", "pause=NaN"), "the model option pause=nan must be"),
        (("status",), "there is no runs directory 'runs'"),
        (("collect", "--out", "runs.xls"), "must end in .csv or .parquet"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    run: Run, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(*arguments)
    assert code == 2
    assert message in err.replace("\n", " ")
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    assert not Path("runs").exists()


def test_bad_input_is_named_before_a_dataset_is_asked_for(run: Run) -> None:
    wrong = ("--scenario", "mid2res", "--data", "nowhere.npz")
    assert "did you mean 'mid2rest'" in run("train", "--model", "standard", *wrong).err


def test_a_record_of_a_newer_version_is_left_alone(run: Run) -> None:
    run(*TRAIN)
    (path,) = Path("runs/done").glob("*/record.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    commands = {TRAIN: 2, ("collect", "--out", "runs.csv"): 2, (*SWEEP, "--seeds", "1"): 0}
    for command, expected in commands.items():
        code, _, err = run(*command)
        assert code == expected
        assert "written by a newer version" in err
    assert path.exists()


def test_a_corrupt_record_is_reported_and_can_be_made_anew(run: Run) -> None:
    run(*TRAIN)
    run(*TRAIN, "--seed", "2")
    store = RunStore("runs")
    bad = store.run_ids(RunState.DONE)[0]
    (store.directory(bad) / "arrays.npz").write_bytes(b"")
    code, out, err = run("collect", "--out", "runs.csv")
    assert code == 2
    assert "checksum of arrays.npz does not match" in err
    assert f"quarantine/{bad}.1" in err.replace("\n", "")
    assert "1 runs" in out
    assert "quarantined: runs/quarantine" in run("status")[1]
    assert run("collect", "--out", "runs.csv")[0] == 0
    assert run(*TRAIN)[0] == run(*TRAIN, "--seed", "2")[0] == 0
    assert len(store.run_ids(RunState.DONE)) == 2


@pytest.mark.slow
def test_ctrl_c_and_go_on(tmp_path: Path, emoji_file: Path) -> None:
    command = [sys.executable, "-m", "equiscale", "train", "--model", "tiny_models:TinyNet"]
    command += ["--data", str(emoji_file), "--epochs", "40", "--patience", "40"]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch 2/"):
            break
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(20) == 130
    process.stderr.close()
    assert "stopped; the same command resumes it" in rest
    assert "Traceback" not in rest
    store = RunStore(tmp_path / "runs")
    assert len(store.run_ids(RunState.MISSING)) == 1


def test_a_model_of_another_version_is_another_run(run: Run, caplog: LogCapture) -> None:
    """A model's code is not part of a run's name; its version is."""
    Path("own_model.py").write_text(
        "from tiny_models import TinyNet\nclass Own(TinyNet):\n    pass\n", encoding="utf-8"
    )
    own = ("train", "--model", "own_model:Own", "--epochs", "1")
    first = run(*own)[1]
    assert not caplog.records
    assert run(*own)[1] == first
    assert "reusing finished runs of own_model:Own: 1;" in caplog.text
    caplog.clear()
    sys.modules["own_model"].Own.version = 2
    assert run(*own)[1].splitlines()[-1] != first.splitlines()[-1]
    assert not caplog.records
