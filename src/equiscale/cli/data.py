"""`equiscale data`: list, fetch, build, export and look at datasets."""

from __future__ import annotations

import inspect
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from equiscale.build.options import Background, ExportFormat, SourceFormat
from equiscale.cli.options import check_ending, option, split_names
from equiscale.core.cores import available_cores
from equiscale.core.errors import DatasetNotFoundError, OptionError
from equiscale.core.files import cache_directory
from equiscale.core.spec import STIR_LAYOUT, Layout, Split, describe_sizes
from equiscale.data.catalog import (
    CARDS,
    SUFFIX,
    DatasetCard,
    dataset_path,
    is_embedded,
    locate_dataset,
)
from equiscale.data.schema import StirArrays, check_target, read_arrays, write_arrays


class BuildGroup(TyperGroup):
    """One command per registered dataset, made when it is asked for, and `folder`."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - Typer has its own Click
        """Return the names of the commands."""
        return [*CARDS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """Return the command of a dataset, or one of our own."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in CARDS:
            return own
        card, single = CARDS[cmd_name], typer.Typer(add_completion=False)
        text = f"{card.title}.\n\n{card.description} Source: {card.source or 'none'}."
        single.command(cmd_name, help=text)(_create_build_command(card))
        return typer.main.get_command(single)


app = typer.Typer(help="List, fetch, build, export and look at datasets.", no_args_is_help=True)
build_app = typer.Typer(
    cls=BuildGroup, help="Build a dataset file from its sources.", no_args_is_help=True
)
app.add_typer(build_app, name="build")

Name = Annotated[str, typer.Argument(help="A dataset's name, or the path of its file.")]
Out = Annotated[Path | None, option("File to write; default: NAME.npz in the cache directory.")]
Source = Annotated[Path, option("Directory of the sources.")]
Workers = Annotated[int | None, option("Number of processes; default: one per core.", min=1)]
Force = Annotated[bool, option("Replace a file that is already there.", "--force")]
Instances = Annotated[
    int | None,
    option("Instances per class and split; default: as published.", "--instances", min=1),
]
SkipBad = Annotated[bool, option("Leave out damaged pictures, and name them.", "--skip-bad")]
Canvas = Annotated[int | None, option("Side of the images in pixels.", min=1)]
Sizes = Annotated[str, option("Object sizes in pixels: 28,56,112.")]
Report = Callable[[int, int], None]


@app.command("list")
def list_datasets() -> None:
    """Show the known datasets, and which of them are on this machine."""
    table = Table(box=None, pad_edge=False)
    for column in ("name", "classes", "channels", "canvas", "sizes", "file"):
        table.add_column(column, no_wrap=True)
    table.add_column("license")
    for card in (CARDS[name] for name in CARDS):
        here = dataset_path(card.name).is_file() or is_embedded(card.name)
        file = "here" if here else "download" if card.published else "build"
        canvas, sizes = card.layout.canvas, card.layout.sizes
        numbers = map(str, (card.num_classes, card.channels, canvas))
        size_range = f"{min(sizes)}…{max(sizes)}"
        license_ = card.license.partition(";")[0]
        table.add_row(card.name, *numbers, size_range, file, license_)
    _add_own_datasets(table)
    Console().print(table)
    typer.echo(f"Files are kept in {cache_directory()}")


@app.command()
def info(name: Name) -> None:
    """Show a dataset's card, and its file if it is on this machine."""
    if name in CARDS:
        card = CARDS[name]
        _print_fields(
            {
                "title": card.title,
                "description": card.description,
                "classes": ", ".join(card.class_names) or f"{card.num_classes}, named in the file",
                "instances": f"{card.num_instances} per class, split and object size",
                "channels": str(card.channels),
                "canvas": str(card.layout.canvas),
                "object sizes": describe_sizes(card.layout.sizes),
                "license": card.license,
                "source": card.source,
                "cite": card.citation,
                "content": card.content_hash or "hash not known",
            }
        )
    try:
        path = locate_dataset(name, download=False)
    except DatasetNotFoundError as error:
        if name not in CARDS:
            raise
        typer.echo(f"\n{error}")
        return
    arrays = read_arrays(path)
    _print_fields(
        {"file": str(path), **arrays.metadata, "classes": ", ".join(arrays.class_names)}
        | {"images": str(arrays.images.shape), "content": arrays.content_hash}
        | _compare_content(name, arrays.content_hash)
    )


