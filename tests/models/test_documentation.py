"""docs/models.md follows the registry."""

from __future__ import annotations

import re
from pathlib import Path

from equiscale.models.documentation import models_promises, models_table, variants_table

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def section(name: str) -> str:
    match = re.search(rf"<!-- {name}:.*?-->\n(.*?)<!-- end of {name} -->", PAGE.read_text(), re.S)
    assert match is not None
    return match[1]


def test_tables_are_those_of_the_registry() -> None:
    assert section("table") == models_table(), "run `equiscale models --markdown`"
    assert section("variants") == variants_table(), "run `equiscale models --markdown`"


def test_promises_are_those_of_the_cards() -> None:
    assert section("promises").split() == models_promises().split()
