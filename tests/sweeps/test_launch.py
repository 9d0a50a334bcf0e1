from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.sweeps.conftest import fail, make_key

from equiscale.core.errors import OptionError
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.runs.errors import RunsError
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps import launch_local
from equiscale.sweeps.grid import DatasetChoice, ModelChoice, Sweep, plan_runs
from equiscale.sweeps.job import JobSettings
from equiscale.sweeps.launch import LaunchError
from equiscale.sweeps.launch_local import LocalLauncher
from equiscale.sweeps.request import SweepStatus, inspect_sweep, run_sweep
from equiscale.sweeps.worker import EXIT_INTERRUPTED, encode_work
from equiscale.training.checkpoint import CHECKPOINT_FILE

MakeSettings = Callable[..., JobSettings]


@pytest.fixture
def grid(emoji: DatasetChoice) -> Sweep:
    names = ("TinyNet", "Raising", "Deadly")
    return Sweep(
        models=tuple(ModelChoice(f"tiny_models:{name}") for name in names),
        datasets=(emoji,),
        scenarios=(Scenario.MID_TO_REST,),
        seeds=(1,),
        protocol=TrainingProtocol(max_epochs=2),
    )


class NoLauncher:
    """Must not be needed."""

    slots = 1

    def run(self, *_: object) -> None:
        raise AssertionError("started a run")


def test_a_sweep_ends_although_runs_fail_and_a_second_call_starts_none(
    grid: Sweep, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_local, "MAX_DEATHS", 2)
    settings = make_settings()
    store = RunStore(settings.runs)
    seen: list[SweepStatus] = []
    launcher = LocalLauncher(workers=1, threads=1)
    status = run_sweep(grid, store, launcher, settings, seen.append)
    assert status.count(RunState.DONE) == 1
    reasons = {key.model: store.failure(key.run_id) for key in status.keys(RunState.FAILED)}
    assert reasons["tiny_models:Raising"].reason == "RuntimeError: no such luck"
    died = reasons["tiny_models:Deadly"]
    assert died.kind == "died"
    assert died.reason == "2 worker processes died during this run (exit code 9)"
    assert seen[0].count(RunState.MISSING) == 3
    assert {record.environment["threads"] for record in store.load_all()} == {1}
    again = run_sweep(grid, store, NoLauncher(), settings)
    assert again.states == status.states


