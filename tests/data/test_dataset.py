from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.processes import run_python
from torch.utils.data import DataLoader

import equiscale
from equiscale.core.errors import OptionError
from equiscale.core.spec import OBJECT_SIZES, Scenario, Split
from equiscale.data.dataset import StirDataset, load_dataset
from equiscale.data.schema import StirArrays, write_arrays


@pytest.fixture(scope="module")
def noise(small_arrays: StirArrays) -> StirDataset:
    return StirDataset("noise", small_arrays)


def test_emoji_loads_from_its_file(emoji_file: Path) -> None:
    dataset = equiscale.load_dataset(emoji_file)
    assert (dataset.name, dataset.channels) == ("emoji", 1)
    assert (dataset.num_classes, dataset.num_instances) == (36, 1)
    assert dataset.class_names[33] == "smile"
    train = dataset.select(Split.TRAIN, Scenario.MID_TO_REST)
    assert train.images.shape == (16 * 36, 1, 64, 64)
    assert train.images.dtype == torch.float32
    assert [float(value) for value in train.images.aminmax()] == [0.0, 1.0]


def test_selection_is_aligned_and_in_file_order(noise: StirDataset) -> None:
    chosen = noise.select(Split.TEST, [17, 40, 40, 64])
    assert chosen.object_sizes.tolist() == [64] * 4 + [40] * 4 + [17] * 4
    assert chosen.labels.tolist() == [0, 0, 1, 1] * 3
    assert chosen.positions.shape == (12, 2)
    expected = noise.arrays.images[2, OBJECT_SIZES.index(40), 1, 0].transpose(2, 0, 1)
    assert torch.equal(chosen.images[4 + 2], torch.from_numpy(expected.copy()) / 255)


def test_items_equal_the_tensors_and_carry_their_metadata(noise: StirDataset) -> None:
    chosen = noise.select("valid", range(17, 33))
    assert len(chosen) == 16 * 4
    for index in (0, 17, -1):
        item = chosen[index]
        assert torch.equal(item.image, chosen.images[index])
        assert item.label == chosen.labels[index]
        assert item.object_size == chosen.object_sizes[index]
        assert torch.equal(item.position, chosen.positions[index])
    with pytest.raises(IndexError):
        chosen[64]
    batch = next(iter(DataLoader(noise.select("train", [64, 63]), batch_size=5)))
    assert batch.object_size.tolist() == [64, 64, 64, 64, 63]
    assert (batch.image.shape, batch.position.shape) == ((5, 3, 64, 64), (5, 2))


def test_only_what_is_selected_takes_memory(noise: StirDataset) -> None:
    third = noise.select(Split.TRAIN, "small2large")
    tracemalloc.start()
    _ = noise.select(Split.TRAIN)[0]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    images = third.images
    assert tracemalloc.get_traced_memory()[1] < 1.1 * images.numel() * images.element_size()
    tracemalloc.stop()


@pytest.mark.parametrize("sizes", [[], [16], [65, 64], 64, ["a", 65], [[64]]])
def test_impossible_sizes_are_refused(noise: StirDataset, sizes: Any) -> None:
    with pytest.raises(OptionError, match="17…64"):
        noise.select(Split.TRAIN, sizes)
    with pytest.raises(OptionError, match="train, valid or test"):
        noise.select("training")


def test_own_file_loads_by_path_and_by_name(tmp_path: Path, noise: StirDataset) -> None:
    write_arrays(tmp_path / "mine.npz", noise.arrays)
    by_path = load_dataset(tmp_path / "mine.npz")
    by_name = load_dataset("mine", root=tmp_path)
    assert by_path.name == by_name.name == "mine"
    assert by_path.content_hash == by_name.content_hash == noise.content_hash
    assert np.array_equal(by_path.arrays.images, noise.arrays.images)


def test_schema_and_catalog_do_not_load_torch() -> None:
    code = (
        "import sys, equiscale.data.schema, equiscale.data.catalog, equiscale.data.download;"
        "sys.exit('torch' in sys.modules or 'PIL' in sys.modules)"
    )
    run_python("-c", code)
