"""Where objects go on the canvas, and the arrays that collect them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from equiscale.core.spec import CANVAS, OBJECT_SIZES, Split
from equiscale.data.schema import Images, Integers

PUBLISHED_SEED = 42


def draw_positions(num_classes: int, num_instances: int) -> Integers:
    """Draw (left, top) of every object as published: [3, 48, n, m, 2].

    The order of the draws is class, instance, object size, split, from the legacy generator.
    """
    generator = np.random.RandomState(PUBLISHED_SEED)
    shape = (len(Split), len(OBJECT_SIZES), num_classes, num_instances, 2)
    positions = np.empty(shape, np.int64)
    for label in range(num_classes):
        for instance in range(num_instances):
            for row, size in enumerate(OBJECT_SIZES):
                for split in range(len(Split)):
                    drawn = generator.randint(0, CANVAS - size + 1, 2)
                    positions[split, row, label, instance] = drawn
    return positions


def paste(canvas: npt.NDArray[np.uint8], patch: npt.NDArray[np.uint8], left: int, top: int) -> None:
    """Copy a patch [h, w, …] onto the canvas [64, 64, …] in place."""
    height, width = patch.shape[:2]
    canvas[top : top + height, left : left + width] = patch


def empty_images(num_classes: int, num_instances: int, channels: int) -> Images:
    """Return room for a dataset's images: [3, 48, n, m, 64, 64] or [3, 48, n, m, 64, 64, 3]."""
    colour = (3,) if channels == 3 else ()
    grid = (len(Split), len(OBJECT_SIZES), num_classes, num_instances)
    return np.empty((*grid, CANVAS, CANVAS, *colour), np.uint8)


def collect_instances(
    results: Iterable[Images], num_classes: int, num_instances: int, channels: int
) -> Images:
    """Gather [3, 48, 64, 64, …] of each instance, class after class: [3, 48, n, m, 64, 64, …]."""
    images = empty_images(num_classes, num_instances, channels)
    for index, result in enumerate(results):
        images[:, :, index // num_instances, index % num_instances] = result
    return images
