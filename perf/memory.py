"""Peak memory of building, loading and training on 1,000 photos at 224 px in 8 object sizes.

Each step runs in a process of its own. The photos are generated. Mapped pages of the dataset file
count as resident (1.2 GB if all of it was read), although the system can drop them at any time.

    python perf/memory.py --directory DIR
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from equiscale import Scenario, Split, load_dataset
from equiscale.build.folder import FolderOptions, build_folder
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Layout
from equiscale.data.schema import write_arrays
from equiscale.sweeps.measurements import measure_predictions
from equiscale.training.loop import LabelledImages, Trainer

CLASSES, PHOTOS = 10, 100
LAYOUT = Layout.of(224, (28, 40, 56, 80, 112, 136, 160, 224))


def generate(directory: Path) -> None:
    """Write a folder of photos of noise for each class."""
    generator = np.random.default_rng(0)
    for label in range(CLASSES):
        folder = directory / "photos" / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(PHOTOS):
            noise = Image.fromarray(generator.integers(0, 256, (24, 32, 3), np.uint8))
            noise.resize((240, 240), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")


def build(directory: Path) -> None:
    """Build the dataset and write its file."""
    options = FolderOptions(name="photos", layout=LAYOUT)
    write_arrays(directory / "photos.npz", build_folder(directory / "photos", options))


def load(directory: Path) -> None:
    """Load the file and compute its hash."""
    assert load_dataset(directory / "photos.npz").content_hash


def train(directory: Path) -> None:
    """Train a tiny network for an epoch at all sizes, and test it."""
    dataset = load_dataset(directory / "photos.npz")
    layers = (nn.Conv2d(3, 8, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    model = nn.Sequential(*layers, nn.Linear(128, CLASSES))
    device = torch.device("cpu")
    parts = [
        LabelledImages.load(dataset, split, Scenario.ALL_TO_ALL, device)
        for split in (Split.TRAIN, Split.VALID)
    ]
    Trainer(model, TrainingProtocol(max_epochs=1), 1e-3, seed=1).train(*parts)
    measure_predictions(model, dataset)


STEPS = {"generate": generate, "build": build, "load": load, "train": train}


def show_memory(step: str) -> None:
    """Print one row of the table."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"| {step} | {peak} MB |")


def main() -> None:
    """Run every step, or the one named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="where photos and dataset go, 1.5 GB")
    parser.add_argument("--step", choices=STEPS)
    arguments = parser.parse_args()
    if arguments.step:
        STEPS[arguments.step](arguments.directory)
        show_memory(arguments.step)
        return
    print("| step | peak resident |\n| --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for step in STEPS:
            command = [sys.executable, __file__, "--directory", directory, "--step", step]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
