"""The examples run and print what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes import ROOT, run_python

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
    warnings = [] if name in NEEDS else ["-W", "error"]  # other libraries have their own
    printed = run_python(*warnings, ROOT / "examples" / f"{name}.py", cwd=tmp_path)
    assert PRINTS[name] in printed
