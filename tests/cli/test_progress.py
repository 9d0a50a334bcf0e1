from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import PYTHONPATH, Run

from equiscale.cli.progress import LogDisplay, describe_end, tabulate_runs
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.runs.key import RunKey
from equiscale.runs.lease import PROGRESS_FILE
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps.grid import DatasetChoice, ModelChoice, Sweep
from equiscale.sweeps.progress import RunningRun
from equiscale.sweeps.request import inspect_sweep

PROTOCOL = TrainingProtocol(max_epochs=20)
KEY = RunKey("standard", "emoji", "aa", Scenario.MID_TO_REST, 1, protocol=PROTOCOL)
SWEEP = """
models = "tiny_models:TinyNet"
data = "{data}"
scenarios = "mid2rest"
seeds = 2
training = {{ max_epochs = 500, patience = 1000 }}
options = {{ "tiny_models:TinyNet" = {{ pause = 0.01 }} }}
"""


def render(*runs: RunningRun, width: int = 80, with_rates: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(tabulate_runs(runs, with_rates))
    return capture.get().splitlines()


def test_a_run_has_a_line_with_its_epochs_accuracy_and_end() -> None:
    early = RunningRun(KEY, 3, epochs_left=10, valid_accuracy=0.4123, epoch_seconds=6.5)
    last = replace(early, epoch=18, epochs_left=2)
    heading, *lines = render(early, last, replace(early, epochs_left=0), RunningRun(KEY))
    assert heading.split() == ["model", "data", "scenario", "seed", "epoch", "valid", "left"]
    assert [line.split()[:4] for line in lines] == [["standard", "emoji", "mid2rest", "1"]] * 4
    assert lines[0].endswith("3/20 41.2% ≥ 1 min 5 s")  # goes on if it improves
    assert lines[1].endswith("18/20 41.2%        13 s")  # twenty are the end
    assert lines[2].endswith("testing")
    assert re.search(r"0/20 +– +–$", lines[3])
    assert "0.001" in render(early, with_rates=True)[1]


def test_old_or_foreign_notes_of_a_worker_do_no_harm(run: Run, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    lease = store.lease(KEY)
    assert lease is not None
    note = lease.directory / PROGRESS_FILE
    note.write_text('{"epoch": 4, "max_epochs": 20, "valid_accuracy": 0.5, "epoch_seconds": 2.0}')
    known = RunningRun.load(KEY, store)
    assert (known.epoch, known.last_epoch, describe_end(known)) == (4, 20, "–")
    for odd in ("{", '{"epoch": "4", "valid_accuracy": null, "epoch_seconds": []}'):
        note.write_text(odd)
        assert RunningRun.load(KEY, store) == RunningRun(KEY)
    note.write_text('{"epoch": "\\u001b[2J"}')  # clears a terminal
    (lease.directory / "key.json").write_text("{")
    done = run("status", "--runs", tmp_path)
    assert f"running: unreadable ({KEY.run_id}), epoch �[2J/?" in done.out


@pytest.fixture
def grid() -> Sweep:
    return Sweep(
        models=(ModelChoice("standard"),),
        datasets=(DatasetChoice("emoji", "emoji", "aa", 36),),
        scenarios=(Scenario.MID_TO_REST,),
        seeds=tuple(range(1, 12)),
    )


def test_a_log_gets_a_line_per_change_ten_seconds_apart(
    grid: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("equiscale.cli.progress.time.monotonic", lambda: now)
    store, file = RunStore(tmp_path), io.StringIO()
    display = LogDisplay(Console(file=file), grid, store, slots=2)
    display.show(inspect_sweep(grid, store))
    leases = [store.lease(key) for key in inspect_sweep(grid, store).plan.keys]
    display.show(inspect_sweep(grid, store))  # too soon
    now = 111.0
    display.show(inspect_sweep(grid, store))
    now = 122.0
    display.show(inspect_sweep(grid, store))  # nothing new
    assert leases[0] is not None
    (leases[0].directory / PROGRESS_FILE).write_text('{"epoch": 3, "valid_accuracy": 0.25}')
    display.show(inspect_sweep(grid, store))
    lines = file.getvalue().splitlines()
    assert len(lines) == 3
    assert "11 missing" in lines[0]
    assert "11 running" in lines[1]
    assert lines[1].endswith("; and 3 more")
    assert "seed 1: epoch 0/200; standard on" in lines[1]
    assert "seed 1: epoch 3/200, validation 25.0%; " in lines[2]


def read_until(terminal: int, pattern: str, seconds: float = 120) -> str:
    """Return what a terminal shows up to a pattern, or to its end."""
    shown, deadline = "", time.monotonic() + seconds
    while not re.search(pattern, shown):
        assert time.monotonic() < deadline, shown[-2000:]
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # the other end is closed
            break
    return shown


@pytest.mark.slow
@pytest.mark.needs("posix")
def test_a_terminal_shows_epochs_and_is_clean_after_ctrl_c(
    tmp_path: Path, emoji_file: Path
) -> None:
    import pty

    (tmp_path / "sweep.toml").write_text(SWEEP.format(data=emoji_file))
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    environment |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "-m", "equiscale", "sweep", "sweep.toml", "--workers", "2"]
    terminal, other_end = pty.openpty()
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=other_end, stderr=other_end
    )
    os.close(other_end)
    shown = read_until(terminal, r" [1-9]\d*/500.* \d+\.\d%.* s")
    assert "tiny_models:TinyNet emoji mid2rest" in shown
    assert "2 running" in shown
    process.send_signal(signal.SIGINT)
    rest = read_until(terminal, "never shown")
    assert process.wait(30) == 130
    os.close(terminal)
    assert rest.rfind("\x1b[?25h") > rest.rfind("\x1b[?25l")  # the cursor is visible again
    assert rest.rstrip().endswith("stopped; the same command resumes it")
    store = RunStore(tmp_path / "runs")
    assert len(store.run_ids(RunState.MISSING)) == 2
    assert not store.run_ids(RunState.RUNNING)
