"""The definition against an independent one: scipy's correlation and torch's interpolation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.signal import correlate2d

from equiscale.layers import SConv2d, scaled_conv2d


def paper_stack(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> np.ndarray:
    """SConv2d as the paper words it: enlarge, rescale, correlate, add the bias, pad by zeros."""
    O, C, k, _ = weight.shape
    num_scales = (min(x.shape[2:]) - k) // 2 + 1
    maps = []
    for i in range(num_scales):
        size = k + 2 * i
        kernel = F.interpolate(weight, size=(size, size), mode="bicubic", align_corners=False)
        kernel = kernel * k**2 / size**2
        own = [
            [
                sum(correlate2d(x[n, c], kernel[o, c], mode="valid") for c in range(C))
                + bias[o].item()
                for o in range(O)
            ]
            for n in range(len(x))
        ]
        maps.append(np.pad(np.array(own), ((0, 0), (0, 0), (i, i), (i, i))))
    return np.stack(maps, axis=2)


@pytest.mark.parametrize("size", [(12, 12), (11, 14), (16, 9)])
@pytest.mark.parametrize("k", [3, 4])
def test_direct_is_what_the_paper_says(size: tuple[int, int], k: int) -> None:
    x = torch.randn(2, 2, *size, dtype=torch.float64)
    weight, bias = torch.randn(3, 2, k, k, dtype=torch.float64), torch.randn(3).double()
    actual = scaled_conv2d(x, weight, bias, method="direct")
    np.testing.assert_allclose(actual.numpy(), paper_stack(x, weight, bias), atol=1e-12)


def test_number_of_scales_of_the_paper() -> None:
    layer = SConv2d(1, 1, 7)
    assert len(layer.geometry((64, 64)).kernel_sizes) == 29
    assert len(layer.geometry((58, 58)).kernel_sizes) == 26
    assert layer.geometry((64, 64)).kernel_sizes[-1] == 63
    assert layer.geometry((64, 64)).output_size == (58, 58)


@pytest.mark.parametrize("stride", [1, 2, 3, (2, 3)])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_stride_keeps_every_stride_th_pixel(stride: int | tuple[int, int], padding: Any) -> None:
    x, weight = torch.randn(1, 2, 13, 12).double(), torch.randn(2, 2, 3, 3).double()
    options: Any = {"padding": padding, "method": "direct"}
    down, across = (stride, stride) if isinstance(stride, int) else stride
    expected = scaled_conv2d(x, weight, **options)[..., ::down, ::across]
    actual = scaled_conv2d(x, weight, stride=stride, **options)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_same_padding_is_that_of_conv2d_at_every_size(mode: Any) -> None:
    x, weight = torch.randn(1, 2, 9, 10).double(), torch.randn(3, 2, 3, 3).double()
    stack = scaled_conv2d(x, weight, padding="same", padding_mode=mode, method="direct")
    assert stack.shape == (1, 3, 4, 9, 10)
    conv = torch.nn.Conv2d(2, 3, 3, padding="same", padding_mode=mode, bias=False).double()
    conv.weight.data = weight
    torch.testing.assert_close(stack[:, :, 0], conv(x))


def test_kernel_sizes_may_be_few_geometric_or_shrunken() -> None:
    x, weight = torch.randn(1, 1, 15, 15), torch.randn(1, 1, 5, 5)
    few = scaled_conv2d(x, weight, kernel_sizes=(3, 5, 9, 15), method="direct")
    assert few.shape == (1, 1, 4, 13, 13)
    everything = scaled_conv2d(x, weight, method="direct")
    torch.testing.assert_close(few[:, :, 1, 1:-1, 1:-1], everything[:, :, 0])
    torch.testing.assert_close(few[:, :, 2, 1:-1, 1:-1], everything[:, :, 2])
