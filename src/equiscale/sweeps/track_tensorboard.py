"""Curves in TensorBoard: `tensorboard --logdir RUNS/tracking/tensorboard`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from equiscale.runs.key import RunKey
from equiscale.runs.record import RunRecord
from equiscale.sweeps.tracking import register_tracker
from equiscale.training.loop import Progress


@register_tracker("tensorboard", requires=("tensorboard", "track"))
class TensorBoardTracker:
    """One directory of events per run, named for people; a resumed run continues its curves."""

    def __init__(self, key: RunKey, root: Path) -> None:
        self._directory = root / re.sub(r"[^\w.=-]+", "_", f"{key}_{key.run_id}")
        self._writer: Any = None

    def log_epoch(self, progress: Progress) -> None:
        """Show the epoch that has just ended."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # Epochs after the checkpoint that a killed process had shown are hidden.
            self._writer = SummaryWriter(str(self._directory), purge_step=progress.epoch)
        history = progress.history
        self._writer.add_scalar("loss/train", history.train_loss[-1], progress.epoch)
        self._writer.add_scalar("accuracy/valid", history.valid_accuracy[-1], progress.epoch)

    def log_record(self, record: RunRecord) -> None:
        """Show the accuracy on the test sizes, and at each object size as a curve."""
        if self._writer is None:  # resumed after its last epoch
            return
        self._writer.add_scalar("accuracy/test", record.test_accuracy, record.history.best_epoch)
        for size, accuracy in record.predictions.accuracy_per_size().items():
            self._writer.add_scalar("accuracy/test per object size", accuracy, size)

    def close(self) -> None:
        """Write what is still in memory."""
        if self._writer is not None:
            self._writer.close()
