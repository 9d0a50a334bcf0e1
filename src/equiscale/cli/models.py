"""`equiscale models`: the registered models, as a table, and the card of one."""

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
        None, help="Show the card of this one; package.module:factory works too."
    ),
    markdown: bool = typer.Option(False, "--markdown", help="As a table for the documentation."),
) -> None:
    """List the models, or show the card of one: what it guarantees, its limits, its options."""
    from equiscale.models import list_models, model_card

    if name is not None:
        options.allow_local_models()
        _print_card(model_card(name))
    elif markdown:
        from equiscale.models.documentation import models_table

        typer.echo(models_table(), nl=False)
    else:
        _print_table([model_card(key) for key in list_models()])


def _print_table(cards: list[ModelCard]) -> None:
    table = Table(
        Column("model", no_wrap=True),
        "group",
        "title",
        "proposed by",
        box=None,
        header_style="bold",
    )
    table.add_column("parameters", justify="right")
    for card in cards:
        table.add_row(
            card.name, card.group, card.title, card.citation, f"{card.count_parameters():,}"
        )
    console = Console()
    console.print(table)
    console.print("Parameters for grey images and 36 classes. `equiscale models NAME` says more.")


def _print_card(card: ModelCard) -> None:
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_row(card.name, card.title)
    table.add_row("group", card.group)
    table.add_row("proposed by", card.citation)
    table.add_row("parameters", f"{card.count_parameters():,} (grey images, 36 classes)")
    table.add_row("guarantee", card.guarantee)
    table.add_row("limits", card.limits)
    for option, default in card.options.items():
        shown = "required" if default is inspect.Parameter.empty else f"{default!r}"
        table.add_row("option", f"{option} = {shown}")
    Console().print(table, markup=False, highlight=False)
