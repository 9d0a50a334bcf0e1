"""`equiscale probe`: how networks cope with object size, on pictures of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from equiscale.build.options import SourceFormat
from equiscale.cli import options
from equiscale.cli.data import parse_sizes, progress_bar
from equiscale.core.errors import OptionError
from equiscale.core.files import check_writable

if TYPE_CHECKING:
    from equiscale.probing import Network

_pictures = partial(options.option, panel="Which pictures")
_shown = partial(options.option, panel="How they are shown")
_expected = partial(
    options.option, panel="What the networks expect (default: what they say, or else ImageNet's)"
)


def probe(
    networks: Annotated[
        list[str],
        typer.Argument(help="my_module:load_model, timm:NAME or onnx:FILE; one or several."),
    ],
    images: Annotated[
        Path, _pictures("Directory: a folder per class, COCO or YOLO boxes, or pictures only.")
    ],
    out: Annotated[
        Path, typer.Option(help="The page to write, with a .json and a .csv beside it.")
    ] = Path("probe.html"),
    source_format: Annotated[
        SourceFormat, _pictures("How they are annotated.", "--format")
    ] = SourceFormat.AUTO,
    unlabelled: Annotated[bool, _pictures("Folders do not name classes.", "--unlabelled")] = False,
    cutouts: Annotated[
        bool, _pictures("Cut objects out along their transparency.", "--cutouts")
    ] = False,
    masks: Annotated[
        Path | None, _pictures("Masks, each with the name of its picture; cut-outs.")
    ] = None,
    limit: Annotated[
        int | None, _pictures("At most so many objects, from all classes.", min=1)
    ] = None,
    skip_bad: Annotated[bool, _pictures("Leave out damaged pictures.", "--skip-bad")] = False,
    sizes: Annotated[
        str, _shown("Object sizes in pixels: 28,56,112. (default: steps of √2, down to an eighth)")
    ] = "",
    places: Annotated[int, _shown("Places at each size.", min=1)] = 3,
    background: Annotated[
        str | None,
        _shown(
            "own, edge, blur, plain, or a directory of pictures. (default: own surroundings "
            "for boxes, blur for whole pictures, plain for cut-outs)"
        ),
    ] = None,
    seed: Annotated[int, _shown("Decides places.")] = 0,
    canvas: Annotated[int | None, _expected("Side of the input in pixels.", min=1)] = None,
    mean: Annotated[
        str, _expected("Of pixels in [0, 1]: 0.5,0.5,0.5; one number for grey images.")
    ] = "",
    std: Annotated[str, _expected("Of pixels in [0, 1]: 0.5,0.5,0.5.")] = "",
    crop: Annotated[float | None, _expected("Share of the picture that is seen.")] = None,
    class_names: Annotated[
        Path | None,
        _expected(
            "Names of the outputs, one per line. (default: what the network says; "
            "ImageNet's, if it has 1000 and timm is installed; the folders in order)"
        ),
    ] = None,
    batch_size: Annotated[int, options.machine_option("Images per forward pass.", min=1)] = 32,
    device: options.Device = None,
    threads: options.Threads = None,
) -> None:
    """Measure how networks cope with object size, on your pictures.

    The command can be stopped at any time: repeated, it goes on where it was.
    """
    check_out(out)
    options.allow_local_models()
    import torch

    from equiscale import probing
    from equiscale.probing import page  # noqa: F401 - before hours of work: needs an extra
    from equiscale.probing.classes import read_class_names
    from equiscale.sweeps.environment import choose_device

    if threads is not None:
        torch.set_num_threads(threads)
    changes = {
        "canvas": canvas,
        "mean": options.parse_numbers("--mean", mean, float),
        "std": options.parse_numbers("--std", std, float),
        "crop": crop,
    }
    names = read_class_names(class_names) if class_names else None
    pictures = probing.read_pictures(
        images,
        source_format,
        labelled=False if unlabelled else None,
        cutouts=cutouts,
        masks=masks,
        limit=limit,
        skip_bad=skip_bad,
    )
    loaded = [probing.load_network(spec, choose_device(device)) for spec in networks]
    try:
        with _following(len(pictures.objects)) as follow:
            report = probing.probe(
                name_networks(_change(network, changes) for network in loaded),
                pictures,
                class_names=names,
                sizes=parse_sizes(sizes) or None,
                places=places,
                background=background,
                batch_size=batch_size,
                seed=seed,
                progress=follow,
                resume=out.with_name(f".{out.name}.partial"),
            )
    except KeyboardInterrupt:
        typer.echo("stopped; the same command resumes it", err=True)
        raise typer.Exit(options.EXIT_INTERRUPTED) from None
    report.write_page(out)  # first: without a page, a killed command would refuse the other files
    report.write_json(out.with_suffix(".json"))
    report.write_csv(out.with_suffix(".csv"))
    options.say(Console(), str(report))
    typer.echo(out)


def check_out(out: Path) -> None:
    """Refuse now what could not be written in the end."""
    options.check_ending(out, ".html", ".htm")
    for ending in (out.suffix, ".json", ".csv"):
        file = out.with_suffix(ending)
        if file.exists() and not out.exists():
            raise OptionError(
                f"{str(file)!r} is there, but no page {str(out)!r} of an earlier probe: "
                "give --out another name, or remove the file"
            )
        check_writable(file)


def name_networks(networks: Iterator[Network] | Sequence[Network]) -> dict[str, Network]:
    """Return networks by name; a name that occurs again gets a number."""
    named: dict[str, Network] = {}
    for network in networks:
        name, number = network.name, 2
        while name in named:
            name, number = f"{network.name} ({number})", number + 1
        named[name] = network
    return named


def _change(network: Network, changes: dict[str, Any]) -> Network:
    """Replace what the command line says about the preprocessing."""
    given = {name: value for name, value in changes.items() if value not in (None, ())}
    if not given:
        return network
    origin = f"{', '.join(given)} given"
    if len(given) < len(changes):
        origin += f"; the rest: {network.preprocess.origin}"
    return replace(network, preprocess=replace(network.preprocess, **given, origin=origin))


@contextmanager
def _following(total: int) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal; stopped, the command can be repeated and goes on."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar("probing", *columns, total=total) as report:
        yield report
