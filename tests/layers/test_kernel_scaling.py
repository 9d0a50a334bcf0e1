from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from equiscale.layers.scaled.kernel_scaling import (
    INTERPOLATIONS,
    Interpolation,
    resampling_matrix,
    rescale_kernel,
)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("new_size", [3, 7, 8, 57])
def test_rescaling_is_that_of_torch(interpolation: Interpolation, new_size: int) -> None:
    weight = torch.randn(2, 3, 7, 7, dtype=torch.float64)
    smooth = interpolation in ("bicubic", "bilinear")
    expected = F.interpolate(
        weight,
        size=(new_size, new_size),
        mode=interpolation,
        align_corners=False if smooth else None,
        antialias=smooth and new_size < 7,
    )
    actual = rescale_kernel(weight, new_size, interpolation)
    torch.testing.assert_close(actual, expected * 49 / new_size**2)


def test_the_same_size_changes_nothing() -> None:
    for interpolation in INTERPOLATIONS:
        identity = torch.eye(5, dtype=torch.float64)
        torch.testing.assert_close(resampling_matrix(5, 5, interpolation), identity)
