"""The pages of the documentation that follow from the registry."""

from __future__ import annotations

from equiscale.models.base import ModelCard, list_models, model_card


def models_table() -> str:
    """Return the models of the package as a Markdown table, one row each."""
    lines = ["| model | group | title | proposed by | parameters | options |", "| --- " * 6 + "|"]
    for card in _own_cards():
        options = ", ".join(f"`{name}={_show(default)}`" for name, default in card.options.items())
        parameters = f"{card.count_parameters():,}"
        cells = (f"`{card.name}`", card.group, card.title, card.citation, parameters, options)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def models_promises() -> str:
    """Return what each model of the package guarantees and where that ends, in Markdown."""
    return "\n".join(
        f"- **{card.name}.** {card.guarantee} *Where it ends:* {card.limits}"
        for card in _own_cards()
    )


def _show(value: object) -> str:
    """Return the default of an option, numbers in lists to three digits.

    Examples:
        >>> _show((0.35355, 1.0)), _show("same")
        ('(0.354, 1)', "'same'")
    """
    if isinstance(value, tuple):
        return f"({', '.join(format(item, '.3g') for item in value)})"
    return repr(value)


def _own_cards() -> list[ModelCard]:
    cards = [model_card(name) for name in list_models()]
    return [card for card in cards if card.group != "own"]
