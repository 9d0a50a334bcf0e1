"""The architectures of earlier work, against formulations written to be read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.models import create_model


def body(model: nn.Module, x: Tensor, padding: int = 0) -> Tensor:
    """Two convolutions, global maximum, head, with the weights taken in order from the end."""
    w1, b1, w2, b2, w3, b3 = list(model.parameters())[-6:]
    first = F.relu(F.conv2d(x, w1, b1, padding=padding))
    second = F.relu(F.conv2d(first, w2, b2, padding=padding))
    return F.linear(second.amax((2, 3)), w3, b3)


def build(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = create_model(name, in_channels=2, num_classes=4, **options)
    if name == "spatial_transform":  # away from the identity
        nn.init.normal_(model.localisation[-1].weight, std=0.05)  # type: ignore[index, union-attr]
    return model


def test_standard_is_two_convolutions() -> None:
    model, x = build("standard"), torch.rand(2, 2, 20, 23)
    torch.testing.assert_close(model(x), body(model, x))


def test_spatial_transform_samples_the_learned_grid() -> None:
    model, x = build("spatial_transform", image_size=(24, 28)), torch.rand(2, 2, 24, 28)
    weights = list(model.parameters())[:8]
    h = F.relu(F.max_pool2d(F.conv2d(x, weights[0], weights[1], padding=1), 2))
    h = F.relu(F.max_pool2d(F.conv2d(h, weights[2], weights[3], padding=1), 2))
    h = F.relu(F.linear(h.flatten(1), weights[4], weights[5]))
    theta = F.linear(h, weights[6], weights[7]).view(-1, 2, 3)
    grid = F.affine_grid(theta, [2, 2, 24, 28], align_corners=False)
    sampled = F.grid_sample(x, grid, align_corners=False)
    assert not torch.allclose(sampled, x)
    torch.testing.assert_close(model(x), body(model, sampled))


def test_spatial_transform_names_another_image_size() -> None:
    with pytest.raises(ShapeError, match=r"built for images of 24×28 pixels, got 24×24"):
        build("spatial_transform", image_size=(24, 28))(torch.rand(1, 2, 24, 24))
    for size in ((24, 28, 3), "64", 12, (24, 12), 24.5, None):
        with pytest.raises(OptionError, match="image_size must be"):
            build("spatial_transform", image_size=size)


def test_ensemble_averages_the_logits_of_a_pyramid() -> None:
    model, x = build("ensemble"), torch.rand(2, 2, 24, 20)
    row = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
    levels = [x]
    for _ in range(2):
        padded = F.pad(levels[-1], (2, 2, 2, 2), mode="reflect")
        kernel = torch.outer(row, row)[None, None]
        blurred = torch.cat([F.conv2d(padded[:, c : c + 1], kernel) for c in range(2)], dim=1)
        levels.append(F.avg_pool2d(blurred, 2))  # what bilinear halving is for even sizes
    expected = torch.stack([body(model, level, padding=3) for level in levels]).mean(0)
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(
    ("name", "option"),
    [("xu", "kernel_sizes"), ("kanazawa", "exponents"), ("hermite", "scales"), ("disco", "scales")],
)
def test_bad_lists_are_named(name: str, option: str) -> None:
    for value in (5, "abc", [], [None], [1.0, float("inf")]):
        with pytest.raises(OptionError, match=f"{option} must be a list of numbers, got"):
            build(name, **{option: value})
