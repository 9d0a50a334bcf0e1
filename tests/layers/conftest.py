"""Shared by tests of layers."""

from __future__ import annotations

import pytest
import torch

from equiscale.layers.scaled.native import SWITCH


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same numbers in every run."""
    torch.manual_seed(0)


@pytest.fixture(params=["compiled", "pytorch"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spectral method in compiled code, if there is a compiler, and in PyTorch."""
    monkeypatch.setenv(SWITCH, "1" if request.param == "compiled" else "0")