@app.command()
def download(
    name: Annotated[str, typer.Argument(help="emoji, mnist, trafficsign, aerial or all.")],
    force: Force = False,
) -> None:
    """Fetch published files from Zenodo, checked against the record."""
    from equiscale.data.download import download_dataset

    progress = sys.stderr.isatty()
    names = [key for key in CARDS if CARDS[key].published] if name == "all" else [name]
    for each in names:
        typer.echo(download_dataset(each, force=force, progress=progress))


@app.command()
def export(
    name: Name,
    out: Annotated[Path, option("Directory to write to.")],
    file_format: Annotated[
        ExportFormat, option("How the images are stored.", "--format")
    ] = ExportFormat.PARQUET,
    force: Force = False,
) -> None:
    """Write a dataset for Hugging Face: a Parquet file per split, and Croissant metadata."""
    from equiscale.build.export import export_parquet

    path = locate_dataset(name)
    with progress_bar(f"exporting {path.stem}") as report:
        files = export_parquet(read_arrays(path), path.stem, out, force, report)
    for file in files:
        typer.echo(file)


@app.command()
def preview(
    name: Name,
    out: Annotated[Path, option("PNG file to write.")] = Path("preview.png"),
    split: Annotated[Split, option("Which part.")] = Split.TRAIN,
    sizes: Annotated[str, option("Object sizes. (default: seven of them)")] = "",
    instance: Annotated[int, option("Which instance of each class.")] = 0,
    boxes: Annotated[bool, option("Draw the objects' boxes.", "--boxes")] = False,
) -> None:
    """Draw a contact sheet: classes down, object sizes across."""
    check_ending(out, ".png")
    from equiscale.build.preview import draw_preview, write_preview

    arrays = read_arrays(locate_dataset(name))
    write_preview(out, draw_preview(arrays, split, parse_sizes(sizes), instance, boxes))
    typer.echo(out)


_OPTIONS: dict[str, Any] = {"source": Source, "num_instances": Instances, "skip_bad": SkipBad}
"""Options that builders share; others follow from the annotation."""

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_COMMON = {
    "canvas": (Canvas, None),
    "sizes": (Sizes, ""),
    "out": (Out, None),
    "workers": (Workers, None),
    "force": (Force, False),
}


