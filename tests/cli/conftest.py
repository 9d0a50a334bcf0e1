"""The command as the console script runs it, in this process and an empty directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from equiscale.cli import main

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "sweeps"
PYTHONPATH = os.pathsep.join([str(ROOT / "src"), str(TINY)])


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `equiscale` with these arguments; the models of tests/sweeps can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TINY))
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("EQUISCALE_DATA", str(tmp_path / "cache"))
    monkeypatch.delenv("EQUISCALE_RUNS", raising=False)

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["equiscale", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return call
