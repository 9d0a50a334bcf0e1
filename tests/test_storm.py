from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks, and limits the size of files")
def test_a_short_storm_loses_nothing() -> None:
    """One round of kills, full disks, moved directories and damaged files."""
    command = [sys.executable, "-m", "tests.storm", "--minutes", "0", "--jobs", "1", "--seed", "5"]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker killed" in done.stdout
