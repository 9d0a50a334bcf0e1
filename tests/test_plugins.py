"""A package of someone else that adds one entry of each kind, built and installed by pip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from equiscale.runs.store import RunStore

SOURCE = Path(__file__).parents[1] / "src"

FILES = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "theirs"
version = "1.0"

[tool.hatch.build.targets.wheel]
packages = ["theirs"]

[project.entry-points."equiscale.models"]
theirs = "theirs.model"
[project.entry-points."equiscale.datasets"]
theirs = "theirs.dataset"
[project.entry-points."equiscale.measurements"]
theirs = "theirs.measurement"
[project.entry-points."equiscale.launchers"]
theirs = "theirs.launcher"
[project.entry-points."equiscale.trackers"]
theirs = "theirs.tracker"
""",
    "theirs/__init__.py": "",
    "theirs/model.py": """
from equiscale import register_model
from torch import nn


@register_model("tiny", title="A tiny network")
class Tiny(nn.Sequential):
    def __init__(self, in_channels: int, num_classes: int, width: int = 4) -> None:
        pool = nn.AdaptiveMaxPool2d(1)
        super().__init__(
            nn.Conv2d(in_channels, width, 5), pool, nn.Flatten(), nn.Linear(width, num_classes)
        )
""",
    "theirs/dataset.py": """
from typing import Annotated

import numpy as np
from equiscale import register_dataset
from equiscale.core.spec import Layout
from equiscale.data.catalog import CARDS
from equiscale.data.schema import StirArrays


@register_dataset(
    "bars", title="Bars", license="CC0", class_names=("flat", "tall"), layout=Layout(32, (9, 6))
)
def build_bars(layout, workers, progress, width: Annotated[int, "Width of a bar."] = 2):
    images = np.zeros((3, len(layout.sizes), 2, 4, layout.canvas, layout.canvas), np.uint8)
    for row, size in enumerate(layout.sizes):
        images[:, row, 0, :, :width, :size] = 255
        images[:, row, 1, :, :size, :width] = 255
    card, positions = CARDS["bars"], np.zeros((*images.shape[:4], 2), np.int64)
    return StirArrays.assemble(
        images, positions, card.class_names, card.metadata(), layout.sizes
    )
""",
    "theirs/measurement.py": """
from equiscale import register_measurement
from equiscale.runs.record import Measurement


@register_measurement("layers")
def count_layers(model, dataset):
    return Measurement({"count": len(list(model.modules()))})
""",
    "theirs/launcher.py": """
from dataclasses import dataclass

from equiscale import register_launcher
from equiscale.sweeps.launch import InProcessLauncher


@register_launcher("one_by_one")
@dataclass
class OneByOne:
    slots: int = 1

    def run(self, keys, settings, tick):
        InProcessLauncher().run(keys, settings, tick)
""",
    "theirs/tracker.py": """
from equiscale import register_tracker


@register_tracker("lines")
class Lines:
    def __init__(self, key, root):
        root.mkdir(parents=True, exist_ok=True)
        self.file = (root / f"{key.run_id}.txt").open("a")

    def log_epoch(self, progress):
        print("epoch", progress.epoch, file=self.file)

    def log_record(self, record):
        print("accuracy", record.test_accuracy, file=self.file)

    def close(self):
        self.file.close()
""",
}


@pytest.mark.slow
def test_one_file_of_each_kind_in_another_package(tmp_path: Path) -> None:
    project, site, runs = (tmp_path / name for name in ("project", "site", "runs"))
    for name, text in FILES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    paths = f"{SOURCE}{os.pathsep}{site}"
    environment = {**os.environ, "PYTHONPATH": paths, "EQUISCALE_DATA": str(tmp_path / "data")}

    def run(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", *map(str, arguments)]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    flags = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run("pip", "install", *flags, "--target", site, project)
    assert "A tiny network" in run("equiscale", "models")
    assert "Width of a bar." in run("equiscale", "data", "build", "bars", "--help")
    run("equiscale", "data", "build", "bars", "--width", "3", "--workers", "1")
    wanted = ("--models", "tiny", "--data", "bars", "--scenarios", "all2all", "--seeds", "1")
    where = ("--on", "one_by_one", "--track", "lines", "--runs", runs)
    run("equiscale", "sweep", *wanted, "--epochs", "2", *where)
    (record,) = RunStore(runs).load_all()
    assert record.measurements["layers"].values == {"count": 5}
    (lines,) = (runs / "tracking" / "lines").iterdir()
    assert lines.read_text().split()[:3] == ["epoch", "1", "epoch"]
