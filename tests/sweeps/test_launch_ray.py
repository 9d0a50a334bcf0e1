"""A real Ray head and a second real node on this host."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import run_python
from tests.sweeps.conftest import start_sweep, wait_for

from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps.grid import DatasetChoice
from equiscale.sweeps.launch import LaunchError

pytestmark = [
    pytest.mark.needs("ray"),
    pytest.mark.cluster,
    pytest.mark.skipif(
        " " in sys.prefix, reason="nodes of `ray start` run nothing from a path with spaces"
    ),
]

RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]


class Session:
    """A process and whatever it starts, told apart by their session."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def members(self) -> list[int]:
        numbers = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
        return [pid for pid in numbers if self.has(pid)]

    def has(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == self.process.pid
        except ProcessLookupError:
            return False

    def kill(self) -> None:
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def test_nobody_at_the_address() -> None:
    from equiscale.sweeps.launch_ray import RayLauncher

    with pytest.raises(LaunchError, match=r"Ray cluster at 127\.0\.0\.1:1: .*is it running"):
        _ = RayLauncher(address="127.0.0.1:1").slots


@pytest.fixture
def address(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    return f"127.0.0.1:{port}"


@pytest.fixture
def head(address: str, short_directory: Path) -> Iterator[Session]:
    session = Session(
        [
            *RAY,
            "--head",
            "--node-ip-address=127.0.0.1",
            f"--port={address.rpartition(':')[2]}",
            "--include-dashboard=false",
            f"--temp-dir={short_directory}",
        ]
    )
    yield session
    session.kill()


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Ray puts sockets there, whose paths must be short."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="eq", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.slow
@pytest.mark.usefixtures("head")
def test_a_node_killed_in_mid_sweep_costs_only_its_unfinished_part(
    address: str, emoji: DatasetChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    wait_for(lambda: is_listening(address))
    second = Session([*RAY, f"--address={address}", "--node-ip-address=127.0.0.1"])
    try:
        store = RunStore(tmp_path / "runs")
        sweep = start_sweep(emoji, store.root, "--on", "ray")
        wait_for(lambda: runs_on(second, store), 150)
        second.kill()
        output, _ = sweep.communicate(timeout=150)
        assert sweep.returncode == 0, output
    finally:
        second.kill()
    records = list(store.load_all())
    assert len(records) == 4
    assert sorted(record.timings["sessions"] for record in records)[:3] == [1, 1, 1]
    assert not list((store.root / "active").iterdir())

    # The same head, but as if it did not see the runs directory: records are sent back.
    driver = Path(__file__).with_name("ray_driver.py")
    apart = RunStore(tmp_path / "apart")
    run_python(driver, emoji.source, apart.root)
    assert len(list(apart.load_all())) == 1
    (failed,) = apart.run_ids(RunState.FAILED)
    assert apart.failure(failed).reason == "RuntimeError: no such luck"


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def runs_on(session: Session, store: RunStore) -> bool:
    owners = [store.owner(run_id) for run_id in store.run_ids(RunState.RUNNING)]
    return any(session.has(owner.pid) for owner in owners if owner)
