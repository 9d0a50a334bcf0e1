"""Images per second of each builder, beside the naive way of doing the same.

The naive way is the obvious loop: for every single image render, shuffle or decode again. Both
run on one core and the ratio is what counts.

    python perf/build.py --mnist DIR --signs DIR
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from equiscale.build.emoji import build_emoji, find_icons
from equiscale.build.idx import read_pair
from equiscale.build.mnist import MNIST_MD5, build_mnist, render_smooth
from equiscale.build.photos import Box, Cutting, Photo, PhotoObject, PhotoTask, cut_photo
from equiscale.build.signs import SIGN_FILES, build_signs
from equiscale.build.vector import render_svg
from equiscale.core.spec import CANVAS, OBJECT_SIZES

PHOTO_SIDES = (2592, 1944)  # a typical street photo
OBJECT_SIDE = 200


def seconds(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def show(name: str, images: int, ours: float, naive_images: int, naive: float) -> None:
    """Print one row of the table."""
    fast, slow = images / ours, naive_images / naive
    print(f"| {name} | {fast:,.0f} | {slow:,.1f} | {fast / slow:.1f}× |")


def measure_emoji() -> None:
    """Naive: render the icon for each image, three times per size."""
    svg = find_icons()["smile"].read_bytes()

    def naive() -> None:
        for size in OBJECT_SIZES:
            for _ in range(3):
                render_svg(svg, "smile", parent_width=size, parent_height=size)

    show("emoji", 3 * 48 * 36, seconds(build_emoji), 3 * 48, seconds(naive))


def measure_signs(source: Path) -> None:
    """Naive: render the sign for each image, three times per size."""
    svg = next(source.rglob(f"{SIGN_FILES['stop']}.svg")).read_bytes()

    def naive() -> None:
        for size in OBJECT_SIZES:
            for _ in range(3):
                render_svg(svg, "stop", output_width=size, output_height=size)

    show("signs", 3 * 48 * 16, seconds(lambda: build_signs(source)), 3 * 48, seconds(naive))


def measure_mnist(source: Path) -> None:
    """Naive: select and shuffle the digit's images for each image."""
    part = read_pair(source, "train", MNIST_MD5)

    def naive() -> None:
        for size in OBJECT_SIZES:
            chosen = part.images[part.labels == 1]
            np.random.RandomState(42).shuffle(chosen)
            render_smooth(chosen[0], size, 0, 0, CANVAS)

    ours = seconds(lambda: build_mnist(source, num_instances=5))
    show("mnist", 3 * 48 * 10 * 5, ours, len(OBJECT_SIZES), seconds(naive))


def measure_photos() -> None:
    """Naive: decode and resize the whole photo for each image."""
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    photo = Image.fromarray(noise).resize(PHOTO_SIDES, Image.Resampling.BICUBIC)
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=90)
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory, "train.0.zip")
        with zipfile.ZipFile(archive, "w") as written:
            written.writestr("images/a.jpg", file.getvalue())
        where = Photo(archive, "images/a.jpg")
        box = Box(1000, 800, 1000 + OBJECT_SIDE, 800 + OBJECT_SIDE)
        task = PhotoTask(where, (PhotoObject(where, box, "sign", "a"),), Cutting(seed="bench"))

        def naive() -> None:
            for size in OBJECT_SIZES[::12]:
                with where.open() as opened, Image.open(opened) as image:
                    sides = [round(side * size / OBJECT_SIDE) for side in image.size]
                    image.resize((sides[0], sides[1]), Image.Resampling.LANCZOS)

        ours = seconds(lambda: cut_photo(task))
        show("trafficsign, aerial, folder", 48, ours, len(OBJECT_SIZES[::12]), seconds(naive))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", type=Path, help="directory of MNIST's idx files")
    parser.add_argument("--signs", type=Path, help="unpacked mapillary_sprite_source")
    arguments = parser.parse_args()
    print("| builder | images per second | the naive way | ratio |")
    print("| --- | --- | --- | --- |")
    measure_emoji()
    if arguments.mnist:
        measure_mnist(arguments.mnist)
    if arguments.signs:
        measure_signs(arguments.signs)
    measure_photos()


if __name__ == "__main__":
    main()
