"""`equiscale measure`: the measurements of a record, for a model in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from equiscale.cli import options
from equiscale.core.errors import OptionError
from equiscale.core.files import atomic_write
from equiscale.core.spec import thirds
from equiscale.runs.record import Measurement

if TYPE_CHECKING:
    from torch import nn

    from equiscale.data.dataset import StirDataset


def measure(
    checkpoint: Annotated[
        Path,
        typer.Option(
            help="Model file, *.safetensors, or shipped weights: pixel_pool/emoji/mid2rest."
        ),
    ],
    data: Annotated[str, typer.Option(help="Name or file of a dataset.")] = "emoji",
    out: Annotated[
        Path | None, typer.Option(help="Also write all measurements, arrays too, as .npz.")
    ] = None,
    allow_import: Annotated[
        bool, typer.Option(help="Build a model named package.module:factory, which runs its code.")
    ] = False,
    device: options.Device = None,
    threads: options.Threads = None,
) -> None:
    """Measure accuracy, equivariance error, scale selection and cost of a model in a file."""
    options.check_ending(out, ".npz")
    if allow_import:
        options.allow_local_models()
    import torch

    from equiscale.data.dataset import load_dataset
    from equiscale.models.checkpoint import load_model
    from equiscale.sweeps.environment import choose_device

    if threads is not None:
        torch.set_num_threads(threads)
    model = load_model(checkpoint, allow_import=allow_import).to(choose_device(device))
    dataset = load_dataset(data)
    _check_match(model, dataset)
    _measure(model, dataset, out)


def _check_match(model: nn.Module, dataset: StirDataset) -> None:
    spec: Any = model.spec
    if (spec.in_channels, spec.num_classes) != (dataset.channels, dataset.num_classes):
        raise OptionError(
            f"the model takes {spec.in_channels} channels and has {spec.num_classes} classes, "
            f"but {dataset.name!r} has {dataset.channels} and {dataset.num_classes}"
        )


def _measure(model: nn.Module, dataset: StirDataset, out: Path | None) -> None:
    from equiscale.sweeps.measurements import MEASUREMENTS, measure_predictions, run_measurement

    status = Console(stderr=True)
    with status.status("predicting"):
        per_size = measure_predictions(model, dataset).accuracy_per_size()
    found: dict[str, Measurement | None] = {}
    for name in MEASUREMENTS:
        with status.status(f"measuring: {name}"):
            found[name] = run_measurement(name, model, dataset)
    console = Console()
    console.print(_accuracy_table(per_size))
    for name, measurement in found.items():
        console.print(_describe(name, measurement))
    if out is not None:
        _write(out, per_size, found)
        typer.echo(out)


def _accuracy_table(per_size: dict[int, float]) -> Table:
    table = Table("object sizes", "accuracy", box=None, pad_edge=False)
    for sizes in (*thirds(per_size), tuple(sorted(per_size))):
        mean = sum(per_size[size] for size in sizes) / len(sizes)
        table.add_row(f"{sizes[0]}…{sizes[-1]}", f"{mean:.2%}")
    return table


def _describe(name: str, measurement: Measurement | None) -> Text | Table:
    if measurement is None:
        return Text(f"{name}: does not apply to this model")
    if "error" in measurement.values:
        return Text(f"{name}: failed with {measurement.values['error']}")
    if name == "scale_selection":
        return _selection_table(measurement)
    table = Table(name, "value", box=None, pad_edge=False)
    for item, value in {**measurement.values, **measurement.timings}.items():
        if isinstance(value, (int, float)) and not item.endswith("_undefined"):
            table.add_row(Text(item), f"{value:.4g}" if isinstance(value, float) else f"{value:,}")
    return table


def _selection_table(measurement: Measurement) -> Table:
    table = Table("layer", "pool", "kernel sizes", "mean", box=None, pad_edge=False)
    for layer, pool in measurement.values["layers"].items():
        chosen = measurement.arrays[f"chosen.{layer}"]
        table.add_row(Text(layer), pool, f"{chosen.min()}…{chosen.max()}", f"{chosen.mean():.1f}")
    return table


def _write(path: Path, per_size: dict[int, float], found: dict[str, Measurement | None]) -> None:
    present = {name: m for name, m in found.items() if m is not None}
    arrays = {f"{n}.{item}": a for n, m in present.items() for item, a in m.arrays.items()}
    values = {n: {**m.values, **m.timings} for n, m in present.items()}
    values["accuracy_per_size"] = {str(size): value for size, value in per_size.items()}
    with atomic_write(path) as file:
        np.savez_compressed(file, values=np.array(json.dumps(values)), **arrays)  # type: ignore[arg-type]
