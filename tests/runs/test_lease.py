from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from equiscale.runs.lease import (
    LeaseLostError,
    Owner,
    _create_in_two_steps,
    is_alive,
    read_owner,
    read_progress,
    try_lease,
)

HOLD = """
import sys, time
from pathlib import Path
from equiscale.runs.lease import try_lease
lease = try_lease(Path(sys.argv[1]))
print("taken" if lease else "refused", flush=True)
time.sleep(60)
"""


def start_holder(directory: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    return process


def test_a_living_lease_is_respected_and_a_killed_one_taken_over(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    try:
        assert try_lease(tmp_path) is None
        owner = read_owner(tmp_path)
        assert owner is not None
        assert owner.pid == holder.pid
    finally:
        holder.kill()
    holder.wait()
    assert holder.stdout is not None
    holder.stdout.close()
    lease = try_lease(tmp_path)
    assert lease is not None
    assert lease.number == 2


def test_of_many_at_once_exactly_one_wins(tmp_path: Path) -> None:
    for round_number in range(10):
        directory = tmp_path / str(round_number)
        for number in (1, 2):  # a new run, then one whose lease was released
            with ThreadPoolExecutor(8) as pool:
                found = list(pool.map(lambda _: try_lease(directory), range(8)))  # noqa: B023
            (lease,) = [lease for lease in found if lease]
            assert lease.number == number
            lease.release()


def age(path: Path, seconds: float) -> None:
    past = time.time() - seconds
    os.utime(path, (past, past))


def elsewhere(directory: Path) -> None:
    """Make the lease look as if a process of another machine had it."""
    path = directory / "lease-1"
    touched = path.stat().st_mtime
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": "other", "pid": 1}))
    os.utime(path, (touched, touched))


def test_a_living_process_of_this_machine_keeps_its_lease_after_a_sleep(tmp_path: Path) -> None:
    assert try_lease(tmp_path, lease_seconds=60) is not None
    age(tmp_path / "lease-1", 3600)
    assert try_lease(tmp_path, lease_seconds=60) is None


def test_a_beating_lease_of_another_machine_lives_on(tmp_path: Path) -> None:
    lease = try_lease(tmp_path, lease_seconds=0.6)
    assert lease is not None
    elsewhere(tmp_path)
    lease.report(epoch=3)
    with lease.kept_alive():
        for _ in range(5):
            time.sleep(0.2)
            assert try_lease(tmp_path, lease_seconds=0.6) is None
    assert read_progress(tmp_path) == {"epoch": 3}


def test_a_silent_lease_of_another_machine_ends_and_its_owner_is_told(tmp_path: Path) -> None:
    sleeper = try_lease(tmp_path, lease_seconds=60)
    assert sleeper is not None
    elsewhere(tmp_path)
    assert is_alive(tmp_path, lease_seconds=60)
    age(tmp_path / "lease-1", 61)
    assert try_lease(tmp_path, lease_seconds=60) is not None
    with pytest.raises(LeaseLostError, match="taken over"):
        sleeper.check()


@pytest.mark.parametrize("pid", ["\0", 10**400, ["x"]])
def test_an_impossible_process_is_dead(tmp_path: Path, pid: object) -> None:
    owner = {**vars(Owner.current()), "pid": pid}
    (tmp_path / "lease-1").write_text(json.dumps(owner))
    assert not is_alive(tmp_path)


def test_without_hard_links_a_lease_that_cannot_be_written_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    text = Mock(encode=Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        _create_in_two_steps(tmp_path / "lease-1", text)
    assert not is_alive(tmp_path)
    lease = try_lease(tmp_path)
    assert lease is not None
    assert lease.number == 1


def test_an_incomplete_lease_counts_until_its_lease_ends(tmp_path: Path) -> None:
    """A power cut may leave an empty file: nobody may be shut out for ever."""
    (tmp_path / "lease-1").touch()
    assert try_lease(tmp_path, lease_seconds=60) is None
    age(tmp_path / "lease-1", 61)
    assert try_lease(tmp_path, lease_seconds=60) is not None
