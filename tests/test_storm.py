from __future__ import annotations

import sys

import pytest
from tests.processes import run_python


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks, and limits the size of files")
def test_a_short_storm_loses_nothing() -> None:
    """One round of kills, full disks, moved directories and damaged files."""
    options = ("--minutes", 0, "--jobs", 1, "--seed", 5)
    assert "worker killed" in run_python("-m", "tests.storm", *options)
