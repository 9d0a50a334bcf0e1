"""Runs as a Slurm array, many short ones packed into each task."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from equiscale.core.errors import EquiscaleError, OptionError
from equiscale.core.options import check_positive
from equiscale.runs.key import RunKey
from equiscale.sweeps.estimate import MeasuredRuns, estimate_run
from equiscale.sweeps.job import JobSettings
from equiscale.sweeps.launch import Tick, register_launcher
from equiscale.sweeps.launch_local import LocalLauncher
from equiscale.sweeps.worker import work
from equiscale.training.loop import InterruptedRunError

UNKNOWN_SECONDS = 600.0
"""Estimate for a run of a model that has never been timed."""

USED_SHARE = 0.8
"""Share of a task's time limit that is filled by estimates."""

QUEUE_SECONDS = 2.0
SILENCE_SECONDS = 600.0
"""How long squeue may fail before the sweep gives up waiting."""

DEFAULT_ARRAY_SIZE = 1001
"""Slurm's own limit on the tasks of an array, where it does not tell another."""

_MAX_TIMEOUTS = 1000


class SlurmError(EquiscaleError):
    """Slurm's commands are missing or refuse."""


def pack_runs(seconds: Sequence[float], capacity: float) -> list[list[int]]:
    """Return groups of indices whose sums stay within the capacity, as few as is simple.

    First fit, longest first; one that is longer than the capacity gets its own group.

    Examples:
        >>> pack_runs([30, 20, 70, 10], capacity=80)
        [[2, 3], [0, 1]]
    """
    groups: list[list[int]] = []
    free: list[float] = []
    for index in sorted(range(len(seconds)), key=lambda i: -seconds[i]):
        place = next((g for g, space in enumerate(free) if seconds[index] <= space), None)
        if place is None:
            place = len(groups)
            groups.append([])
            free.append(capacity)
        groups[place].append(index)
        free[place] -= seconds[index]
    return groups


@dataclass
class Pack:
    """What one task of the array does; Slurm may interrupt it and start it again."""

    keys: list[RunKey]
    settings: JobSettings
    at_once: int = 1
    is_stopping: bool = field(default=False, init=False)

    def __call__(self) -> None:
        """Compute the runs, `at_once` of them at a time."""
        if self.at_once > 1:
            gpus = 0 if self.settings.device == "cpu" else 1
            launcher = LocalLauncher(self.at_once, self.settings.threads, gpus)
            launcher.run(self.keys, self.settings, lambda: None)
            return
        try:
            work(self.keys, self.settings, lambda: self.is_stopping)
        except InterruptedRunError:
            sys.exit(1)

    def checkpoint(self) -> Any:  # noqa: ANN401 - submitit is not typed here
        """Return what to queue again; submitit calls this before a time-out or preemption."""
        import submitit

        self.is_stopping = True
        again = Pack(self.keys, self.settings, self.at_once)
        return submitit.helpers.DelayedSubmission(again)


