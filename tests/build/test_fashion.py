"""The real Fashion-MNIST, which Debian packages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from equiscale.build.idx import parse_idx, read_bytes
from equiscale.build.mnist import build_fashion

SOURCE = "/usr/share/datasets/fashion-mnist"


@pytest.mark.needs(SOURCE)
def test_garments_are_those_of_the_files_and_fill_their_boxes() -> None:
    found = build_fashion(Path(SOURCE), num_instances=1)
    assert found.class_names[:2] == ("t-shirt", "trouser")
    assert found.images.shape == (3, 48, 10, 1, 64, 64)
    images = parse_idx(read_bytes(Path(SOURCE) / "t10k-images-idx3-ubyte.gz"), 3, Path(SOURCE))
    labels = parse_idx(read_bytes(Path(SOURCE) / "t10k-labels-idx1-ubyte.gz"), 1, Path(SOURCE))
    for label in (1, 9):  # trousers and boots have clear outlines
        chosen = images[labels == label]
        np.random.RandomState(42).shuffle(chosen)
        row = 8  # 56 pixels: each original pixel becomes two
        left, top = found.positions[2, row, label, 0]
        box = found.images[2, row, label, 0][top : top + 56, left : left + 56]
        small = box.reshape(28, 2, 28, 2).mean(axis=(1, 3))
        assert np.corrcoef(small.ravel(), chosen[0].ravel())[0, 1] > 0.85
