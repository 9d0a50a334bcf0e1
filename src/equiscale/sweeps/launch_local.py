"""Runs in worker processes on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from equiscale.core.cores import available_cores
from equiscale.core.options import check_positive
from equiscale.runs.errors import RunsError
from equiscale.runs.key import RunKey
from equiscale.runs.lease import read_owner, try_lease
from equiscale.runs.store import Failure, RunState, RunStore
from equiscale.sweeps.job import JobSettings
from equiscale.sweeps.launch import MAX_DEATHS, POLL_SECONDS, LaunchError, Tick, register_launcher
from equiscale.sweeps.worker import EXIT_INTERRUPTED, EXIT_STORE, encode_work

KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(8 * 2**30)}
"""Makes glibc keep the memory of freed tensors for the next ones. By default it goes back to the
system, and every batch pays for the same pages again."""

_log = logging.getLogger("equiscale")

PYTHON: str = vars(sys)["_base_executable"] if os.name == "nt" else sys.executable
"""An environment's python.exe on Windows only starts this one, which would have another pid."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    output: IO[bytes]

    def last_words(self) -> str:
        """Return the end of what the worker printed."""
        self.output.seek(0)
        return self.output.read().decode(errors="replace")[-2000:].strip()

    def stop(self) -> None:
        """Tell the worker to stop, in the one way that every platform has: close its input."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def close(self) -> None:
        """Close the worker's pipe and output."""
        self.stop()
        self.output.close()


@register_launcher("local")
@dataclass
class LocalLauncher:
    """Worker processes on this machine.

    Several workers with one thread each are faster than one with several threads.
    """

    workers: int | None = None  # None: one per core, or `per_gpu` per GPU
    threads: int | None = None  # of each; None: the cores divided by the workers
    gpus: int = 0  # over which the workers are dealt
    per_gpu: int = 1
    _deaths: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    _ended: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        given = {"workers": self.workers, "threads": self.threads, "per_gpu": self.per_gpu}
        check_positive(**{name: value for name, value in given.items() if value is not None})

    @property
    def slots(self) -> int:
        """How many workers there are."""
        return self.workers or self.gpus * self.per_gpu or available_cores()

    def run(self, keys: Sequence[RunKey], settings: JobSettings, tick: Tick) -> None:
        """Compute runs in worker processes; a worker that dies is replaced."""
        work = encode_work(keys, settings)
        count = min(self.slots, len(keys))
        with _stopping() as workers:
            workers.extend(self._start(work, index, count) for index in range(count))
            while any(worker.process.poll() is None for worker in workers):
                time.sleep(POLL_SECONDS)
                tick()
                for index, worker in enumerate(workers):
                    if worker.process.poll():
                        self._bury(worker, keys, settings.store)
                        workers[index] = self._start(work, index, count)
            for words in filter(None, (worker.last_words() for worker in workers)):
                _log.warning("%s", words)  # such as: the run was restarted

    def _start(self, work: bytes, index: int, count: int) -> _Worker:
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        process = subprocess.Popen(
            [PYTHON, "-m", "equiscale.sweeps.worker"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self._environment(index, count),
            # Ctrl-C reaches only us: we stop the workers in order.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # its death is noticed later
            process.stdin.write(work)
            process.stdin.flush()
        return _Worker(process, output)

    def _environment(self, index: int, count: int) -> dict[str, str]:
        threads = str(self.threads or max(1, available_cores() // count))
        chosen = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if self.gpus:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            devices = visible.split(",") if visible else [str(i) for i in range(self.gpus)]
            chosen["CUDA_VISIBLE_DEVICES"] = devices[index % self.gpus]
        allocator = KEEP_FREED_MEMORY if sys.platform == "linux" else {}
        return {**allocator, **os.environ, **chosen, "PYTHONPATH": _import_path()}

    def _bury(self, worker: _Worker, keys: Sequence[RunKey], store: RunStore) -> None:
        """Find out why a worker died, and which run it was busy with."""
        code, words = worker.process.returncode, worker.last_words()
        worker.close()
        if code == EXIT_STORE:
            unknown = f"a worker cannot write to {str(store.root)!r}: is there space left?"
            raise RunsError((words or unknown).splitlines()[-1])
        if code == EXIT_INTERRUPTED:
            return
        busy = [key for key in keys if _is_owned_by(worker.process.pid, key, store)]
        for key in busy:
            self._deaths[key.run_id] += 1
            if self._deaths[key.run_id] >= MAX_DEATHS:
                _give_up(key, store, code, words)
        if not busy:
            self._count_idle_death(keys, store)
            if self._deaths[""] >= MAX_DEATHS:
                raise LaunchError(f"worker processes end at once with exit code {code}: {words}")

    def _count_idle_death(self, keys: Sequence[RunKey], store: RunStore) -> None:
        """Count deaths outside a run since a run last ended."""
        states = store.states(key.run_id for key in keys).values()
        ended = sum(state in (RunState.DONE, RunState.FAILED) for state in states)
        if ended > self._ended:
            self._deaths[""] = 0
        self._ended = ended
        self._deaths[""] += 1


def _import_path() -> str:
    """Return the path that lets a worker import what this process can."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    entries = [entry for entry in given if entry] + [str(Path(p).resolve()) for p in sys.path]
    return os.pathsep.join(dict.fromkeys(entries))


def _is_owned_by(pid: int, key: RunKey, store: RunStore) -> bool:
    owner = read_owner(store.working_directory(key.run_id))
    return owner is not None and owner.pid == pid and owner.is_dead


def _give_up(key: RunKey, store: RunStore, code: int, words: str) -> None:
    lease = try_lease(store.working_directory(key.run_id), store.lease_seconds)
    if lease is not None:
        reason = f"{MAX_DEATHS} worker processes died during this run (exit code {code})"
        store.fail(Failure(key, "died", reason, words), lease)


@contextlib.contextmanager
def _stopping() -> Iterator[list[_Worker]]:
    """Yield a list for workers; those that still run at the end are told to stop, then killed."""
    workers: list[_Worker] = []
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()
        for worker in workers:
            _wait_or_kill(worker.process)
            worker.close()


def _wait_or_kill(process: subprocess.Popen[bytes], seconds: float = 10.0) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