def test_workers_that_cannot_start_are_not_started_for_ever(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "equiscale.py").write_text("raise RuntimeError('broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LaunchError, match="broken installation"):
        LocalLauncher(workers=1, threads=1).run([make_key()], make_settings(), lambda: None)


def test_a_store_that_cannot_be_written_stops_the_sweep(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(RunsError, match="cannot use the runs directory"):
        LocalLauncher(workers=1, threads=1).run([make_key()], make_settings(), lambda: None)


@pytest.mark.skipif(sys.platform != "linux", reason="has no /dev/full")
def test_a_full_disk_may_leave_no_room_for_the_words_of_a_worker(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("in the way")
    command = [sys.executable, "-m", "equiscale.sweeps.worker"]
    with Path("/dev/full").open("wb") as full:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=full)
    worker = launch_local._Worker(process, io.BytesIO())
    assert process.stdin is not None
    process.stdin.write(encode_work([make_key()], make_settings()))
    process.stdin.flush()
    process.wait()
    with pytest.raises(RunsError, match=r"a worker cannot write to .*runs'"):
        LocalLauncher()._bury(worker, [], make_settings().store)


def test_deaths_outside_a_run_count_only_while_no_run_ends(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is killed between two runs, now and then, does not end a long sweep."""
    monkeypatch.setattr(launch_local, "MAX_DEATHS", 2)
    store, launcher = RunStore(make_settings().runs), LocalLauncher(workers=1)
    dead = subprocess.Popen([sys.executable, "-c", "raise SystemExit(9)"])
    dead.wait()
    keys = [make_key(seed=seed) for seed in range(4)]
    for key in keys:
        launcher._bury(launch_local._Worker(dead, io.BytesIO()), keys, store)
        fail(key, store)
    launcher._bury(launch_local._Worker(dead, io.BytesIO()), keys, store)
    with pytest.raises(LaunchError, match="end at once with exit code 9"):
        launcher._bury(launch_local._Worker(dead, io.BytesIO()), keys, store)


def test_a_finished_sweep_needs_no_writable_directory_and_sweeps_leftovers(
    grid: Sweep, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings()
    store = RunStore(settings.runs)
    (key, *_) = plan_runs(replace(grid, models=grid.models[1:2]), {}).keys
    lease = fail(key, store)
    lease.directory.mkdir()
    monkeypatch.setattr(RunStore, "check_writable", Mock(side_effect=RunsError("read-only")))
    run_sweep(replace(grid, models=grid.models[1:2]), store, NoLauncher(), settings)
    assert not lease.directory.exists()
    with pytest.raises(RunsError, match="read-only"):
        run_sweep(grid, store, NoLauncher(), settings)


def test_workers_share_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_local, "available_cores", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert LocalLauncher().slots == 8
    assert LocalLauncher(workers=2)._environment(0, 2)["OMP_NUM_THREADS"] == "4"
    assert LocalLauncher(workers=2, threads=3)._environment(0, 2)["OMP_NUM_THREADS"] == "3"
    gpus = LocalLauncher(gpus=2, per_gpu=3)
    assert gpus.slots == 6
    dealt = [gpus._environment(index, 6)["CUDA_VISIBLE_DEVICES"] for index in range(3)]
    assert dealt == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert gpus._environment(1, 6)["CUDA_VISIBLE_DEVICES"] == "7"
    with pytest.raises(OptionError, match="workers must be an integer of at least 1, got 0"):
        LocalLauncher(workers=0)


@pytest.mark.skipif(sys.platform != "linux", reason="these are settings of glibc")
def test_a_worker_keeps_freed_memory_unless_the_user_wants_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "65536")
    environment = LocalLauncher()._environment(0, 1)
    assert environment["MALLOC_MMAP_MAX_"] == "65536"
    assert environment["MALLOC_TRIM_THRESHOLD_"] == "8589934592"


@pytest.mark.slow
def test_a_worker_ends_with_its_parent_and_its_run_can_be_resumed(
    make_settings: MakeSettings,
) -> None:
    protocol = TrainingProtocol(max_epochs=1000, patience=1000)
    key, settings = make_key(protocol=protocol), make_settings()
    store, launcher = RunStore(settings.runs), LocalLauncher(workers=1, threads=1)
    worker = launcher._start(encode_work([key], settings), 0, 1)
    checkpoint = store.working_directory(key.run_id) / CHECKPOINT_FILE
    while not checkpoint.exists():
        assert worker.process.poll() is None, worker.last_words()
        time.sleep(0.02)
    assert store.state(key.run_id) is RunState.RUNNING
    assert worker.process.stdin is not None
    worker.process.stdin.close()  # as the kernel does when the parent is killed
    assert worker.process.wait(60) == EXIT_INTERRUPTED
    worker.close()
    assert store.state(key.run_id) is RunState.MISSING
    assert checkpoint.exists()


def test_a_sweep_says_that_a_damaged_checkpoint_restarts_a_run(
    make_settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    key, settings = make_key(), make_settings()
    store = RunStore(settings.runs)
    directory = store.working_directory(key.run_id)
    directory.mkdir(parents=True)
    (directory / CHECKPOINT_FILE).write_bytes(bytes(100))
    LocalLauncher(workers=1, threads=1).run([key], settings, lambda: None)
    assert store.state(key.run_id) is RunState.DONE
    assert "restarting the run" in caplog.text


def test_divergence_counts_as_zero_in_the_choice_of_the_rate_and_other_failures_block(
    grid: Sweep, make_settings: MakeSettings
) -> None:
    store = RunStore(make_settings().runs)
    paper = replace(grid, models=grid.models[:1], select_learning_rate=True, seeds=(1, 2, 3))
    plan = inspect_sweep(paper, store).plan
    assert len(plan.keys) == 6
    for key in plan.keys:
        fail(key, store, "diverged")
    assert set(inspect_sweep(paper, store).plan.chosen.values()) == {1e-3}
    store.forget_failures([plan.keys[0].run_id])
    fail(plan.keys[0], store)
    assert inspect_sweep(paper, store).plan.chosen == {}
