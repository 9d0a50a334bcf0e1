from __future__ import annotations

import pytest
import torch

from equiscale.layers.scaled.geometry import resolve_geometry
from equiscale.layers.scaled.method import choose_method, direct_work, spectral_work


def choice(batch: int, channels: int, size: int, k: int, sizes: tuple[int, ...] | None) -> str:
    x, weight = torch.empty(batch, channels, size, size), torch.empty(16, channels, k, k)
    geometry = resolve_geometry((size, size), k, sizes, (1, 1), "valid", "zeros")
    return choose_method(x, weight, geometry)


def test_the_paper_s_layers_are_spectral() -> None:
    assert choice(16, 1, 64, 7, None) == "spectral"
    assert choice(16, 16, 58, 7, None) == "spectral"


def test_few_small_kernels_are_direct() -> None:
    assert choice(16, 16, 64, 3, (3,)) == "direct"
    assert choice(4, 3, 32, 3, (3, 5)) == "direct"
    assert choice(1, 3, 9, 7, None) == "direct"


def test_work_of_the_definition_counts_every_product() -> None:
    x, weight = torch.empty(2, 3, 9, 8), torch.empty(4, 3, 3, 3)
    geometry = resolve_geometry((9, 8), 3, None, (1, 1), "valid", "zeros")
    work = direct_work(x.shape, weight.shape, geometry)
    expected = 2 * 4 * 3 * (9 * 7 * 6 + 25 * 5 * 4 + 49 * 3 * 2)
    assert work.multiply_adds == pytest.approx(expected / 1e6)
    assert work.elements == pytest.approx(2 * 4 * 3 * 7 * 6 / 1e6)
    assert spectral_work(x.shape, weight.shape, geometry).num_scales == 3


def test_a_stride_makes_the_definition_cheaper() -> None:
    x, weight = torch.empty(2, 3, 33, 33), torch.empty(4, 3, 3, 3)
    plain, strided = (
        direct_work(
            x.shape, weight.shape, resolve_geometry((33, 33), 3, None, step, "valid", "zeros")
        )
        for step in ((1, 1), (2, 2))
    )
    assert strided.multiply_adds < 0.3 * plain.multiply_adds
