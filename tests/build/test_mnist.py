from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest
from skimage.filters import gaussian
from skimage.transform import resize

from equiscale.build.idx import ChecksumError, parse_idx, read_bytes, read_pair
from equiscale.build.mnist import (
    MNIST_MD5,
    build_mnist,
    build_mnist_large_scale,
    render_plain,
)
from equiscale.core.errors import OptionError
from equiscale.core.spec import Layout
from equiscale.data.schema import Images, Integers, StirArrays

pytestmark = pytest.mark.needs("npm")
COUNT = 2


@pytest.fixture(scope="module")
def mnist(mnist_source: Path) -> StirArrays:
    return build_mnist(mnist_source, num_instances=COUNT, workers=2)


def read(source: Path, part: str) -> tuple[Images, Images]:
    images = parse_idx(read_bytes(source / f"{part}-images-idx3-ubyte"), 3, source)
    labels = parse_idx(read_bytes(source / f"{part}-labels-idx1-ubyte"), 1, source)
    return images, labels


def naive_image(
    part: tuple[Images, Images], digit: int, pick: int, size: int, place: Integers
) -> Images:
    """The recipe word for word, one shuffle per image."""
    chosen = part[0][part[1] == digit]
    np.random.RandomState(42).shuffle(chosen)
    small = resize(chosen[pick], (size, size), order=3, preserve_range=True)  # type: ignore[no-untyped-call]
    left, top = place
    image = np.pad(small, ((top, 64 - size - top), (left, 64 - size - left)))
    image = gaussian(image, sigma=7 / 8 * size / 28)  # type: ignore[no-untyped-call]
    image = 2 / np.pi * np.arctan(0.02 * (image - 128))
    image = 255 * (image - image.min()) / (image.max() - image.min())
    return np.asarray(image.astype(np.uint8))


def test_images_and_positions_follow_the_recipe(mnist: StirArrays, mnist_source: Path) -> None:
    parts = [read(mnist_source, "train"), read(mnist_source, "train"), read(mnist_source, "t10k")]
    generator = np.random.RandomState(42)
    checked = 0
    for digit in range(10):
        for instance in range(COUNT):
            for row, size in enumerate(range(64, 16, -1)):
                for split in range(3):
                    place = generator.randint(0, 64 - size + 1, 2)
                    assert np.array_equal(mnist.positions[split, row, digit, instance], place)
                    if row % 16 == 3 and digit % 4 == 1:
                        pick = instance + (COUNT if split == 1 else 0)
                        expected = naive_image(parts[split], digit, pick, size, place)
                        found = mnist.images[split, row, digit, instance]
                        assert np.array_equal(found, expected)
                        checked += 1
    assert checked == 3 * 3 * 3 * COUNT


@pytest.mark.slow
def test_large_scale_digits_are_centred_and_cut_beyond_the_canvas(mnist_source: Path) -> None:
    found = build_mnist_large_scale(mnist_source, 1, Layout(112, (224, 112, 28)))
    centred = [[max(112 - size, 0) // 2] * 2 for size in found.sizes]
    assert (found.positions == np.array(centred)[:, None, None]).all()
    whole = build_mnist(mnist_source, 1, Layout.of(224, [224]))
    near = found.images[2, 0, 7, 0].astype(int)
    far = whole.images[2, 0, 7, 0][56:168, 56:168].astype(int)
    inside = np.abs(near - far)[40:-40, 40:-40]  # the smoothing knows the canvas only
    assert inside.max() <= 3


def test_plain_rendering_is_antialiased_and_centred() -> None:
    stripes = np.tile(np.array([0, 255], np.uint8), (28, 14))
    shown = render_plain(stripes, 14, 29, 29, 72)
    assert (np.abs(shown[30:42, 31:41].astype(int) - 128) < 12).all()
    assert shown.sum() == shown[29:43, 29:43].sum()
    assert np.array_equal(render_plain(stripes, 28, 22, 22, 72)[22:50, 22:50], stripes)


def test_gzipped_files_are_read_alike(mnist_source: Path, tmp_path: Path) -> None:
    for path in mnist_source.glob("t10k*"):
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    zipped, plain = (read_pair(source, "t10k", MNIST_MD5) for source in (tmp_path, mnist_source))
    assert np.array_equal(zipped.images, plain.images)
    assert np.array_equal(zipped.labels, plain.labels)


def test_a_changed_file_is_refused(mnist_source: Path, tmp_path: Path) -> None:
    shutil.copytree(mnist_source, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(ChecksumError, match="27ae3e4e09519cfbb04c329615203637"):
        build_mnist(tmp_path)


@pytest.mark.parametrize("count", [0, 893])
def test_impossible_counts_are_refused(mnist_source: Path, count: int) -> None:
    with pytest.raises(OptionError, match="choose 1…892"):
        build_mnist(mnist_source, num_instances=count)
