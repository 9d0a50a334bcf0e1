"""The examples run and print what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRINTS = {
    "convert_resnet": "SConv2d(1, 8, kernel_size=(7, 7), stride=(1, 1), padding=(3, 3),",
    "kernel_selection": "ring: kernels",
    "lightning_loop": "'accuracy_from_49': ",
    "plain_loop": "'accuracy_from_49': ",
    "scale_channels": "49 to 60",
}
NEEDS = {"lightning_loop": "lightning"}


def test_every_example_is_run() -> None:
    assert sorted(path.stem for path in (ROOT / "examples").glob("*.py")) == list(PRINTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.needs(NEEDS[name]) if name in NEEDS else ())
        for name in PRINTS
    ],
)
def test_example_runs(name: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    warnings = [] if name in NEEDS else ["-W", "error"]  # other libraries have their own
    command = [sys.executable, *warnings, str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert PRINTS[name] in done.stdout
