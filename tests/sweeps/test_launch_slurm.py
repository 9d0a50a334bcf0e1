"""A real slurmctld with two real slurmd on this host, started and stopped by the test."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sweeps.conftest import make_key, start_sweep, wait_for

from equiscale.core.errors import OptionError
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps import launch_slurm
from equiscale.sweeps.grid import DatasetChoice
from equiscale.sweeps.job import JobSettings

pytestmark = pytest.mark.cluster

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,defer
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SwitchType=switch/none
ReturnToService=2
KillWait=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@given(st.lists(st.floats(1, 100), max_size=40), st.floats(100, 300))
def test_packs_hold_every_run_once_and_fit(seconds: list[float], capacity: float) -> None:
    packs = launch_slurm.pack_runs(seconds, capacity)
    assert sorted(index for pack in packs for index in pack) == list(range(len(seconds)))
    sums = [sum(seconds[index] for index in pack) for pack in packs]
    assert all(total <= capacity + 1e-6 for total in sums)
    assert len(packs) <= 1 + 2 * sum(seconds) / capacity


def test_a_run_longer_than_a_task_gets_its_own() -> None:
    assert launch_slurm.pack_runs([500, 1, 1], capacity=10) == [[0], [1, 2]]


def put(tool: str, script: str, directory: Path) -> None:
    """Write a command that stands for one of Slurm's."""
    (directory / tool).write_text(f"#!/bin/sh\n{script}\n")
    (directory / tool).chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(launch_slurm, "QUEUE_SECONDS", 0.01)
    put("sbatch", "exit 1", tmp_path)
    return tmp_path


def test_a_squeue_that_fails_for_a_while_is_asked_again(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = commands / "count"
    put(
        "squeue",
        f'echo >> {count}; case $(wc -l < {count}) in 1) echo RUNNING;; 2) echo "slurm_load_jobs '
        'error: Socket timed out" >&2; exit 1;; 3) echo PENDING;; *) ;; esac',
        commands,
    )
    launch_slurm._wait_for("7", lambda: None)
    assert len(count.read_text()) == 4
    put("squeue", "echo broken >&2; exit 1", commands)
    monkeypatch.setattr(launch_slurm, "SILENCE_SECONDS", 0.05)
    with pytest.raises(launch_slurm.SlurmError, match="squeue keeps failing: broken"):
        launch_slurm._wait_for("7", lambda: None)


def test_more_tasks_than_an_array_may_have_are_several_arrays(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("scontrol", "echo 'MaxArraySize            = 4'", commands)
    put("squeue", "exit 0", commands)
    submitted: list[int] = []

    def submit(packs: list[Any]) -> list[Any]:
        submitted.append(len(packs))
        return [Mock(job_id="7_0")]

    executor = Mock(submit_array=submit)
    monkeypatch.setattr(launch_slurm.SlurmLauncher, "_executor", lambda *_: executor)
    keys = [make_key(seed=seed) for seed in range(7)]
    launcher = launch_slurm.SlurmLauncher(minutes=10)
    launcher.run(keys, JobSettings(str(commands / "runs")), lambda: None)
    assert submitted == [3, 3, 1]
    (commands / "scontrol").unlink()
    monkeypatch.setenv("PATH", str(commands))
    assert launch_slurm.max_array_size() == 1000


@pytest.mark.needs("submitit")
def test_a_refusal_of_sbatch_is_passed_on_and_pickles_are_for_their_user_only(
    commands: Path,
) -> None:
    put("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1", commands)
    settings = JobSettings(str(commands / "runs"))
    with pytest.raises(launch_slurm.SlurmError, match=r"submit the runs: .*invalid partition"):
        launch_slurm.SlurmLauncher(partition="x").run([make_key()], settings, lambda: None)
    (folder,) = (commands / "runs").glob(f"slurm-{os.getuid()}")
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": "x"}, "minutes must be an integer of at least 1, got 'x'"),
        ({"threads": 0}, "threads must be an integer"),
        ({"gpus": -1}, "gpus must be a whole number"),
        ({"partition": 3}, "partition must be a name"),
        ({"sbatch": "account=physics"}, "sbatch must be options by name"),
        ({"minutes": 1}, "would do nothing: give more minutes, or fewer signal_seconds"),
    ],
)
def test_impossible_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        launch_slurm.SlurmLauncher(**options)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster of two nodes with one core each; yields the directory of its logs."""
    root = Path(tempfile.mkdtemp(prefix="eq"))
    host = socket.gethostname().partition(".")[0]
    import pwd

    user = pwd.getpwuid(os.getuid()).pw_name
    (root / "state").mkdir()
    (root / "munge").mkdir(mode=0o700)
    key = root / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    configuration = root / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(root=root, host=host, user=user, ports=free_ports(3))
    )
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    daemons = [start(*munge_command(root, key))]
    try:
        wait_for((root / "munge.socket").exists)
        daemons.append(start("slurmctld", "-D", "-f", str(configuration)))
        for name in ("n1", "n2"):
            (root / f"spool-{name}").mkdir()
            daemons.append(start("slurmd", "-D", "-N", name, "-f", str(configuration)))
        wait_for(lambda: output("sinfo", "--noheader", "--format", "%D %T") == "2 idle")
        yield root
    finally:
        output("scancel", "--user", user)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            daemon.wait(20)
        shutil.rmtree(root, ignore_errors=True)


def munge_command(root: Path, key: Path) -> list[str]:
    files = {"socket": "munge.socket", "pid-file": "munge/pid", "log-file": "munge/log"}
    files["seed-file"] = "munge/seed"
    options = [f"--{name}={root / path}" for name, path in files.items()]
    return ["munged", "--foreground", "--force", f"--key-file={key}", *options]


def start(*command: str) -> subprocess.Popen[bytes]:
    found = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert found is not None
    return subprocess.Popen(
        [found, *command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.slow
@pytest.mark.needs("submitit")
@pytest.mark.needs("sbatch")
@pytest.mark.needs("munged")
def test_an_array_of_packs_goes_on_after_a_time_out(
    slurm: Path, emoji: DatasetChoice, tmp_path: Path
) -> None:
    store = RunStore(tmp_path / "runs")
    options = ("--on", "slurm", "--launcher-option", "minutes=25")
    sweep = start_sweep(emoji, store.root, *options)
    wait_for(lambda: store.run_ids(RunState.RUNNING), 120)
    time.sleep(1)
    array = output("squeue", "--noheader", "--format", "%A %K").split()
    # Four runs of an unknown model, 600 s each, fill two tasks of 25 minutes.
    assert len(set(re.findall(r"\d+", output("squeue", "-h", "-r", "-o", "%K")))) == 2
    # What Slurm sends to every task before its time limit.
    assert output("scancel", "--signal=USR2", array[0]) == ""
    printed, _ = sweep.communicate(timeout=200)
    assert sweep.returncode == 0, printed
    records = list(store.load_all())
    assert len(records) == 4
    sessions = sorted(record.timings["sessions"] for record in records)
    assert sessions[0] == 1
    assert sessions[-1] == 2
    assert not list((store.root / "active").iterdir())
    assert (slurm / "slurmctld.log").exists()
