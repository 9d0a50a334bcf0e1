"""Shared by all tests: one thread per worker, and programs that some tests need."""

from __future__ import annotations

import os
import shutil

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # xdist runs one worker per core


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is absent, or fail it where the gate says all must run."""
    for marker in item.iter_markers("needs"):
        tool = marker.args[0]
        if shutil.which(tool) is None:
            if os.environ.get("EQUISCALE_REQUIRE_TOOLS"):
                pytest.fail(f"{tool} must be installed here (EQUISCALE_REQUIRE_TOOLS is set)")
            pytest.skip(f"{tool} is not installed")
