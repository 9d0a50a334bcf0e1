"""A package that adds the examples of CONTRIBUTING.md, built and installed by pip."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from tests.processes import ROOT, run_python

from equiscale.runs.store import RunStore

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

BLOCKS = re.findall(
    "```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.S
)
NAMES = ("model", "dataset", "measurement", "launcher")
FILES |= {f"theirs/{name}.py": block for name, block in zip(NAMES, BLOCKS, strict=True)}


@pytest.mark.slow
def test_one_file_of_each_kind_in_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, site, runs = (tmp_path / name for name in ("project", "site", "runs"))
    for name, text in FILES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(site))
    run = partial(run_python, "-m", cwd=tmp_path, EQUISCALE_DATA=str(tmp_path / "data"))

    flags = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run("pip", "install", *flags, "--target", site, project)
    assert "My model" in run("equiscale", "models")
    assert "--width" in run("equiscale", "data", "build", "bars", "--help")
    run("equiscale", "data", "build", "bars", "--width", "3", "--workers", "1")
    wanted = ("--models", "wide", "--data", "bars", "--scenarios", "all2all", "--seeds", "1")
    where = ("--on", "one_by_one", "--track", "lines", "--runs", runs)
    run("equiscale", "sweep", *wanted, "--epochs", "2", *where)
    (record,) = RunStore(runs).load_all()
    assert record.measurements["layers"].values == {"count": 4}
    (lines,) = (runs / "tracking" / "lines").iterdir()
    assert lines.read_text().split()[:3] == ["epoch", "1", "epoch"]
