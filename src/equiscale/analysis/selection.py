"""Which kernel sizes a network chooses, read from records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equiscale.analysis.statistics import Correlation, pearson
from equiscale.core.spec import OBJECT_SIZES
from equiscale.runs.errors import NewerRecordError
from equiscale.runs.record import Measurement, RunRecord

SIZES = tuple(sorted(OBJECT_SIZES))
"""Object sizes of the published datasets, ascending."""

_LARGEST_KERNEL = 2**15


@dataclass(frozen=True, eq=False)
class ScaleSelection:
    """The kernel sizes that one run chooses.

    Attributes:
        run_id: The run.
        seed: Its seed.
        pools: How each layer pools, by its name, first to last.
        class_names: Classes of the dataset.
        instances: Test objects per class.
        example: Index of the object that the maps show.
        chosen: `[sizes, objects, channels]` kernel sizes by layer; object sizes ascend.
        maps: `[sizes, channels, height, width]` kernel sizes by layer, for pixel pooling.
        sizes: Object sizes of the dataset, ascending.
    """

    run_id: str
    seed: int
    pools: Mapping[str, str]
    class_names: tuple[str, ...]
    instances: int
    example: int
    chosen: Mapping[str, NDArray[np.uint8]]
    maps: Mapping[str, NDArray[np.uint8]]
    sizes: tuple[int, ...] = SIZES

    @property
    def last_layer(self) -> str:
        """The last layer that pools, which the paper shows."""
        return list(self.pools)[-1]

    @property
    def example_name(self) -> str:
        """The class of the object that the maps show."""
        return self.class_names[self.example // self.instances]


def read_selection(record: RunRecord) -> ScaleSelection | None:
    """Return the scale selection of a run; None if none was measured.

    Raises:
        NewerRecordError: The measurement is not as this version writes it.
    """
    measurement = record.measurements.get("scale_selection")
    if measurement is None or "layers" not in measurement.values:  # or it failed
        return None
    try:
        selection = _unpack(record, measurement)
        _check(selection, record.predictions.sizes)
    except Exception as error:  # measurements of others can hold anything
        raise NewerRecordError.for_record(f"run {record.key.run_id}", repr(error)) from error
    return selection


def _unpack(record: RunRecord, measurement: Measurement) -> ScaleSelection:
    values, arrays = measurement.values, measurement.arrays
    pools = values["layers"]
    order = values.get("order") or sorted(pools)  # older records have no order
    return ScaleSelection(
        run_id=record.key.run_id,
        seed=record.key.seed,
        pools={name: pools[name] for name in order},
        class_names=tuple(values["class_names"]),
        instances=values["instances"],
        example=values["example"],
        chosen={name: arrays[f"chosen.{name}"] for name in pools},
        maps={name: arrays[f"maps.{name}"] for name in pools if f"maps.{name}" in arrays},
        sizes=tuple(map(int, arrays["object_sizes"])),
    )


def _check(selection: ScaleSelection, sizes: tuple[int, ...]) -> None:
    """Raise unless all parts of a selection are of the same objects, sizes and layers."""
    layer, objects = selection.last_layer, len(selection.class_names) * selection.instances
    chosen, maps = selection.chosen[layer], selection.maps.get(layer)
    texts = (selection.pools[layer], *selection.class_names)
    shapes = [chosen.shape[:2] == (len(sizes), objects), chosen.ndim == 3, chosen.size > 0]
    if maps is not None:
        shapes += [maps.ndim == 4, maps.size > 0, maps.shape[:2] == chosen.shape[::2]]
    if not all(shapes) or selection.sizes != sizes or selection.example not in range(objects):
        raise ValueError("scale selection of other objects or sizes")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("names that are not texts")
    for kernel_sizes in (chosen, *([] if maps is None else [maps])):
        if not np.issubdtype(kernel_sizes.dtype, np.integer) or not (
            0 <= kernel_sizes.min() <= kernel_sizes.max() <= _LARGEST_KERNEL
        ):
            raise ValueError("kernel sizes that are not small whole numbers")


def channel_correlations(selection: ScaleSelection, layer: str, item: int) -> list[Correlation]:
    """Return Pearson's r of object size and chosen kernel size by channel, for one test object."""
    chosen = selection.chosen[layer][:, item]
    return [pearson(selection.sizes, kernel_sizes) for kernel_sizes in chosen.T]


def count_strong(correlations: Iterable[Correlation], above: float = 0.9) -> int:
    """Return how many channels follow the object with an r above a bound."""
    return sum(c.r is not None and c.r > above for c in correlations)


def best_channels(correlations: Sequence[Correlation]) -> list[int]:
    """Return the channels by decreasing r; constant ones come last."""
    r = [-2.0 if correlation.r is None else correlation.r for correlation in correlations]
    return sorted(range(len(r)), key=lambda channel: -r[channel])
