"""Shared by tests of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from equiscale.layers.scaled.native import SWITCH


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same numbers in every run."""
    torch.manual_seed(0)


@pytest.fixture(params=["compiled", "pytorch"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spectral method in compiled code, if there is a compiler, and in PyTorch."""
    monkeypatch.setenv(SWITCH, "1" if request.param == "compiled" else "0")


def assert_close_with_gradients(
    ours: Tensor, theirs: Tensor, inputs: Sequence[Tensor], **tolerances: Any
) -> None:
    """Two computations have the same values, and their sines the same gradients."""
    torch.testing.assert_close(ours, theirs, **tolerances)
    found, expected = (torch.autograd.grad(x.sin().sum(), inputs) for x in (ours, theirs))
    torch.testing.assert_close(found, expected, **tolerances)
