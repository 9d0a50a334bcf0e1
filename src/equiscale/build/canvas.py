"""Where objects go on the canvas, and the arrays that collect them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from equiscale.core.spec import Layout, Split
from equiscale.data.schema import STORED_BYTES, Images, Integers

PUBLISHED_SEED = 42


def draw_positions(num_classes: int, num_instances: int, layout: Layout) -> Integers:
    """Draw (left, top) of every object as published: [3, s, n, m, 2].

    The order of the draws is class, instance, object size, split, from the legacy generator.
    """
    generator = np.random.RandomState(PUBLISHED_SEED)
    shape = (len(Split), len(layout.sizes), num_classes, num_instances, 2)
    positions = np.empty(shape, np.int64)
    for label in range(num_classes):
        for instance in range(num_instances):
            for row, size in enumerate(layout.sizes):
                for split in range(len(Split)):
                    drawn = generator.randint(0, layout.canvas - size + 1, 2)
                    positions[split, row, label, instance] = drawn
    return positions


def centre_positions(num_classes: int, num_instances: int, layout: Layout) -> Integers:
    """Return (left, top) of centred objects; 0 for one larger than the canvas: [3, s, n, m, 2]."""
    starts = [max(layout.canvas - size, 0) // 2 for size in layout.sizes]
    shape = (len(Split), len(layout.sizes), num_classes, num_instances, 2)
    return np.broadcast_to(np.array(starts)[:, None, None, None], shape).copy()


def paste(canvas: npt.NDArray[np.uint8], patch: npt.NDArray[np.uint8], left: int, top: int) -> None:
    """Copy a patch [h, w, …] onto the canvas [c, c, …] in place."""
    height, width = patch.shape[:2]
    canvas[top : top + height, left : left + width] = patch


def empty_images(num_classes: int, num_instances: int, channels: int, layout: Layout) -> Images:
    """Return room for a dataset's images, [3, s, n, m, c, c] or [3, s, n, m, c, c, 3].

    Large ones are in a temporary file without a name, which the system frees in the end.
    """
    grid = (len(Split), len(layout.sizes), num_classes, num_instances)
    shape = (*grid, layout.canvas, layout.canvas, *((3,) if channels == 3 else ()))
    if np.prod(shape, dtype=np.int64) <= STORED_BYTES:
        return np.empty(shape, np.uint8)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.uint8, "w+", shape=shape)


def collect_instances(
    results: Iterable[Images],
    num_classes: int,
    num_instances: int,
    channels: int,
    layout: Layout,
) -> Images:
    """Gather [3, s, c, c, …] of each instance, class after class: [3, s, n, m, c, c, …]."""
    images = empty_images(num_classes, num_instances, channels, layout)
    for index, result in enumerate(results):
        images[:, :, index // num_instances, index % num_instances] = result
    return images
