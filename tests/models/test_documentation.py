"""docs/models.md follows the registry, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equiscale.models import base, list_models, model_card
from equiscale.models.documentation import models_promises, models_table

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def section(name: str) -> str:
    match = re.search(rf"<!-- {name}:.*?-->\n(.*?)<!-- end of {name} -->", PAGE.read_text(), re.S)
    assert match is not None
    return match[1]


def test_table_is_that_of_the_registry() -> None:
    assert section("table") == models_table(), "run `equiscale models --markdown`"


def test_promises_are_those_of_the_cards() -> None:
    assert section("promises").split() == models_promises().split()


def test_examples_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    registry = type(base._MODELS)("model")
    for name in list_models():
        registry.add(name, model_card(name))
    monkeypatch.setattr(base, "_MODELS", registry)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        code = block.replace("class_names=[...]", "class_names=list('abcdefghijklmnop')")
        exec(compile(code, str(PAGE), "exec"), names)
    assert (tmp_path / "model.safetensors").exists()
