"""The scaled convolution by its definition, as in the paper."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.layers.scaled.geometry import Geometry, PaddingMode, Sides
from equiscale.layers.scaled.kernel_scaling import Interpolation, rescale_kernel
from equiscale.layers.scaled.pooling import PoolMode, scale_pool


def direct_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    groups: int,
    interpolation: Interpolation,
    pool: PoolMode | None,
    return_indices: bool,
) -> tuple[Tensor, Tensor | None]:
    """`[N, C, H, W] -> [N, O, (S,) H', W']`, or `[N, O]`: build the stack, then pool it."""
    stack = direct_stack(x, weight, bias, geometry, groups, interpolation)
    if pool is None:
        return stack, None
    values, indices = scale_pool(stack, pool, return_indices=True, areas=geometry.areas())
    return values, indices if return_indices else None


def direct_stack(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    groups: int,
    interpolation: Interpolation,
) -> Tensor:
    """`[N, C, H, W] -> [N, O, S, H', W']`: one convolution per kernel size."""
    maps = []
    for kernel_size in geometry.kernel_sizes:
        kernel = rescale_kernel(weight, kernel_size, interpolation)
        if geometry.is_valid:
            maps.append(_framed_valid_map(x, kernel, bias, geometry, groups))
        else:
            extended = extend(x, geometry.extension(kernel_size), geometry.padding_mode)
            maps.append(F.conv2d(extended, kernel, bias, geometry.stride, groups=groups))
    return torch.stack(maps, dim=2)


def extend(x: Tensor, sides: Sides, mode: PaddingMode) -> Tensor:
    """Pad the input by so many pixels on its left, right, top and bottom; negative ones crop."""
    if min(sides) < 0:
        x = F.pad(x, [min(side, 0) for side in sides])
    name = "constant" if mode == "zeros" else mode
    return F.pad(x, [max(side, 0) for side in sides], mode=name)


def _framed_valid_map(
    x: Tensor, kernel: Tensor, bias: Tensor | None, geometry: Geometry, groups: int
) -> Tensor:
    """Convolve where the kernel lies inside the input, then frame the map with zeros.

    With a stride, only every stride-th pixel of the framed map is computed.
    """
    margin = geometry.margin(kernel.shape[-1])
    (down, across), (height, width) = geometry.stride, geometry.output_size
    top, left = -(-margin // down), -(-margin // across)
    inside = x[:, :, top * down - margin :, left * across - margin :]
    if inside.shape[2] < kernel.shape[-1] or inside.shape[3] < kernel.shape[-1]:
        return x.new_zeros(x.shape[0], kernel.shape[0], height, width)
    result = F.conv2d(inside, kernel, bias, geometry.stride, groups=groups)
    bottom, right = height - top - result.shape[2], width - left - result.shape[3]
    return F.pad(result, (left, right, top, bottom))
