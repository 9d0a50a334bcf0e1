"""Shared by tests of layers."""

from __future__ import annotations

import pytest

from equiscale.core.compiled import SWITCH


@pytest.fixture(params=["compiled", "pytorch"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spectral method in compiled code, where there is a compiler, and without it."""
    monkeypatch.setenv(SWITCH, "1" if request.param == "compiled" else "0")
