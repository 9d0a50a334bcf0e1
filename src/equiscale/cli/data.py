"""`equiscale data`: list, fetch, build and look at datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from equiscale.data.schema import StirArrays

app = typer.Typer(help="List, fetch, build and look at datasets.", no_args_is_help=True)
build_app = typer.Typer(help="Build a dataset file from its sources.", no_args_is_help=True)
app.add_typer(build_app, name="build")

Out = Annotated[
    Path | None,
    typer.Option(help="File to write; default: NAME.npz in the cache directory."),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Number of processes; default: one per core.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is already there.")]


@build_app.command()
def emoji(out: Out = None, workers: Workers = None, force: Force = False) -> None:
    """Render Font Awesome's faces, exactly as published. Needs no source."""
    from equiscale.build.emoji import build_emoji

    _build("emoji", out, force, workers, lambda count, report: build_emoji(count, report))


Build = Callable[[int, Callable[[int, int], None]], "StirArrays"]


def _build(name: str, out: Path | None, force: bool, workers: int | None, build: Build) -> None:
    """Check that the file can be written, build with a progress bar, write."""
    from equiscale.build.parallel import available_cores
    from equiscale.data.catalog import dataset_path
    from equiscale.data.schema import check_target, write_arrays

    path = out or dataset_path(name)
    check_target(path, force)
    with _progress_bar(f"building {name}") as report:
        arrays = build(workers or available_cores(), report)
    write_arrays(path, arrays)
    typer.echo(path)


@contextmanager
def _progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that moves a bar on stderr."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
