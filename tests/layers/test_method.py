from __future__ import annotations

import pytest
import torch

from equiscale.layers.scaled.geometry import resolve_geometry
from equiscale.layers.scaled.method import choose_method, direct_work, spectral_work


def choice(size: int, k: int, kernel_sizes: tuple[int, ...] | None = None) -> str:
    x, weight = torch.empty(16, 4, size, size), torch.empty(16, 4, k, k)
    geometry = resolve_geometry((size, size), k, kernel_sizes, (1, 1), "valid", "zeros")
    return choose_method(x, weight, geometry)


def test_many_large_kernels_are_spectral_and_a_single_small_one_is_direct() -> None:
    """Both by an order of magnitude, on any machine."""
    assert choice(64, 7) == "spectral"
    assert choice(64, 3, (3,)) == "direct"


def test_work_of_the_definition_counts_every_product() -> None:
    x, weight = torch.empty(2, 3, 9, 8), torch.empty(4, 3, 3, 3)
    geometry = resolve_geometry((9, 8), 3, None, 1, "valid", "zeros")
    work = direct_work(x.shape, weight.shape, geometry)
    expected = 2 * 4 * 3 * (9 * 7 * 6 + 25 * 5 * 4 + 49 * 3 * 2)
    assert work.multiply_adds == pytest.approx(expected / 1e6)
    assert work.elements == pytest.approx(2 * 4 * 3 * 7 * 6 / 1e6)
    assert spectral_work(x.shape, weight.shape, geometry).num_scales == 3
    strided = resolve_geometry((9, 8), 3, (3,), 2, "valid", "zeros")
    work = direct_work(x.shape, weight.shape, strided)
    assert work.multiply_adds == pytest.approx(2 * 4 * 3 * 9 * 4 * 3 / 1e6)
