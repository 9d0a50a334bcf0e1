"""`equiscale models`: the registered models in tables, and the card of one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Column, Table

from equiscale.cli import options

if TYPE_CHECKING:
    from equiscale.models import ModelCard


def models(
    name: str | None = typer.Argument(
        None, help="Show the card of this model; package.module:factory works too."
    ),
) -> None:
    """List the models, or show the card of one: its guarantee, limits and options."""
    from equiscale.models import list_models, model_card

    if name is not None:
        options.allow_local_models()
        _print_card(model_card(name))
    else:
        _print_tables([model_card(key) for key in list_models()])


def _print_tables(cards: list[ModelCard]) -> None:
    console = Console(markup=False)
    models = _table("model", "group", "title", "proposed by")
    models.add_column("parameters", justify="right")
    variants = _table("variant", "group", "of", "what differs")
    for card in cards:
        if card.base is None:
            models.add_row(card.name, card.group, card.title, card.citation, _count(card))
        else:
            variants.add_row(card.name, card.group, card.base, card.title)
    console.print(models)
    console.print()
    console.print(variants)
    console.print(
        "\nParameters for grey images and 36 classes. `equiscale models NAME` shows a model's card."
    )


def _count(card: ModelCard) -> str:
    try:
        return f"{card.count_parameters():,}"
    except Exception as error:  # of someone's model, which must not hide the others
        return f"unknown: {type(error).__name__}: {error}"


def _table(first: str, *others: str) -> Table:
    return Table(Column(first, no_wrap=True), *others, box=None, header_style="bold")


def _print_card(card: ModelCard) -> None:
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_row(card.name, card.title)
    table.add_row("group", card.group)
    if card.base is not None:
        table.add_row("variant of", card.base)
    table.add_row("parameters", f"{_count(card)} (grey images, 36 classes)")
    for label in ("citation", "guarantee", "limits", "training"):
        if text := getattr(card, label):
            table.add_row(label, text)
    for option, default in card.options.items():
        shown = "required" if default is inspect.Parameter.empty else f"{default!r}"
        table.add_row("option", f"{option} = {shown}")
    Console().print(table, markup=False, highlight=False)
