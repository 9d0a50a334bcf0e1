"""What a launcher is, and how one is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from equiscale.core.errors import EquiscaleError
from equiscale.core.registry import Registry
from equiscale.runs.key import RunKey
from equiscale.sweeps.job import JobSettings, Watcher, run_job

POLL_SECONDS = 0.2
MAX_DEATHS = 3
"""A run during which this many workers died is given up as failed."""

Tick = Callable[[], None]


class LaunchError(EquiscaleError):
    """Workers cannot be started, or end without doing anything."""


class Launcher(Protocol):
    """Computes runs somewhere. All it needs to know is in the keys and the settings.

    A launcher is a dataclass, and its fields are its options. A file with one::

        @register_launcher("mine")
        @dataclass
        class MyLauncher:
            threads: int = 1
            ...
    """

    @property
    def slots(self) -> int:
        """How many runs are computed at the same time, for estimates."""

    def run(self, keys: Sequence[RunKey], settings: JobSettings, tick: Tick) -> None:
        """Compute runs that are missing in the store, and return when there is no more to start.

        Args:
            keys: The runs; other sweeps may take some of them meanwhile.
            settings: Passed to the jobs.
            tick: To be called a few times per second while runs are computed.
        """


LAUNCHERS: Registry[type[Launcher]] = Registry("launcher", "equiscale.sweeps.launch_")
register_launcher = LAUNCHERS.register


@dataclass(frozen=True)
class InProcessLauncher:
    """Runs one after the other in this process, for models that no other process can build."""

    slots: int = field(default=1, init=False)

    def run(self, keys: Sequence[RunKey], settings: JobSettings, tick: Tick) -> None:
        """Compute runs here; `tick` is called after each epoch."""
        watcher = Watcher(on_epoch=lambda progress: tick())
        for key in keys:
            run_job(key, settings.store, settings, watcher)
