"""The store: one directory per run key, in which nothing is ever half-written.

done/RUN_ID/         the record of a finished run; appears complete by one rename
active/RUN_ID/       a run in progress: its key, leases, checkpoint
failed/RUN_ID.json   why a run failed
quarantine/RUN_ID.N/ a record whose checksum failed
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from equiscale.core.errors import EquiscaleError
from equiscale.core.files import atomic_write, read_json, sync_directory, write_json
from equiscale.runs.errors import CorruptRecordError, RecordError, RunsError
from equiscale.runs.key import RunKey
from equiscale.runs.lease import (
    LEASE_SECONDS,
    Lease,
    Owner,
    is_alive,
    read_owner,
    read_progress,
    try_lease,
)
from equiscale.runs.record import RECORD_FILE, RunRecord, read_record

_RUN_ID = re.compile("[0-9a-f]{16}")
_KEY_FILE = "key.json"


class RunState(str, Enum):
    """Where a run stands."""

    DONE = "done"
    RUNNING = "running"
    FAILED = "failed"
    MISSING = "missing"


@dataclass(frozen=True)
class Failure:
    """Why a run ended without a result.

    Args:
        key: The run.
        kind: `diverged`: the loss was not finite; `error`: an exception; `died`: several
            processes were killed.
        reason: One line.
        traceback: Full traceback.
        environment: As in a record.
    """

    key: RunKey
    kind: Literal["diverged", "error", "died"]
    reason: str
    traceback: str = ""
    environment: Mapping[str, Any] | None = None


class RunStore:
    """Finished, running and failed runs under one directory.

    Any number of processes on any number of machines that share the directory may use it at
    the same time.

    Args:
        root: The runs directory; made when something is first written.
        lease_seconds: Silence after which a worker on another machine counts as dead.
    """

    def __init__(self, root: Path | str, lease_seconds: float = LEASE_SECONDS) -> None:
        self.root = Path(root)
        self.lease_seconds = lease_seconds

    def check_writable(self) -> None:
        """Raise `RunsError` now if a result could not be written later."""
        with self._explained_errors(), atomic_write(self.root / ".write-test") as file:
            file.write(b"can be written")
        (self.root / ".write-test").unlink(missing_ok=True)

    def state(self, run_id: str) -> RunState:
        """Return where a run stands."""
        if self.directory(run_id).is_dir():
            return RunState.DONE
        if self._failed(run_id).exists():
            return RunState.FAILED
        with self._explained_errors():
            alive = is_alive(self.working_directory(run_id), self.lease_seconds)
        return RunState.RUNNING if alive else RunState.MISSING

    def states(self, run_ids: Iterable[str]) -> dict[str, RunState]:
        """Return where many runs stand, at the cost of a few directory listings."""
        done, active = set(self.run_ids(RunState.DONE)), set(_names(self.root / "active"))
        failed = set(self.run_ids(RunState.FAILED)) - done
        states = dict.fromkeys(run_ids, RunState.MISSING)
        for run_id in states:
            if run_id in done:
                states[run_id] = RunState.DONE
            elif run_id in failed:
                states[run_id] = RunState.FAILED
            elif run_id in active:
                states[run_id] = self.state(run_id)
        return states

    def run_ids(self, state: RunState) -> list[str]:
        """Return the runs in a state, sorted; the missing ones are those that were interrupted."""
        ended = state in (RunState.DONE, RunState.FAILED)
        names = _names(self.root / (state.value if ended else "active"))
        if state is RunState.FAILED:
            names = [name.removesuffix(".json") for name in names]
        run_ids = [name for name in names if _RUN_ID.fullmatch(name)]
        return run_ids if ended else [name for name in run_ids if self.state(name) is state]

    def quarantined(self) -> list[str]:
        """Return the names of the records in quarantine."""
        return _names(self.root / "quarantine")

    def working_directory(self, run_id: str) -> Path:
        """Return where a run keeps its checkpoint; gone when the run has ended."""
        return self.root / "active" / run_id

    def lease(self, key: RunKey) -> Lease | None:
        """Take a run, or return None if it is done, failed, or in the hands of someone alive."""
        directory = self.working_directory(key.run_id)
        with self._explained_errors():
            if self.state(key.run_id) is not RunState.MISSING:
                return None
            lease = try_lease(directory, self.lease_seconds)
            if lease is None:
                return None
            try:
                # The state above is old by now: the run may have ended between look and lease.
                if self.directory(key.run_id).is_dir() or self._failed(key.run_id).exists():
                    _remove(directory)
                    return None
                if not (directory / _KEY_FILE).exists():
                    write_json(directory / _KEY_FILE, key.to_json())
            except BaseException:
                lease.release()
                raise
        return lease

    def publish(self, record: RunRecord, lease: Lease) -> None:
        """Make a record appear, complete or not at all; of two equal ones the first stays."""
        staging = lease.directory / f"record-{lease.number}"
        lease.check()
        with self._explained_errors():
            try:
                for name, data in record.to_files().items():
                    with atomic_write(staging / name) as file:
                        file.write(data)
                self._rename(staging, self.directory(record.key.run_id))
            except OSError:
                _remove(staging)
                # Two owners may publish at once; the first to finish removes the other's files.
                if not self.directory(record.key.run_id).is_dir():
                    raise
            _remove(lease.directory)

    def fail(self, failure: Failure, lease: Lease) -> None:
        """Note why a run failed; it is not tried again until `forget_failures`."""
        lease.check()
        content = {**vars(failure), "key": failure.key.to_json()}
        with self._explained_errors():
            write_json(self._failed(failure.key.run_id), content)
            _remove(lease.directory)

    def remove_leftovers(self) -> None:
        """Remove the working directories of ended runs, which a killed owner left behind."""
        for run_id in _names(self.root / "active"):
            directory = self.working_directory(run_id)
            ended = self.directory(run_id).is_dir() or self._failed(run_id).exists()
            if ended and not is_alive(directory, self.lease_seconds):
                _remove(directory)

    def forget_failures(self, run_ids: Iterable[str]) -> int:
        """Make failed runs missing again; return how many there were."""
        failed = [self._failed(run_id) for run_id in run_ids]
        found = [path for path in failed if path.exists()]
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)

    def load(self, run_id: str) -> RunRecord:
        """Return a finished run's record after checking it.

        Raises:
            CorruptRecordError: A checksum failed. The record is in `quarantine/` now, and the
                run counts as missing; a directory that cannot be written stays as it is.
            RecordError: The record is intact, but of a newer version or of another run.
        """
        directory = self.directory(run_id)
        with self._explained_errors():
            inode = directory.stat().st_ino
            try:
                record = read_record(directory)
            except CorruptRecordError as error:
                moved = self._quarantine(run_id, inode)
                raise CorruptRecordError(f"{error}; {moved}") from error
        if record.key.run_id != run_id:
            raise RecordError(f"{directory} holds the run {record.key.run_id}: rename it")
        return record

    def load_all(
        self, run_ids: Iterable[str] | None = None, problems: list[str] | None = None
    ) -> Iterator[RunRecord]:
        """Yield the records of finished runs, all or some, sorted by run id.

        Args:
            run_ids: Which; those without a record are left out.
            problems: Collects what is wrong with records that cannot be used; without it the
                first of them raises.
        """
        wanted = None if run_ids is None else set(run_ids)
        for run_id in self.run_ids(RunState.DONE):
            if wanted is not None and run_id not in wanted:
                continue
            try:
                yield self.load(run_id)
            except RecordError as error:
                if problems is None:
                    raise
                problems.append(str(error))
            except RunsError:
                if self.directory(run_id).is_dir():
                    raise
                # Someone else has quarantined it meanwhile, and reported it.

    def failure(self, run_id: str) -> Failure:
        """Return why a run failed.

        Raises:
            RunsError: The note is damaged, or someone has just removed it to try again.
        """
        path = self._failed(run_id)
        try:
            content = read_json(path)
            return Failure(**{**content, "key": RunKey.from_json(content["key"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunsError(
                f"cannot read why a run failed from {str(path)!r} ({error}): remove the file, and "
                "the run counts as missing"
            ) from error

    def key(self, run_id: str) -> RunKey | None:
        """Return the key of a run in any state, unchecked; None if it cannot be read."""
        sources: dict[Path, Callable[[Any], Any]] = {
            self.directory(run_id) / RECORD_FILE: lambda content: content["science"]["key"],
            self._failed(run_id): lambda content: content["key"],
            self.working_directory(run_id) / _KEY_FILE: lambda content: content,
        }
        for path, find in sources.items():
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError, EquiscaleError):
                return RunKey.from_json(find(read_json(path)))
        return None

    def progress(self, run_id: str) -> dict[str, Any]:
        """Return how far a run in progress was at its last sign of life."""
        return read_progress(self.working_directory(run_id))

    def owner(self, run_id: str) -> Owner | None:
        """Return who computes, or last computed, a run in progress."""
        return read_owner(self.working_directory(run_id))

    def directory(self, run_id: str) -> Path:
        """Return where the record of a finished run is."""
        return self.root / "done" / run_id

    def _failed(self, run_id: str) -> Path:
        return self.root / "failed" / f"{run_id}.json"

    def _quarantine(self, run_id: str, inode: int) -> str:
        """Move the record that was read, not its successor; return what became of it."""
        directory, parent = self.directory(run_id), self.root / "quarantine"
        names = (parent / f"{run_id}.{number}" for number in itertools.count(1))
        try:
            parent.mkdir(exist_ok=True)
            while directory.stat().st_ino == inode:
                target = next(path for path in names if not path.exists())
                try:
                    directory.rename(target)
                except OSError:
                    if target.exists():  # another reader was faster
                        continue
                    raise
                if target.stat().st_ino == inode:
                    return f"moved to {target}"
                target.rename(directory)  # replaced between look and rename
        except FileNotFoundError:
            pass
        except OSError as error:
            return f"it cannot be moved to {parent} ({error.strerror})"
        return "another reader has moved it"

    def _rename(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            source.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            _remove(source)
        sync_directory(target.parent)

    @contextlib.contextmanager
    def _explained_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunsError.from_os_error(self.root, error) from error


def _names(directory: Path) -> list[str]:
    """Return the sorted entries of a directory, without temporary files."""
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunsError.from_os_error(directory.parent, error) from error
    return sorted(name for name in names if not name.startswith("."))


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
