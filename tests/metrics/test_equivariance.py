from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from equiscale.core.errors import ShapeError
from equiscale.metrics import crop_boxes, equivariance_error

Array = NDArray[np.float64]


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


def test_error_equals_a_computation_by_loops() -> None:
    """Objects of several sizes on a canvas of 40, maps six pixels smaller."""
    generator = torch.Generator().manual_seed(0)
    maps_a, maps_b = (torch.rand(3, 2, 34, 34, generator=generator) for _ in "ab")
    boxes_a = torch.tensor([[0, 5, 20], [8, 3, 30], [19, 20, 20]])
    boxes_b = torch.tensor([[10, 0, 30], [4, 4, 12], [2, 9, 30]])
    errors = equivariance_error(maps_a, maps_b, boxes_a, boxes_b, canvas=40)
    for item in range(3):
        objects = []
        for maps, boxes in ((maps_a, boxes_a), (maps_b, boxes_b)):
            left, top, size = boxes[item].tolist()
            side = size - 6
            array = maps[item].double().numpy()
            objects.append(array[:, top : top + side, left : left + side])
        resized = np.stack([resize_by_loops(one, objects[1].shape[1]) for one in objects[0]])
        expected = ((resized - objects[1]) ** 2).sum() / (objects[1] ** 2).sum()
        assert float(errors[item]) == pytest.approx(expected, rel=1e-9)


def test_undefined_errors_are_nan_and_infinity() -> None:
    zero, one = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4)
    assert equivariance_error(zero, zero).isnan().all()
    assert equivariance_error(one, zero).isinf().all()


def test_wrong_maps_and_boxes_are_named() -> None:
    maps, boxes = torch.rand(2, 1, 20, 20), torch.tensor([[0, 0, 10], [0, 0, 12]])
    with pytest.raises(ShapeError, match="one size"):
        crop_boxes(maps, boxes, canvas=20)
    with pytest.raises(ShapeError, match="leave nothing to compare of an object of 10 pixels"):
        crop_boxes(maps[:1], boxes[:1], canvas=40)
    with pytest.raises(ShapeError, match="given together"):
        equivariance_error(maps, maps, boxes)
    with pytest.raises(ShapeError, match="equal N and O"):
        equivariance_error(maps, maps[:1])
