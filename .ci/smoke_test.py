"""What an installed equiscale must be able to do, without any extra; called by .ci/smoke."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import numpy as np
import torch

import equiscale
from equiscale.data.schema import METADATA_KEYS, StirArrays, write_arrays
from equiscale.layers.scaled.native import load_library

EXTRAS = {"build", "report", "ray", "slurm", "track", "all"}


def main() -> None:
    """Check the files of the installation, then train, test and store one run."""
    package = resources.files("equiscale")
    assert "site-packages" in str(package), package
    assert (package / "py.typed").is_file()
    assert (package / "reference" / "published_accuracy.csv").is_file()
    assert (package / "report" / "assets" / "page.html").is_file()
    assert set(metadata.metadata("equiscale").get_all("Provides-Extra") or []) >= EXTRAS
    for name in equiscale.list_models():
        equiscale.create_model(name, in_channels=1, num_classes=2)
    for name in equiscale.list_weights():
        equiscale.load_model(name)
    layer = equiscale.SConv2d(1, 16, kernel_size=7, pool="pixel")
    assert layer(torch.rand(2, 1, 20, 20)).shape == (2, 16, 14, 14)
    assert load_library() is not None, "the wheel contains no compiled library"
    _train()


def _train() -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (3, 48, 2, 1, 64, 64), np.uint8)
    positions = np.zeros((3, 48, 2, 1, 2), np.int64)
    metadata_ = dict.fromkeys(METADATA_KEYS, "noise")
    write_arrays(Path("noise.npz"), StirArrays.assemble(images, positions, "ab", metadata_))
    command = "-m equiscale train --model standard --data noise.npz --epochs 1"
    subprocess.run([sys.executable, *command.split()], check=True, capture_output=True)
    assert len(list(Path("runs/done").iterdir())) == 1


if __name__ == "__main__":
    main()
