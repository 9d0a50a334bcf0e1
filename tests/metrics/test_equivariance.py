from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from equiscale import Split, StirDataset, load_dataset
from equiscale.core.errors import OptionError
from equiscale.metrics.equivariance import (
    SIZE_PAIRS,
    equivariance_error,
    measure_equivariance,
    relative_error,
)

Array = NDArray[np.float64]


class Blurs(nn.Module):
    """Two stages: the image itself, and a valid 7×7 convolution of it; a third without area."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(2, 1, 7, 7, generator=generator))

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        first = F.conv2d(x, self.weight)
        return {"image": x, "valid": first, "pooled": F.max_pool2d(x, 2)}

    def forward(self, x: Tensor) -> Tensor:
        return self.stages(x)["valid"].amax((2, 3))


class Black(nn.Module):
    def stages(self, x: Tensor) -> dict[str, Tensor]:
        bright = (x.mean((1, 2, 3), keepdim=True) > 0.18).float()
        return {"large only": x * bright}

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


@pytest.fixture(scope="module")
def dataset(emoji_file: Path) -> StirDataset:
    return load_dataset(emoji_file)


def cubic(t: float, a: float = -0.75) -> float:
    t = abs(t)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def resize_by_loops(image: Array, side: int) -> Array:
    """Bicubic with half-pixel centres and repeated borders, one output pixel after another."""
    length = image.shape[0]
    matrix = np.zeros((side, length))
    for target in range(side):
        source = (target + 0.5) * length / side - 0.5
        for tap in range(math.floor(source) - 1, math.floor(source) + 3):
            matrix[target, min(max(tap, 0), length - 1)] += cubic(source - tap)
    result: Array = matrix @ image @ matrix.T
    return result


def test_errors_equal_a_computation_by_loops(dataset: StirDataset) -> None:
    model = Blurs()
    measured = equivariance_error(model, dataset, batch_size=7)
    assert list(measured.errors) == ["image", "valid"]
    assert measured.errors["valid"].shape == (6, 36)
    for pair_index, item in ((0, 0), (3, 17), (5, 35)):
        boxes = []
        for size in SIZE_PAIRS[pair_index]:
            part = dataset.select(Split.TEST, [size])
            left, top = part.positions[item].tolist()
            maps = model.stages(part.images[item][None])["valid"][0].detach().double().numpy()
            side = size - 6
            boxes.append(maps[:, top : top + side, left : left + side])
        resized = np.stack([resize_by_loops(one, boxes[1].shape[1]) for one in boxes[0]])
        expected = ((resized - boxes[1]) ** 2).sum() / (boxes[1] ** 2).sum()
        assert measured.errors["valid"][pair_index, item] == pytest.approx(expected, rel=1e-4)


def test_equal_maps_have_no_error_and_doubled_ones_a_quarter() -> None:
    maps = torch.rand(2, 3, 5, 5)
    assert relative_error(maps, maps).tolist() == pytest.approx([0, 0], abs=1e-12)
    assert relative_error(maps, 2 * maps).tolist() == pytest.approx([0.25, 0.25])


def test_a_stage_without_area_is_named_and_not_measured(dataset: StirDataset) -> None:
    measured = equivariance_error(Blurs(), dataset)
    assert "32×32" in measured.skipped["pooled"]


def test_undefined_errors_are_counted_and_left_out(dataset: StirDataset) -> None:
    measured = equivariance_error(Black(), dataset)
    row = measured.errors["large only"]
    to_small = row[SIZE_PAIRS.index((32, 17))]
    assert np.isnan(to_small).any() or np.isinf(to_small).any()
    assert measured.undefined == np.count_nonzero(~np.isfinite(row))
    record = measure_equivariance(Black(), dataset)
    assert record is not None
    assert record.values["undefined"] == measured.undefined
    assert record.values["large only_17_32_undefined"] == 36
    assert record.values["large only_17_32"] is None


def test_a_model_without_stages_is_refused_by_name(dataset: StirDataset) -> None:
    with pytest.raises(OptionError, match="Linear has no method stages"):
        equivariance_error(nn.Linear(2, 2), dataset)
    assert measure_equivariance(nn.Linear(2, 2), dataset) is None
