"""The `equiscale` command: parsing, progress and exit codes only; one file per command group."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.text import Text

from equiscale import __version__
from equiscale.cli import bench, data, doctor, measure, models, probe, report, runs, sweep, train
from equiscale.core.errors import EquiscaleError

USAGE_ERROR = 2

app = typer.Typer(
    name="equiscale",
    help="Scale-equivariant networks and the STIR benchmark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
for command in (
    *(models.models, train.train, sweep.sweep, bench.bench, runs.status, runs.collect),
    *(measure.measure, probe.probe, report.figures, report.compare, report.report, doctor.doctor),
):
    app.command(command.__name__)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def equiscale(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Scale-equivariant networks and the STIR benchmark."""


def main() -> None:
    """Run the command; an `EquiscaleError` becomes one line on stderr and exit code 2."""
    try:
        app()
    except EquiscaleError as error:
        line = Text.assemble(("error: ", "red"), str(error))
        Console(stderr=True).print(line, highlight=False, soft_wrap=True)
        raise SystemExit(USAGE_ERROR) from None
