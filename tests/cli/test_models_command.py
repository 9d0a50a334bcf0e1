from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

from equiscale.cli import app
from equiscale.models import list_models, model_card
from equiscale.models.registry import _MODELS

RUNNER = CliRunner()


def broken_factory(**sizes: int) -> nn.Module:
    raise ZeroDivisionError(sizes)


def test_models_lists_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(model_card("xu"), name="broken", title="[/x]", factory=broken_factory)
    monkeypatch.setitem(_MODELS._entries, "broken", broken)
    output = RUNNER.invoke(app, ["models"], env={"COLUMNS": "200"}).output
    assert all(name in output for name in list_models())
    assert "177,636" in output
    assert "[/x]" in output
    assert "ZeroDivisionError" in output


@pytest.mark.parametrize("name", ["disco", "slice_pool_full"])
def test_models_shows_a_card(name: str) -> None:
    output = RUNNER.invoke(app, ["models", name], env={"COLUMNS": "160"}).output
    assert all(word in output for word in (name, "guarantee", "limits", "option"))
    assert ("variant of" in output) == (name == "slice_pool_full")


def test_models_finds_a_module_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_of_mine.py").write_text(
        "from torch import nn\n"
        "def build(in_channels, num_classes, width=5):\n"
        "    return nn.Conv2d(in_channels, num_classes, width)\n"
        "def broken(in_channels, num_classes):\n"
        "    raise RuntimeError('not today')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    result = RUNNER.invoke(app, ["models", "module_of_mine:build"])
    assert result.exit_code == 0, result.exception
    assert "width = 5" in result.output
    result = RUNNER.invoke(app, ["models", "module_of_mine:broken"], env={"COLUMNS": "160"})
    assert "unknown: RuntimeError: not today" in result.output
