"""MNIST and Fashion-MNIST: resampled, smoothed, thresholded, as published for MNIST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from equiscale.build.canvas import PUBLISHED_SEED, collect_instances, draw_positions
from equiscale.build.extras import import_extra
from equiscale.build.idx import LabelledImages, read_pair
from equiscale.build.parallel import Progress, map_in_order, no_progress
from equiscale.core.errors import OptionError
from equiscale.core.spec import CANVAS, OBJECT_SIZES, Split
from equiscale.data.catalog import CARDS
from equiscale.data.schema import Images, Integers, StirArrays

if TYPE_CHECKING:
    import numpy.typing as npt

SOURCE_SIZE = 28

MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
FASHION_MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}


@dataclass(frozen=True)
class _Task:
    sources: Images  # [3, 28, 28], one per split
    positions: Integers  # [3, 48, 2]


def build_mnist(
    source: Path,
    num_instances: int | None = None,
    workers: int = 1,
    progress: Progress = no_progress,
) -> StirArrays:
    """Build the MNIST dataset from the four original idx files.

    Args:
        source: Directory of the idx files, gzipped or not.
        num_instances: Images per digit and split; None means the published 50.
        workers: Number of processes; the result does not depend on it.
        progress: Called as `progress(done, total)`.
    """
    return _build("mnist", source, MNIST_MD5, num_instances, workers, progress)


def build_fashion(
    source: Path,
    num_instances: int | None = None,
    workers: int = 1,
    progress: Progress = no_progress,
) -> StirArrays:
    """Build the same from Fashion-MNIST; arguments as in `build_mnist`."""
    return _build("fashion", source, FASHION_MD5, num_instances, workers, progress)


def _build(
    name: str,
    source: Path,
    checksums: Mapping[str, str],
    num_instances: int | None,
    workers: int,
    progress: Progress,
) -> StirArrays:
    card = CARDS[name]
    count = card.num_instances if num_instances is None else num_instances
    picked = _pick(
        read_pair(source, "train", checksums), read_pair(source, "t10k", checksums), count
    )
    positions = draw_positions(card.num_classes, count)
    tasks = [
        _Task(picked[:, label, instance], positions[:, :, label, instance])
        for label in range(card.num_classes)
        for instance in range(count)
    ]
    results = map_in_order(_render, tasks, workers, progress)
    images = collect_instances(results, card.num_classes, count, channels=1)
    return StirArrays.assemble(images, positions, card.class_names, card.metadata())


def _pick(train: LabelledImages, test: LabelledImages, count: int) -> Images:
    """Pick the images of every split, class and instance: [3, 10, m, 28, 28].

    Each class is shuffled once. Valid comes after train in the training part; test is its own.
    """
    fewest = int(min(np.bincount(train.labels).min() // 2, np.bincount(test.labels).min()))
    if not 1 <= count <= fewest:
        raise OptionError(f"{count} instances per class: choose 1…{fewest}")
    chosen = []
    for label in range(10):
        training, testing = _shuffled(train, label), _shuffled(test, label)
        chosen.append([training[:count], training[count : 2 * count], testing[:count]])
    return np.array(chosen).swapaxes(0, 1)


def _shuffled(part: LabelledImages, label: int) -> Images:
    images: Images = part.images[part.labels == label]
    np.random.RandomState(PUBLISHED_SEED).shuffle(images)
    return images


def _render(task: _Task) -> Images:
    """Render one instance of every split at every size: [3, 48, 64, 64]."""
    images = np.empty((len(Split), len(OBJECT_SIZES), CANVAS, CANVAS), np.uint8)
    for split, source in enumerate(task.sources):
        for row, size in enumerate(OBJECT_SIZES):
            left, top = task.positions[split, row]
            images[split, row] = render_grey(source, size, left, top)
    return images


def render_grey(source: Images, object_size: int, left: int, top: int) -> Images:
    """[28, 28] -> [64, 64]: resample, place, smooth, threshold softly, stretch to 0…255."""
    filters = import_extra("skimage.filters", "scikit-image")
    transform = import_extra("skimage.transform", "scikit-image")
    canvas: npt.NDArray[np.float64] = np.zeros((CANVAS, CANVAS))
    resampled = transform.resize(source, (object_size, object_size), order=3, preserve_range=True)
    canvas[top : top + object_size, left : left + object_size] = resampled
    smooth = filters.gaussian(canvas, sigma=7 / 8 * object_size / SOURCE_SIZE)
    soft = 2 / np.pi * np.arctan(0.02 * (smooth - 128))
    stretched = 255.0 * (soft - soft.min()) / (soft.max() - soft.min())
    return np.asarray(stretched.astype(np.uint8))