def _create_build_command(card: DatasetCard) -> Callable[..., None]:
    """Return `equiscale data build NAME`, with the arguments of its builder as options."""

    def command(**given: Any) -> None:  # noqa: ANN401 - whatever the options are
        canvas, sizes, out, workers, force = (given.pop(name) for name in _COMMON)
        layout = _parse_layout(canvas, sizes, card.layout)
        _build(partial(card.build, **given, layout=layout), card.name, out, workers, force)

    parameters = [_as_option(parameter) for parameter in card.options.values()]
    parameters += [
        inspect.Parameter(name, _KEYWORD, default=default, annotation=kind)
        for name, (kind, default) in _COMMON.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    return command


def _as_option(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a builder's argument as Typer reads it; a text in `Annotated` is its help."""
    kind = _OPTIONS.get(parameter.name)
    if kind is None:
        found = parameter.annotation
        plain, *notes = get_args(found) if get_origin(found) is Annotated else (found,)
        kind = Annotated[plain, typer.Option(help=notes[0] if notes else None)]
    return parameter.replace(kind=_KEYWORD, annotation=kind)


@build_app.command()
def folder(
    source: Source,
    name: Annotated[str, option("How the dataset is called.")],
    source_format: Annotated[
        SourceFormat, option("How the pictures are annotated.", "--format")
    ] = SourceFormat.AUTO,
    classes: Annotated[str, option("Only these classes: a,b,c.")] = "",
    instances: Annotated[
        int | None, option("Objects per class and split; default: all that can be had.", min=1)
    ] = None,
    border: Annotated[
        Background, option("Beyond a picture's border: its edge, or black.")
    ] = Background.EDGE,
    cutouts: Annotated[
        bool, option("Cut objects out along their transparency.", "--cutouts")
    ] = False,
    masks: Annotated[
        Path | None, option("Masks, each with the name of its picture; cut-outs.")
    ] = None,
    backgrounds: Annotated[
        Path | None, option("Pictures behind cut-outs. (default: black)")
    ] = None,
    group_by: Annotated[
        str,
        option(
            "What is never split: a folder level (1, 2, …), or a regular expression "
            "for the picture's path."
        ),
    ] = "",
    grey: Annotated[bool, option("Grey images.", "--grey")] = False,
    allow_upscaling: Annotated[
        bool, option("Admit objects below the largest object size.", "--allow-upscaling")
    ] = False,
    canvas: Canvas = None,
    sizes: Sizes = "",
    skip_bad: SkipBad = False,
    license_text: Annotated[str, option("Terms of the pictures.", "--license")] = "not stated",
    seed: Annotated[int, option("Decides positions and splits.")] = 0,
    out: Out = None,
    workers: Workers = None,
    force: Force = False,
) -> None:
    """Build from your own pictures: a folder per class, cut-outs, COCO JSON or YOLO boxes."""
    from equiscale.build.folder import FolderOptions, build_folder

    options = FolderOptions(
        name=name,
        source_format=source_format,
        classes=split_names(classes),
        num_instances=instances,
        layout=_parse_layout(canvas, sizes, STIR_LAYOUT),
        background=border,
        cutouts=cutouts,
        masks=masks,
        backgrounds=backgrounds,
        group_by=group_by,
        grey=grey,
        allow_upscaling=allow_upscaling,
        skip_bad=skip_bad,
        license=license_text,
        seed=seed,
    )
    _build(partial(build_folder, source, options), name, out, workers, force)


def _build(
    build: Callable[..., StirArrays], name: str, out: Path | None, workers: int | None, force: bool
) -> None:
    """Call `build(workers=…, progress=…)`, write its file and print the path."""
    path = out or dataset_path(name)
    check_target(path, force)
    with progress_bar(f"building {name}") as report:
        write_arrays(path, build(workers=workers or available_cores(), progress=report))
    typer.echo(path)


@contextmanager
def progress_bar(text: str, *columns: Any, total: int | None = None) -> Iterator[Report]:  # noqa: ANN401 - rich's
    """Show a bar on a terminal; a request to terminate ends the block as Ctrl-C does."""
    console = Console(stderr=True)
    hidden = not console.is_terminal
    bar = Progress(*columns, console=console, transient=True, disable=hidden)
    with _terminated_cleanly(), bar:
        task = bar.add_task(text, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _terminated_cleanly() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _compare_content(name: str, found: str) -> dict[str, str]:
    """Tell whether a file holds what its card promises, where the card does."""
    expected = CARDS[name].content_hash if name in CARDS else None
    if expected is None:
        return {}
    return {"as the card says": "yes" if found == expected else "no, other images or versions"}


def _add_own_datasets(table: Table) -> None:
    """Add the files in the cache directory that the catalog does not know."""
    for path in sorted(cache_directory().glob(f"*{SUFFIX}")):
        if path.stem not in CARDS:
            table.add_row(path.stem, *[""] * 4, "here", "your own")


def parse_sizes(text: str) -> list[int]:
    """Return the object sizes in a text that separates them with commas."""
    try:
        return [int(word) for word in split_names(text)]
    except ValueError:
        raise OptionError(f"object sizes {text!r}: write integers, as in 64,32,17") from None


def _parse_layout(canvas: int | None, sizes: str, default: Layout) -> Layout:
    if canvas is None and not sizes:
        return default
    return Layout.of(canvas or default.canvas, parse_sizes(sizes) or default.sizes)


def _print_fields(fields: dict[str, str]) -> None:

    table = Table.grid(padding=(0, 2))
    for key, value in fields.items():
        table.add_row(Text(key, style="bold"), Text(value))
    Console().print(table)
