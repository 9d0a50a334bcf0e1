from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from equiscale.core.spec import OBJECT_SIZES
from equiscale.data.catalog import CARDS
from equiscale.data.schema import StirArrays, read_arrays

PUBLISHED_SHA256 = "1877d706cfa8b2df76d55fe948c1e943bf37d3dd9f45ac70e7a5b6b8818eb6e0"


@pytest.fixture(scope="module")
def emoji(emoji_file: Path) -> StirArrays:
    return read_arrays(emoji_file)


def test_images_are_the_published_ones(emoji: StirArrays) -> None:
    images = emoji.images.reshape(3, 48, 36, 64, 64)
    assert hashlib.sha256(images.tobytes()).hexdigest() == PUBLISHED_SHA256
    assert emoji.content_hash == CARDS["emoji"].content_hash


def test_every_object_lies_in_its_box_and_fills_one_side(emoji: StirArrays) -> None:
    for split, row, label in [(0, 0, 0), (1, 20, 19), (2, 47, 35)]:
        size = OBJECT_SIZES[row]
        rows, columns = np.nonzero(emoji.images[split, row, label, 0])
        left, top = emoji.positions[split, row, label, 0]
        assert left <= columns.min()
        assert columns.max() < left + size
        assert top <= rows.min()
        assert rows.max() < top + size
        assert max(np.ptp(columns), np.ptp(rows)) >= size - 3  # some icons have a thin margin
