"""The parts of docs/models.md that follow from the registry; run this module to rewrite them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equiscale.models.registry import ModelCard, list_models, model_card


def fill(page: str) -> str:
    """Return a page with the blocks between its `<!-- registry: name -->` marks written anew."""
    for name, write in _BLOCKS.items():
        begin, end = f"<!-- registry: {name} -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = page.partition(begin)
        if found:
            page = before + begin + write() + end + rest.partition(end)[2]
    return page


def models_table() -> str:
    """Return one row per model of the package, without variants."""
    return _table(
        ("model", "group", "title", "proposed by", "parameters", "options"),
        [
            (
                f"`{card.name}`",
                card.group,
                card.title,
                card.citation,
                f"{card.count_parameters():,}",
                _show_options(card.options),
            )
            for card in _package_cards(variants=False)
        ],
    )


def variants_table() -> str:
    """Return one row per variant: its base, its options, what differs."""
    return _table(
        ("variant", "group", "model and options", "what differs"),
        [
            (f"`{card.name}`", card.group, f"`{card.base}`, {_sets(card)}", card.title)
            for card in _package_cards(variants=True)
        ],
    )


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = (headings, ("---",) * len(headings), *rows)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _package_cards(variants: bool) -> list[ModelCard]:
    cards = [model_card(name) for name in list_models()]
    return [card for card in cards if card.group != "own" and (card.base is not None) == variants]


def _sets(card: ModelCard) -> str:
    return _show_options(card.presets)


def _show_options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}={_show(value)}`" for name, value in options.items())


def _show(value: object) -> str:
    """Return the value of an option; of a list, numbers to three digits and long ones shortened.

    Examples:
        >>> _show((0.35355, 1.0)), _show("same"), _show(tuple(range(3, 64, 2)))
        ('(0.354, 1)', "'same'", '(3, 5, …, 63)')
    """
    if not isinstance(value, tuple):
        return repr(value)
    numbers = [format(item, ".3g") for item in value]
    if len(numbers) > 10:
        numbers[2:-1] = ["…"]
    return f"({', '.join(numbers)})"


_BLOCKS = {"models": models_table, "variants": variants_table}

if __name__ == "__main__":
    _page = Path(sys.argv[1])
    _page.write_text(fill(_page.read_text(encoding="utf-8")), encoding="utf-8")
