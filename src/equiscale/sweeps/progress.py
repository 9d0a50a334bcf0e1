"""How far the runs are that are being computed, as their workers have reported it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from equiscale.runs.key import RunKey
from equiscale.runs.store import RunState, RunStore

if TYPE_CHECKING:
    from equiscale.sweeps.request import SweepStatus


@dataclass(frozen=True)
class RunningRun:
    """A run that is being computed, as it was at its last sign of life.

    `epochs_left` counts the epochs until it stops if the validation accuracy does not improve
    again; None before the first sign of life, and where the runs directory is not shared.
    """

    key: RunKey
    epoch: int = 0
    epochs_left: int | None = None
    valid_accuracy: float | None = None
    epoch_seconds: float = 0.0

    @classmethod
    def load(cls, key: RunKey, store: RunStore) -> RunningRun:
        """Return a run as its worker has reported it."""
        progress: dict[str, Any] = store.progress(key.run_id)
        kinds = {"epoch": int, "epochs_left": int, "valid_accuracy": float, "epoch_seconds": float}
        known = {name: progress.get(name) for name in kinds}
        usable: dict[str, Any] = {n: v for n, v in known.items() if type(v) is kinds[n]}
        return cls(key, **usable)

    @property
    def max_epochs(self) -> int:
        """Epochs after which it stops in any case."""
        return self.key.protocol.max_epochs

    @property
    def last_epoch(self) -> int:
        """The epoch after which it stops unless the validation accuracy improves again."""
        if self.epochs_left is None:
            return self.max_epochs
        return max(1, self.epoch + self.epochs_left)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until then, without the test; None if nothing is known."""
        return None if self.epochs_left is None else self.epochs_left * self.epoch_seconds

    def __str__(self) -> str:
        text = f"{self.key}: epoch {self.epoch}/{self.max_epochs}"
        known = self.valid_accuracy is not None
        return f"{text}, validation {self.valid_accuracy:.1%}" if known else text


def load_running(status: SweepStatus, store: RunStore) -> list[RunningRun]:
    """Return the runs of a sweep that are being computed, here or elsewhere."""
    return [RunningRun.load(key, store) for key in status.keys(RunState.RUNNING)]
