"""The examples run and print what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PRINTS = {
    "convert_resnet": "SConv2d(1, 8, kernel_size=(7, 7), stride=(1, 1), padding=(3, 3),",
    "kernel_selection": "ring: kernels",
    "robustness": "trained sizes",
    "scale_channels": "49 to 60",
}


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert PRINTS[script.stem] in done.stdout