@register_launcher("slurm", requires=("submitit", "slurm"))
@dataclass
class SlurmLauncher:
    """Array jobs; their tasks share the runs directory, which all nodes must see.

    A task that reaches its time limit is queued again and resumes from the last checkpoint. If this
    process is stopped, the array goes on without it. More tasks than an array may have are
    submitted as several arrays, one after the other.

    submitit keeps pickles and logs in `slurm-UID/` of the runs directory, readable and writable for
    that user only: whoever can write there can run code as that user.
    """

    threads: int = 1  # CPUs of each run
    per_gpu: int = 1  # runs at once in each task, on the GPU it asks for
    minutes: int = 60  # time limit of a task; shorter tasks mean more of them
    tasks: int = 64  # that may run at the same time
    gpus: int = 0  # of each task
    partition: str | None = None
    signal_seconds: int = 90  # how long before its limit a task stops and is queued again
    sbatch: dict[str, Any] = field(default_factory=dict)  # others, such as {"account": "physics"}

    def __post_init__(self) -> None:
        if shutil.which("sbatch") is None:
            raise SlurmError("there is no sbatch here: start the sweep on a login node of Slurm")
        names = ("threads", "per_gpu", "minutes", "tasks", "signal_seconds")
        check_positive(**{name: getattr(self, name) for name in names})
        possible_gpus = type(self.gpus) is int and self.gpus >= 0
        for name, is_possible, expected in (
            ("gpus", possible_gpus, "a whole number of at least 0"),
            ("partition", isinstance(self.partition, str | None), "a name"),
            ("sbatch", isinstance(self.sbatch, Mapping), 'options by name: {"account": "physics"}'),
        ):
            if not is_possible:
                raise OptionError(f"{name} must be {expected}, got {getattr(self, name)!r}")
        if self.minutes * 60 <= self.signal_seconds:
            raise OptionError(
                f"tasks of {self.minutes} minutes that stop {self.signal_seconds} s before their "
                "end would do nothing: give more minutes, or fewer signal_seconds"
            )

    @property
    def slots(self) -> int:
        """How many runs may be computed at once."""
        return self.tasks * self.per_gpu

    def run(self, keys: Sequence[RunKey], settings: JobSettings, tick: Tick) -> None:
        """Submit the runs and wait until they have left the queue."""
        settings = replace(settings, threads=self.threads)
        packs = [
            Pack([keys[index] for index in sorted(group)], settings, self.per_gpu)
            for group in self._pack(keys, settings)
        ]
        size = max_array_size()
        for first in range(0, len(packs), size):
            _wait_for(self._submit(packs[first : first + size], settings), tick)

    def _submit(self, packs: Sequence[Pack], settings: JobSettings) -> str:
        """Submit an array, and return its number."""
        try:
            jobs = self._executor(settings).submit_array(packs)
        except (OSError, RuntimeError) as error:  # submitit's own are of the second kind
            raise SlurmError(f"cannot submit the runs: {error}") from error
        return str(jobs[0].job_id).partition("_")[0]

    def _pack(self, keys: Sequence[RunKey], settings: JobSettings) -> list[list[int]]:
        timings = MeasuredRuns(settings.store).timings()
        seconds = [estimate_run(key, timings) or UNKNOWN_SECONDS for key in keys]
        return pack_runs(seconds, self.minutes * 60 * USED_SHARE * self.per_gpu)

    def _executor(self, settings: JobSettings) -> Any:  # noqa: ANN401 - submitit is not typed here
        import submitit

        folder = settings.store.root / f"slurm-{os.getuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        executor = submitit.SlurmExecutor(folder=folder / "%A", max_num_timeout=_MAX_TIMEOUTS)
        executor.update_parameters(
            job_name="equiscale",
            time=self.minutes,
            cpus_per_task=self.threads * self.per_gpu,
            array_parallelism=self.tasks,
            signal_delay_s=self.signal_seconds,
            **({"partition": self.partition} if self.partition else {}),
            **({"gpus_per_node": self.gpus} if self.gpus else {}),
            additional_parameters=dict(self.sbatch),
        )
        return executor


def max_array_size() -> int:
    """Return how many tasks an array may have."""
    done = _call("scontrol", "show", "config")
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", done.stdout, re.MULTILINE)
    return max(1, (int(found[1]) if found else DEFAULT_ARRAY_SIZE) - 1)


def _wait_for(array: str, tick: Tick) -> None:
    """Wait until an array has left the queue; squeue may fail for a while."""
    answered = time.monotonic()
    while True:
        queued, problem = _is_queued(array)
        if problem is None:
            answered = time.monotonic()
        elif time.monotonic() - answered > SILENCE_SECONDS:
            raise SlurmError(f"squeue keeps failing: {problem}")
        if not queued:
            return
        tick()
        time.sleep(QUEUE_SECONDS)


def _is_queued(array: str) -> tuple[bool, str | None]:
    """Return whether a task of an array is pending or running, and why that is not known."""
    done = _call("squeue", "--noheader", "--jobs", array, "--format", "%T")
    if done.returncode == 0:
        return bool(done.stdout.strip()), None
    forgotten = "Invalid job id" in done.stderr  # it ended some time ago
    return not forgotten, None if forgotten else done.stderr.strip()


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:  # the command is missing, or the file system of commands is away
        return subprocess.CompletedProcess(command, 127, "", str(error))
