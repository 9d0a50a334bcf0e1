"""Leases: at most one living worker owns a run, and a dead one's run is taken over.

A lease is a file `lease-N`. Whoever creates the next number owns the run: creation is exclusive,
also on shared file systems, so no two can take over the same dead lease, and an owner that was
only asleep sees the higher number and stops. The owner shows that it lives by touching its file.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from equiscale.core.errors import EquiscaleError
from equiscale.core.files import read_json

LEASE_SECONDS = 180.0
"""How long a worker on another machine may be silent before its run is taken over."""

PROGRESS_FILE = "progress.json"
_BEATS_PER_LEASE = 12
_MAX_BEAT_SECONDS = 5.0
_LEASE = re.compile(r"lease-(\d+)")


class LeaseLostError(EquiscaleError):
    """Another worker took the run over, because this one was silent for too long."""


@dataclass(frozen=True)
class Owner:
    """Who holds a lease: a process of a machine, told apart from later ones of the same number."""

    machine: str
    host: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> Owner:
        """Return this process."""
        pid = os.getpid()
        return cls(_machine(), socket.gethostname(), pid, _process_start(pid) or "")

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_here(self) -> bool:
        """Whether the process is, or was, on this machine."""
        return self.machine == _machine()

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to be gone; other machines' processes never are."""
        return self.is_here and _process_start(self.pid) != self.started


class Lease:
    """A run that this process owns, as long as it keeps beating; earlier numbers are dead."""

    def __init__(self, directory: Path, number: int, lease_seconds: float) -> None:
        self.directory = directory
        self.number = number
        self._path = directory / f"lease-{number}"
        self._interval = min(_MAX_BEAT_SECONDS, lease_seconds / _BEATS_PER_LEASE)
        self._progress: dict[str, Any] = {}
        self._stop = threading.Event()

    def check(self) -> None:
        """Raise `LeaseLostError` if this process no longer owns the run."""
        if not self._path.exists() or latest_lease(self.directory) != self.number:
            raise LeaseLostError(
                f"the run in {str(self.directory)!r} was taken over by another worker, because "
                "this one gave no sign of life for too long"
            )

    def report(self, **progress: object) -> None:
        """Note how far the run is; the next beat makes it visible to others."""
        self._progress = progress

    @contextlib.contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Beat in the background while the block runs."""
        thread = threading.Thread(target=self._beat_until_stopped, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def release(self) -> None:
        """Let anyone take the run over at once; its checkpoint stays."""
        with contextlib.suppress(OSError):
            os.utime(self._path, (0, 0))

    def _beat_until_stopped(self) -> None:
        while not self._stop.wait(self._interval):
            # A beat that fails (full disk, network) is made up by a later one, or the lease ends.
            with contextlib.suppress(OSError):
                os.utime(self._path)
                if self._progress:
                    _replace(self.directory / PROGRESS_FILE, json.dumps(self._progress))


def try_lease(directory: Path, lease_seconds: float = LEASE_SECONDS) -> Lease | None:
    """Take the run of this working directory, or return None if someone alive has it."""
    directory.mkdir(parents=True, exist_ok=True)
    number = latest_lease(directory)
    if number is not None and is_alive(directory, lease_seconds):
        return None
    following = 1 if number is None else number + 1
    try:
        _create(directory / f"lease-{following}", json.dumps(vars(Owner.current())))
    except FileExistsError:
        return None
    return Lease(directory, following, lease_seconds)


def latest_lease(directory: Path) -> int | None:
    """Return the highest number of a lease in a working directory."""
    try:
        paths = list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return None
    numbers = [int(match[1]) for path in paths if (match := _LEASE.fullmatch(path.name))]
    return max(numbers, default=None)


def is_alive(directory: Path, lease_seconds: float = LEASE_SECONDS) -> bool:
    """Whether the run of this working directory has a living owner."""
    number = latest_lease(directory)
    if number is None:
        return False
    path = directory / f"lease-{number}"
    try:
        if path.stat().st_mtime == 0:  # released
            return False
        owner = _read_owner(path)
        # Here the process itself can be asked; a laptop that slept has not lost its leases.
        return not owner.is_dead if owner and owner.is_here else _age(path) < lease_seconds
    except FileNotFoundError:
        return False


def read_owner(directory: Path) -> Owner | None:
    """Return who has, or last had, the run of this working directory."""
    number = latest_lease(directory)
    return None if number is None else _read_owner(directory / f"lease-{number}")


def read_progress(directory: Path) -> dict[str, Any]:
    """Return how far a running run was at its last beat."""
    try:
        progress = read_json(directory / PROGRESS_FILE)
    except (OSError, ValueError):
        return {}
    return progress if isinstance(progress, dict) else {}


def _read_owner(path: Path) -> Owner | None:
    """Return the owner, or None if the file is not (yet) complete: then only its age counts."""
    try:
        return Owner(**read_json(path))
    except (OSError, ValueError, TypeError):
        return None


def _create(path: Path, text: str) -> None:
    """Create a file with its text in one step; `FileExistsError` if it is there already."""
    with tempfile.NamedTemporaryFile("wb", prefix=".lease-", dir=path.parent) as file:
        file.write(text.encode())
        file.flush()
        try:
            os.link(file.name, path)
        except FileExistsError:
            raise
        except OSError:  # no hard links here: created empty, then filled
            _create_in_two_steps(path, text)


def _create_in_two_steps(path: Path, text: str) -> None:
    try:
        with path.open("xb") as file:
            file.write(text.encode())
    except FileExistsError:
        raise
    except BaseException:
        path.unlink(missing_ok=True)  # or it would count as alive until its time is over
        raise


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(text.encode())
    temporary.replace(path)


def _age(path: Path) -> float:
    """Return the seconds since a file was touched, by the clock of the file system it is on."""
    touched = path.stat().st_mtime
    try:
        with tempfile.NamedTemporaryFile(prefix=".clock-", dir=path.parent) as probe:
            return os.fstat(probe.fileno()).st_mtime - touched
    except OSError:  # read-only for us, or full
        return time.time() - touched


@cache
def _machine() -> str:
    """Return what tells two machines, boots or containers with the same host name apart."""
    boot = _read_text(Path("/proc/sys/kernel/random/boot_id")) or ""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return f"{socket.gethostname()} {platform.system()} {boot.strip()} {namespace}"


def _process_start(pid: int) -> str | None:
    """Return when a process started, or None if it is gone."""
    if _read_text(Path("/proc/self/stat")) is None:
        return _process_start_elsewhere(pid)
    stat = _read_text(Path(f"/proc/{pid}/stat")) or ") X"
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _process_start_elsewhere(pid: int) -> str | None:
    """Ask psutil, which is installed where there is no /proc: macOS and Windows."""
    import psutil

    try:
        process = psutil.Process(pid)
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return None if is_zombie else str(process.create_time())
    except (psutil.NoSuchProcess, TypeError, ValueError, OverflowError):  # none, or no number
        return None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):  # no such path, or none that there could be
        return None
