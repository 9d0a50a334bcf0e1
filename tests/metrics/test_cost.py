from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from equiscale import SConv2d, create_model
from equiscale.core.operations import scaled_operations, standard_operations
from equiscale.metrics import (
    count_operations,
    count_parameters,
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
    counted = count_operations(model, (1, 64, 64))
    expected = 16 * standard_operations(64, 7) + 16 * 32 * standard_operations(58, 7)
    assert counted.by_formula == expected
    assert counted.executed == expected + 2 * 32 * 36
    assert count_parameters(model) == 27_108


def test_the_fast_layer_executes_a_fraction() -> None:
    layer = SConv2d(2, 3, 7, pool="pixel", method="spectral")
    fast = count_operations(layer, (2, 32, 32))
    assert not layer._forward_hooks
    assert fast.by_formula == 6 * scaled_operations(32, 7)
    assert 0 < fast.executed < fast.by_formula
    slow = count_operations(SConv2d(2, 3, 7, pool="pixel", method="direct"), (2, 32, 32))
    assert slow.by_formula == fast.by_formula
    assert slow.by_formula <= slow.executed < 1.2 * slow.by_formula  # kernels are resampled too


def test_a_pooled_3d_convolution_counts_by_its_definition() -> None:
    model = create_model("conv3d", in_channels=1, num_classes=36)
    counted = count_operations(model, (1, 64, 64), batch_size=2)
    maps = 32 * 23 * 52 * 52
    assert counted.by_formula == 16 * scaled_operations(64, 7) + 2 * maps * 16 * 7**3
    assert 0 < counted.executed < counted.by_formula / 5


def test_seconds_are_per_image_and_without_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still outside the model, and ticks by 8, 1, 3 and 2 s inside."""
    ticks, now = iter([8.0, 1.0, 3.0, 2.0]), [0.0]

    class Slow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.shape == (4, 3, 5, 7)
            now[0] += next(ticks)
            return x

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert measure_inference_seconds(Slow(), (3, 5, 7), batch_size=4, repeats=3) == 2 / 4


def test_peak_memory_is_that_of_the_kernel() -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs Linux")
    found = peak_memory_bytes(torch.device("cpu"))
    line = next(
        row for row in status.read_text(encoding="utf-8").splitlines() if row.startswith("VmHWM")
    )
    assert found == pytest.approx(1024 * int(line.split()[1]), rel=0.02)
