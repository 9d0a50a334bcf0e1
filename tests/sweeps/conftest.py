from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from equiscale import load_dataset
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.runs.key import RunKey
from equiscale.sweeps.grid import DatasetChoice
from equiscale.sweeps.job import JobSettings
from equiscale.sweeps.request import describe_dataset
from equiscale.sweeps.worker import encode_work

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _tiny_models_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and in child processes."""
    monkeypatch.syspath_prepend(str(HERE))
    source = str(Path(__file__).parents[2] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, str(HERE)]))


@pytest.fixture(scope="session")
def emoji(emoji_file: Path) -> DatasetChoice:
    return describe_dataset(str(emoji_file), load_dataset(emoji_file))


@pytest.fixture
def make_key(emoji: DatasetChoice) -> Callable[..., RunKey]:
    def make(**changes: object) -> RunKey:
        fields: dict[str, object] = {
            "model": "tiny_models:TinyNet",
            "dataset": emoji.name,
            "dataset_hash": emoji.content_hash,
            "scenario": Scenario.MID_TO_REST,
            "seed": 1,
            "protocol": TrainingProtocol(max_epochs=4),
        }
        return RunKey(**{**fields, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_settings(emoji: DatasetChoice, tmp_path: Path) -> Callable[..., JobSettings]:
    def make(**changes: object) -> JobSettings:
        fields: dict[str, object] = {
            "runs": str(tmp_path / "runs"),
            "sources": {emoji.content_hash: emoji.source},
            "device": "cpu",
            "checkpoint_seconds": 0.0,
        }
        return JobSettings(**{**fields, **changes})  # type: ignore[arg-type]

    return make


class Zygote:
    """Real worker processes that start at once; see job_zygote.py."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "job_zygote.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, key: RunKey, settings: JobSettings) -> int:
        """Start a worker on one run and return its process number."""
        assert self.process.stdin is not None
        self.process.stdin.write(encode_work([key], settings))
        self.process.stdin.flush()
        return self._read()

    def wait(self) -> int:
        """Wait for the worker's end and return its exit status."""
        return self._read()

    def kill_after(self, seconds: float, pid: int) -> int:
        """Kill a worker with SIGKILL after a while; return its exit status."""
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.kill(pid, signal.SIGKILL)
        return self.wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()

    def _read(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()
