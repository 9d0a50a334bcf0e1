from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import equiscale
from equiscale.cli import app, doctor
from equiscale.layers.scaled.native import SWITCH

RUNNER = CliRunner()


def test_doctor_tells_what_is_in_use(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["doctor"], env={"COLUMNS": "160", "EQUISCALE_DATA": str(tmp_path)})
    assert result.exit_code == 0
    assert all(
        word in result.output
        for word in (equiscale.__version__, "torch", "threads", "extra report", str(tmp_path))
    )


def test_doctor_tells_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_is_installed", lambda package: package != "ray")
    output = RUNNER.invoke(app, ["doctor"], env={"COLUMNS": "160", SWITCH: "0"}).output
    assert "- pip install 'equiscale[ray]'" in output
    assert "'equiscale[report]'" not in output
    assert f"- unset {SWITCH}" in output
