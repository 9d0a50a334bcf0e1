"""What the training loop costs besides forward, backward and optimiser step.

Trains `standard` on emoji with everything a real run has (lease, checkpoints, progress) and counts
the time inside the network and the optimiser; the rest of the epoch is overhead. It must stay
below 5 %. CPU time, so that other programs on the machine do not count.

    python perf/loop.py [--epochs 3]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from equiscale import Scenario, Split, create_model, load_dataset
from equiscale.core.protocol import TrainingProtocol
from equiscale.runs.lease import try_lease
from equiscale.training.checkpoint import Checkpointer
from equiscale.training.loop import LabelledImages, Progress, Trainer, seed_weights

LIMIT = 0.05


class Stopwatch:
    """Adds up the CPU time of the calls it is wrapped around."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any call
            started = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - started

        return timed


def main() -> None:
    """Print the share of an epoch that is not the network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    torch.set_num_threads(1)
    dataset = load_dataset("emoji")
    parts = [
        LabelledImages.load(dataset, split, Scenario.MID_TO_REST, torch.device("cpu"))
        for split in (Split.TRAIN, Split.VALID)
    ]
    seed_weights(1)
    model = create_model("standard", in_channels=1, num_classes=36)
    trainer = Trainer(model, TrainingProtocol(max_epochs=epochs), 1e-3, seed=1)
    network = Stopwatch()
    model.forward = network.around(model.forward)
    torch.Tensor.backward = network.around(torch.Tensor.backward)  # type: ignore[method-assign]
    trainer.optimizer.step = network.around(trainer.optimizer.step)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as directory:
        lease = try_lease(Path(directory))
        assert lease is not None
        checkpointer = Checkpointer(Path(directory) / "checkpoint")

        def on_epoch(progress: Progress) -> None:
            lease.check()
            lease.report(epoch=progress.epoch)
            checkpointer.save_if_due(trainer)

        with lease.kept_alive():
            started = time.process_time()
            trainer.train(*parts, on_epoch)
            total = time.process_time() - started
    overhead = 1 - network.seconds / total
    print(f"{epochs} epochs: {total / epochs:.3f} s each, {overhead:.2%} of it overhead")
    if overhead > LIMIT:
        raise SystemExit(f"more than {LIMIT:.0%}")


if __name__ == "__main__":
    main()
