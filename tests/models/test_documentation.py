"""docs/models.md follows the registry."""

from __future__ import annotations

from pathlib import Path

from equiscale.models.documentation import fill

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_page_is_that_of_the_registry() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert fill(page) == page, "run `make format`"
    changed = page.replace("| 27,108 |", "| 27,109 |")
    assert fill(changed) == page
