"""CPU seconds of one training epoch of every model, on one thread, from a few steps.

The table in docs/running.md comes from here. An epoch is so many steps of 16 images; CPU time is
counted, so that other programs on the machine matter little.

    python benchmarks/epochs.py [--models standard,xu] [--steps 2]
"""

from __future__ import annotations

import argparse
import time

import torch

from equiscale import Scenario, Split, create_model, list_models, load_dataset
from equiscale.results.key import TrainingProtocol
from equiscale.training.loop import LabelledImages, Trainer


def measure(model_name: str, data: LabelledImages, steps: int) -> float:
    """Return the CPU seconds of one training step."""
    model = create_model(model_name, in_channels=1, num_classes=36)
    trainer = Trainer(model, TrainingProtocol(max_epochs=1), 1e-3, seed=1)
    batch = next(data.batches(trainer.protocol.batch_size))
    trainer._step(batch.images, batch.labels)
    started = time.process_time()
    for _ in range(steps):
        trainer._step(batch.images, batch.labels)
    return (time.process_time() - started) / steps


def main() -> None:
    """Print one row per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(list_models()))
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = load_dataset("emoji")
    data = LabelledImages.load(dataset, Split.TRAIN, Scenario.MID_TO_REST, torch.device("cpu"))
    steps = len(data.labels) / 16
    print("| model | one step | one epoch of emoji, 576 images |")
    print("| --- | --- | --- |")
    for name in options.models.split(","):
        seconds = measure(name, data, options.steps)
        print(f"| {name} | {seconds:.3f} s | {seconds * steps:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
