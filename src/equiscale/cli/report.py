"""`equiscale figures`, `compare` and `report`: from records to what people look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from equiscale.cli import options
from equiscale.cli.options import option
from equiscale.core.files import atomic_write
from equiscale.core.protocol import protocol_changes

if TYPE_CHECKING:
    from equiscale.analysis.study import Study

RunsSource = Annotated[
    Path,
    typer.Option(
        "--runs",
        envvar="EQUISCALE_RUNS",
        help="Directory of the records, or a table that `equiscale collect` wrote.",
    ),
]
Models = Annotated[str, option("Names with commas; default: all that were run.", "--models")]
DEFAULT_PORT = 8765
_ANY_WIDTH = 10_000


def report(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    directory: RunsSource = options.DEFAULT_RUNS,
    serve: Annotated[
        bool, option("Show it on this machine, refreshed as runs finish.", "--serve")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of --serve; 0 takes any.")
    ] = DEFAULT_PORT,
) -> None:
    """Write all results as one page: a single file that needs no network."""
    if serve:
        _serve(directory, port)
        return
    options.check_ending(out, ".html", ".htm")
    from equiscale.report.page import write_page

    study = _read(directory)
    write_page(study, out)
    typer.echo(f"{out}: {len(study.runs)} runs, {out.stat().st_size / 1e6:.2f} MB")


def figures(
    out: Annotated[Path, typer.Option(help="Directory to write to.")] = Path("figures"),
    directory: RunsSource = options.DEFAULT_RUNS,
    only: Annotated[str, option("Names of figures, separated by commas; default: all.")] = "",
    models: Models = "",
    formats: Annotated[str, typer.Option(help="svg, pdf, png.")] = "svg,pdf,png",
    data: Annotated[
        str, typer.Option(help="Dataset whose images the overview shows; default: if it is here.")
    ] = "",
) -> None:
    """Write the figures and tables of the paper and its supplement, by name."""
    from equiscale.report.figures import FIGURES, write_figures

    wanted = options.split_names(only) or tuple(FIGURES)
    study = _read(directory, models)
    written = write_figures(study, out, wanted, options.split_names(formats), data or None)
    for name, outcome in written.items():
        typer.echo(f"{name}: {outcome}")


def compare(
    directory: RunsSource = options.DEFAULT_RUNS,
    models: Models = "",
    out: Annotated[Path | None, typer.Option(help="Also write the table, as .csv.")] = None,
) -> None:
    """Print our accuracies beside the published ones, cell by cell."""
    from equiscale.analysis.comparison import CITATION

    options.check_ending(out, ".csv")
    study = _read(directory, models)
    cells, compared = study.cells, study.published
    if out is not None:
        with atomic_write(out) as file:
            file.write(compared.drop("missing", "accuracies").write_csv().encode())
    if compared.is_empty():
        typer.echo(f"nothing to compare: none of your {len(cells)} results is published")
        return
    console, shown = Console(), _comparison_table(compared.to_dicts())
    needed = console.measure(shown, options=console.options.update_width(_ANY_WIDTH)).maximum
    console.width = max(console.width, needed)  # a narrower terminal wraps lines, nothing is cut
    console.print(shown)
    _print_remarks(console, compared.to_dicts(), len(cells))
    options.say(console, f"Published: {CITATION}")


def _comparison_table(rows: list[dict[str, Any]]) -> Table:
    headings = ("dataset", "scenario", "model", "seeds", "ours", "95 % interval", "published")
    judged = ("difference", "inside", "near", "runs near")
    table = Table(*headings, *judged, box=None, pad_edge=False)
    for index, column in enumerate(table.columns):
        column.justify, column.no_wrap = "right" if index > 2 else "left", True
    for row in rows:
        low, high, missing = row["low"], row["high"], len(row["missing"])
        table.add_row(
            *(Text(str(row[name])) for name in ("dataset", "scenario")),
            Text(_name_with_changes(row)),
            f"{row['runs']} ({missing} missing)" if missing else str(row["runs"]),
            _percent(row["mean"]),
            "none" if low is None else f"{_percent(low)} … {_percent(high)}",
            _percent(row["published"]),
            f"{100 * row['difference']:+.2f}",
            _yes_or_no(row["inside"]),
            _yes_or_no(row["near"]),
            "–" if row["near_runs"] is None else f"{row['near_runs']} of {row['runs']}",
        )
    return table


def _name_with_changes(row: dict[str, Any]) -> str:
    """Return the model, and what was changed in the paper's protocol."""
    changes = [protocol_changes(str(row["protocol"]))]
    if not row["same_rate"]:
        changes.append(f"lr {row['learning_rate']:g} (published: {row['published_lr']:g})")
    return ", ".join([str(row["model"]), *filter(None, changes)])


def _yes_or_no(value: object) -> str:
    return "–" if value is None else "yes" if value else "no"


def _print_remarks(console: Console, rows: list[dict[str, Any]], cells: int) -> None:
    for remark in (
        f"inside: {_share(rows, 'inside')} published means lie in our interval, "
        "of cells with five runs or more: intervals of fewer are too narrow",
        f"near: {_share(rows, 'near')} means of ours lie within two published standard deviations "
        "of the published mean; runs near: how many single runs do",
        f"{cells - len(rows)} cells of ours have no published counterpart",
    ):
        options.say(console, remark)
    others = sum(not row["same_protocol"] for row in rows)
    rates = sum(bool(row["same_protocol"]) and not row["same_rate"] for row in rows)
    for count, reason in (
        (others, "trained otherwise than by the paper's protocol"),
        (rates, "trained at another learning rate than the published runs"),
    ):
        if count:
            options.say(console, f"not judged: {count}, {reason}")


def _share(rows: list[dict[str, Any]], column: str) -> str:
    known = [row[column] for row in rows if row[column] is not None]
    return f"{sum(map(bool, known))} of {len(known)}"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _read(directory: Path, models: str = "") -> Study:
    """Read the runs, all or those of some models, and print what could not be read."""
    from equiscale.analysis.runs import read_study

    study = read_study(directory)
    console = Console(stderr=True)
    for problem in study.problems:
        options.say(console, f"left out: {problem}")
    if count := study.others.get("quarantined"):
        place = str(directory / "quarantine")
        options.say(console, f"damaged records: {count} in {place!r}; run them again")
    names = options.split_names(models)
    return study.of_models(names) if names else study


def _serve(directory: Path, port: int) -> None:
    from equiscale.report.server import PageServer

    with PageServer(directory, port) as server:
        typer.echo(f"showing {directory} at {server.url} (stop with Ctrl-C)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("stopped")
