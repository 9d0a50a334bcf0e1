from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from equiscale.core.errors import OptionError
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


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "area"])
@pytest.mark.parametrize("new_size", [3, 9, 21])
def test_a_constant_kernel_keeps_its_sum(interpolation: Interpolation, new_size: int) -> None:
    constant = torch.ones(1, 1, 7, 7, dtype=torch.float64)
    assert rescale_kernel(constant, new_size, interpolation).sum() == pytest.approx(49)


def test_the_same_size_changes_nothing() -> None:
    for interpolation in INTERPOLATIONS:
        identity = torch.eye(5, dtype=torch.float64)
        torch.testing.assert_close(resampling_matrix(5, 5, interpolation), identity)


def test_unknown_interpolation_names_the_known() -> None:
    with pytest.raises(OptionError, match="did you mean 'bicubic'"):
        resampling_matrix(3, 5, "bicubc")
