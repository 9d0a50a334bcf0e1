"""Live curves in other tools; one file per tool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from equiscale.core.registry import Registry
from equiscale.runs.key import RunKey
from equiscale.runs.record import RunRecord
from equiscale.training.loop import Progress


class Tracker(Protocol):
    """Shows one run; its files go under `root`."""

    def __init__(self, key: RunKey, root: Path) -> None: ...

    def log_epoch(self, progress: Progress) -> None:
        """Show the epoch that has just ended."""

    def log_record(self, record: RunRecord) -> None:
        """Show the final figures."""

    def close(self) -> None:
        """Called once, whether the run finished or not."""


TRACKERS: Registry[type[Tracker]] = Registry("tracker", "equiscale.sweeps.track_")
register_tracker = TRACKERS.register


def check_trackers(names: Sequence[str]) -> None:
    """Raise unless every tracker exists and its library is installed."""
    for name in names:
        TRACKERS[name]


def create_trackers(names: Sequence[str], key: RunKey, root: Path) -> list[Tracker]:
    """Return a tracker of each name for a run; their files go to `root/tracking`."""
    return [TRACKERS[name](key, root / "tracking" / name) for name in names]
