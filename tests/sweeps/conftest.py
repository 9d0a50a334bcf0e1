from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

from equiscale import load_dataset
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.data.catalog import locate_dataset
from equiscale.runs.key import RunKey
from equiscale.runs.lease import Lease
from equiscale.runs.store import Failure, RunStore
from equiscale.sweeps.grid import DatasetChoice
from equiscale.sweeps.job import JobSettings, Watcher, run_job
from equiscale.sweeps.request import describe_dataset
from equiscale.training.loop import InterruptedRunError

HERE = Path(__file__).parent


def wait_for(condition: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def start_sweep(emoji: DatasetChoice, results: Path, *options: str) -> subprocess.Popen[str]:
    """Start `equiscale sweep` of four short runs with these options."""
    toml = results.parent / "sweep.toml"
    toml.write_text(
        f"models = 'tiny_models:TinyNet'\ndata = '{emoji.source}'\n"
        "scenarios = 'mid2rest'\nseeds = 4\n[training]\nmax_epochs = 12\npatience = 12\n"
        "[options.'tiny_models:TinyNet']\npause = 0.004\n"
    )
    command = [sys.executable, "-m", "equiscale", "sweep", str(toml), "--runs", str(results)]
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.fixture(autouse=True)
def _tiny_models_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and in child processes."""
    monkeypatch.syspath_prepend(str(HERE))
    source = str(Path(__file__).parents[2] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, str(HERE)]))


@cache
def emoji_choice() -> DatasetChoice:
    path = locate_dataset("emoji", root="", download=False)
    return describe_dataset(str(path), load_dataset(path))


@pytest.fixture
def emoji() -> DatasetChoice:
    return emoji_choice()


def make_key(**changes: Any) -> RunKey:
    """Return the key of a run of four short epochs, with some of its parts changed."""
    data = emoji_choice()
    protocol = TrainingProtocol(max_epochs=4)
    fields = {"model": "tiny_models:TinyNet", "dataset": data.name, "seed": 1, "protocol": protocol}
    fields |= {"dataset_hash": data.content_hash, "scenario": Scenario.MID_TO_REST}
    return RunKey(**{**fields, **changes})


@pytest.fixture
def make_settings(tmp_path: Path) -> Callable[..., JobSettings]:
    def make(**changes: Any) -> JobSettings:
        data = emoji_choice()
        fields = {"runs": str(tmp_path / "runs"), "sources": {data.content_hash: data.source}}
        return JobSettings(**{**fields, "device": "cpu", "checkpoint_seconds": 0.0, **changes})

    return make


def stop_after_two_epochs(key: RunKey, settings: JobSettings) -> RunStore:
    """Start a run and stop it; its checkpoint stays."""
    epochs: list[int] = []
    watcher = Watcher(lambda p: epochs.append(p.epoch), should_stop=lambda: len(epochs) == 2)
    with pytest.raises(InterruptedRunError):
        run_job(key, settings.store, settings, watcher)
    assert epochs == [1, 2]
    return settings.store


def fail(key: RunKey, store: RunStore, kind: Literal["diverged", "error"] = "error") -> Lease:
    """Let a run fail; return the lease that it had."""
    lease = store.lease(key)
    assert lease is not None
    store.fail(Failure(key, kind, "bad luck"), lease)
    return lease
