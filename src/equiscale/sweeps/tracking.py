"""Live curves in the tools people already use; one file per tool."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from equiscale.core.errors import OptionError
from equiscale.core.registry import unknown_name_message
from equiscale.runs.key import RunKey
from equiscale.runs.record import RunRecord
from equiscale.training.loop import Progress

TRACKERS = ("tensorboard", "mlflow")


class Tracker(Protocol):
    """Follows one run."""

    def log_epoch(self, progress: Progress) -> None:
        """Show the epoch that has just ended."""

    def log_record(self, record: RunRecord) -> None:
        """Show the final figures."""

    def close(self) -> None:
        """Called once, whether the run finished or not."""


def check_trackers(names: Sequence[str]) -> None:
    """Raise unless every tracker exists and its library is installed."""
    for name in names:
        if name not in TRACKERS:
            raise OptionError(unknown_name_message("tracker", name, TRACKERS))
        _module(name).check_installed()


def create_trackers(names: Sequence[str], key: RunKey, root: Path) -> list[Tracker]:
    """Start following a run with each of the named tools; their files go under `root`."""
    return [_module(name).create_tracker(key, root / "tracking" / name) for name in names]


def _module(name: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    return importlib.import_module(f"equiscale.sweeps.track_{name}")
