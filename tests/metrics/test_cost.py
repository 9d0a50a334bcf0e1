from __future__ import annotations

import pytest
import torch
from torch import nn

from equiscale import SConv2d, create_model
from equiscale.core.operations import scaled_operations, standard_operations
from equiscale.metrics.cost import (
    count_operations,
    measure_inference_seconds,
    peak_memory_bytes,
)


def loops(input_size: int, kernel_size: int) -> int:
    """Count multiplications and additions one window after another."""
    count = 0
    for _ in range(input_size - kernel_size + 1):
        for _ in range(input_size - kernel_size + 1):
            count += 2 * kernel_size * kernel_size
    return count


def test_the_formulas_are_the_papers() -> None:
    assert standard_operations(64, 7) == loops(64, 7) == pytest.approx(33e4, rel=0.01)
    assert scaled_operations(64, 7) == sum(loops(64, k) for k in range(7, 65, 2))
    assert scaled_operations(64, 7) == pytest.approx(38e6, rel=0.02)


def test_a_standard_network_executes_what_the_formula_says() -> None:
    model = create_model("standard", in_channels=1, num_classes=36)
    counted = count_operations(model, in_channels=1)
    expected = 16 * standard_operations(64, 7) + 16 * 32 * standard_operations(58, 7)
    assert counted.by_formula == expected
    assert counted.executed == expected + 2 * 32 * 36


def test_the_fast_layer_executes_a_fraction() -> None:
    layer = SConv2d(2, 3, 7, pool="pixel", method="spectral")
    fast = count_operations(layer, in_channels=2, image_size=32)
    assert fast.by_formula == 6 * scaled_operations(32, 7)
    assert 0 < fast.executed < fast.by_formula
    direct = SConv2d(2, 3, 7, pool="pixel", method="direct")
    slow = count_operations(direct, in_channels=2, image_size=32)
    assert slow.by_formula == fast.by_formula
    assert slow.by_formula <= slow.executed < 1.2 * slow.by_formula  # kernels are resampled too


def test_a_pooled_3d_convolution_counts_by_its_definition() -> None:
    model = create_model("conv3d", in_channels=1, num_classes=36)
    counted = count_operations(model, in_channels=1, batch_size=2)
    maps = 32 * 23 * 52 * 52
    assert counted.by_formula == 16 * scaled_operations(64, 7) + 2 * maps * 16 * 7**3
    assert 0 < counted.executed < counted.by_formula / 5


def test_the_model_is_left_without_hooks() -> None:
    layer = nn.Conv2d(1, 1, 3)
    count_operations(layer, in_channels=1, image_size=8)
    assert not layer._forward_hooks


def test_seconds_and_memory_are_positive() -> None:
    assert measure_inference_seconds(nn.Conv2d(1, 1, 3), 1, repeats=2) > 0
    peak = peak_memory_bytes(torch.device("cpu"))
    assert peak is not None
    assert peak > 10e6
