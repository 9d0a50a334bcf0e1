"""The measurements that a record stores, computed by the functions of `equiscale.metrics`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equiscale.core.files import canonical_json
from equiscale.core.registry import Registry
from equiscale.core.spec import OBJECT_SIZES, Split, thirds
from equiscale.data.dataset import StirDataset, to_float
from equiscale.metrics.cost import (
    count_operations,
    count_parameters,
    measure_inference_seconds,
    peak_memory_bytes,
)
from equiscale.metrics.equivariance import crop_boxes, equivariance_error
from equiscale.metrics.inference import BATCH_SIZE, device_of, evaluating, predict
from equiscale.metrics.selection import pooling_layers, recording, run_maps
from equiscale.runs.key import RunKey
from equiscale.runs.record import Measurement, Predictions

EXAMPLE_CLASS = "smile"
"""The record keeps the pixelwise choices of the first object of this class, or of the first."""

Measure = Callable[[nn.Module, StirDataset], Measurement | None]
"""Returns None for a model or dataset that it does not apply to."""

MeasureT = TypeVar("MeasureT", bound=Measure)
MEASUREMENTS: Registry[Measure] = Registry("measurement", "equiscale.sweeps.measure")
_log = logging.getLogger(__name__)
KernelSizes = NDArray[np.unsignedinteger[Any]]
SizePairs = Sequence[tuple[int, int]]


def register_measurement(name: str) -> Callable[[MeasureT], MeasureT]:
    """Return a decorator that adds a measurement to every record, under this name.

    A file with one::

        @register_measurement("sparsity")
        def measure_sparsity(model: nn.Module, dataset: StirDataset) -> Measurement | None:
            weights = torch.cat([p.detach().flatten() for p in model.parameters()])
            return Measurement({"zeros": (weights == 0).float().mean().item()})
    """

    def add(measure: MeasureT) -> MeasureT:
        MEASUREMENTS.add(name, measure)
        return measure

    return add


def size_pairs(sizes: Iterable[int] = OBJECT_SIZES) -> SizePairs:
    """Return the pairs of object sizes that are compared: as in the paper, the ends of each third.

    The map of the first size is resized to that of the second.

    Examples:
        >>> size_pairs()
        [(64, 49), (49, 64), (48, 33), (33, 48), (32, 17), (17, 32)]
    """
    ends = [(part[-1], part[0]) for part in reversed(thirds(sizes)) if len(part) > 1]
    return [pair for large, small in ends for pair in ((large, small), (small, large))]


def collect_measurements(
    model: nn.Module, dataset: StirDataset, key: RunKey
) -> dict[str, Measurement]:
    """Run every registered measurement and return the results of those that apply."""
    results = {name: run_measurement(name, model, dataset) for name in MEASUREMENTS}
    for name, result in results.items():
        if result is not None and "error" in result.values:
            _log.warning("%s of %s cannot be measured: %s", name, key, result.values["error"])
    return {name: result for name, result in results.items() if result is not None}


def run_measurement(name: str, model: nn.Module, dataset: StirDataset) -> Measurement | None:
    """Measure; an exception in the code of a model or measurement becomes the value `error`."""
    try:
        result = MEASUREMENTS[name](model, dataset)
        _check_storable(result)
        return result
    except Exception as error:
        return Measurement(values={"error": f"{type(error).__name__}: {error}"})


def _check_storable(result: object) -> None:
    """Raise unless a record can store what a measurement returned."""
    if result is None:
        return
    if not isinstance(result, Measurement):
        raise TypeError(f"expected a Measurement or None, got {type(result).__name__}")
    canonical_json([dict(result.values), dict(result.timings)])
    for name, array in result.arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise TypeError(f"array {name!r} must be a numpy array of numbers")


def measure_predictions(model: nn.Module, dataset: StirDataset) -> Predictions:
    """Predict every test image at all object sizes."""
    test = dataset.select(Split.TEST)
    batches = map(to_float, test.pixels.split(BATCH_SIZE))
    predicted = predict(model, batches).cpu().numpy()
    smallest = np.uint8 if dataset.num_classes <= 256 else np.uint16
    return Predictions(
        predicted=predicted.astype(smallest),
        labels=test.labels.numpy().astype(smallest),
        object_sizes=test.object_sizes.numpy().astype(np.min_scalar_type(max(dataset.sizes))),
    )


@register_measurement("equivariance")
def measure_equivariance(
    model: nn.Module, dataset: StirDataset, batch_size: int = BATCH_SIZE
) -> Measurement | None:
    """Measure the equivariance error of every test object, stage and pair of object sizes."""
    stages = getattr(model, "stages", None)
    pairs = size_pairs(size for size in dataset.sizes if size <= dataset.canvas)
    if not callable(stages) or not pairs:
        return None
    sizes = sorted({size for pair in pairs for size in pair})
    tests = {size: dataset.select(Split.TEST, [size]) for size in sizes}
    boxes = {
        size: torch.cat([part.positions, part.object_sizes[:, None]], dim=1)
        for size, part in tests.items()
    }
    parts: list[dict[str, Tensor]] = []
    with evaluating(model), torch.inference_mode():
        first = tests[sizes[0]].pixels
        probed = stages(to_float(first[:1]).to(device_of(model)))
        usable, skipped = _probe_stages(probed, sizes[0], dataset.canvas)
        for start in range(0, len(first) if usable else 0, batch_size):
            chosen = slice(start, start + batch_size)
            objects: dict[str, dict[int, Tensor]] = {stage: {} for stage in usable}
            for size, part in tests.items():
                maps = stages(to_float(part.pixels[chosen]).to(device_of(model)))
                for stage in usable:
                    cropped = crop_boxes(maps[stage], boxes[size][chosen], dataset.canvas)
                    objects[stage][size] = cropped
            parts.append({stage: _pair_errors(objects[stage], pairs) for stage in usable})
    if not usable:
        return None
    errors = {stage: torch.cat([part[stage] for part in parts], 1).numpy() for stage in usable}
    return Measurement(values=_describe_errors(errors, pairs, skipped), arrays=errors)


def _probe_stages(
    maps: Mapping[str, Tensor], smallest: int, canvas: int
) -> tuple[Sequence[str], dict[str, str]]:
    """Return the stages that can be measured, and why the others cannot."""
    reasons = {stage: _reason_to_skip(one, smallest, canvas) for stage, one in maps.items()}
    usable = [stage for stage, reason in reasons.items() if reason is None]
    return usable, {stage: reason for stage, reason in reasons.items() if reason is not None}


def _reason_to_skip(maps: Tensor, smallest: int, canvas: int) -> str | None:
    # Records hold these texts.
    if maps.ndim != 4:
        return f"its maps have {maps.ndim} axes, not [N, O, H, W]"
    height, width = maps.shape[2:]
    if height != width or height > canvas:
        return (
            f"its maps are {height}×{width}, not those of a {canvas}×{canvas} image, cut or whole"
        )
    if height <= canvas - smallest:
        return f"its maps are {height}×{width}: no object of {smallest} pixels is left on them"
    return None


def _pair_errors(objects: Mapping[int, Tensor], pairs: SizePairs) -> Tensor:
    """Return `[pairs, N]`, float32."""
    rows = [equivariance_error(objects[first], objects[second]) for first, second in pairs]
    return torch.stack(rows).float().cpu()


def _describe_errors(
    errors: Mapping[str, NDArray[np.float32]], pairs: SizePairs, skipped: Mapping[str, str]
) -> dict[str, Any]:
    """Return the mean of the defined errors and the number of others, by stage and pair."""
    undefined = {stage: ~np.isfinite(rows) for stage, rows in errors.items()}
    values: dict[str, Any] = {
        "pairs": [list(pair) for pair in pairs],
        "stages": list(errors),
        "objects": next(iter(errors.values())).shape[1],
        "undefined": sum(int(flags.sum()) for flags in undefined.values()),
        "skipped": dict(skipped),
    }
    for stage, rows in errors.items():
        for (first, second), row, flags in zip(pairs, rows, undefined[stage], strict=True):
            finite = row[~flags]
            name = f"{stage}_{first}_{second}"
            values[name] = float(finite.mean(dtype=np.float64)) if len(finite) else None
            values[f"{name}_undefined"] = int(flags.sum())
    return values


@register_measurement("scale_selection")
def measure_scale_selection(
    model: nn.Module, dataset: StirDataset, batch_size: int = BATCH_SIZE
) -> Measurement | None:
    """Record the kernel sizes that every pooling layer chooses for every test object and size.

    Arrays, sizes ascending: `chosen.LAYER` `[sizes, objects, channels]` and, of the example object
    and pixel pooling, `maps.LAYER` `[sizes, channels, height, width]`.
    """
    layers = pooling_layers(model)
    if not layers:
        return None
    names, sizes = list(dataset.class_names), sorted(dataset.sizes)
    example = (names.index(EXAMPLE_CLASS) if EXAMPLE_CLASS in names else 0) * dataset.num_instances
    chosen: dict[str, list[KernelSizes]] = {}
    maps: dict[str, list[KernelSizes]] = {}
    with evaluating(model), torch.inference_mode(), recording(model) as selections:
        for size in sizes:
            images = dataset.select(Split.TEST, [size]).pixels
            for start in range(0, len(images), batch_size):
                batch = to_float(images[start : start + batch_size])
                run_maps(model, batch.to(device_of(model)))
                for name, selection in selections.items():
                    chosen.setdefault(name, []).append(_compact(selection.by_channel()))
                    inside = start <= example < start + batch_size
                    if inside and selection.kernel_sizes.ndim == 4:
                        own = selection.kernel_sizes[example - start]
                        maps.setdefault(name, []).append(_compact(own))
    arrays: dict[str, NDArray[Any]] = {
        "object_sizes": np.array(sizes, np.min_scalar_type(sizes[-1]))
    }
    for name, parts in chosen.items():
        joined = np.concatenate(parts)
        arrays[f"chosen.{name}"] = joined.reshape(len(sizes), -1, joined.shape[1])
    arrays |= {f"maps.{name}": np.stack(parts) for name, parts in maps.items()}
    values = {
        "layers": {name: layer.pool for name, layer in layers.items()},
        "order": list(layers),
        "class_names": names,
        "instances": dataset.num_instances,
        "example": example,
    }
    return Measurement(values=values, arrays=arrays)


def _compact(kernel_sizes: Tensor) -> KernelSizes:
    smallest = torch.uint8 if kernel_sizes.max() < 256 else torch.uint16
    return kernel_sizes.to(smallest).cpu().numpy()


@register_measurement("cost")
def measure_cost(model: nn.Module, dataset: StirDataset) -> Measurement:
    """Measure parameters, operations, inference time and peak memory."""
    shape = (dataset.channels, dataset.canvas, dataset.canvas)
    operations = count_operations(model, shape)
    return Measurement(
        values={
            "operations_by_formula": operations.by_formula,
            "operations_executed": operations.executed,
            "parameters": count_parameters(model),
        },
        timings={
            "inference_seconds": measure_inference_seconds(model, shape),
            "peak_memory_bytes": peak_memory_bytes(device_of(model)),
        },
    )
