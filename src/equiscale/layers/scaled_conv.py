"""The scaled convolution: its definition, the choice of method, and the module `SConv2d`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.registry import unknown_name_message
from equiscale.layers.geometry import (
    Geometry,
    Padding,
    PaddingMode,
    check_kernel_sizes,
    check_padding,
    check_stride,
    resolve_geometry,
)
from equiscale.layers.kernel_scaling import Interpolation, check_interpolation, rescale_kernel
from equiscale.layers.scale_pool import PoolMode, check_pool_mode, scale_pool

Method = Literal["auto", "direct", "spectral"]
METHODS: tuple[Method, ...] = get_args(Method)


def scaled_conv2d(
    input: Tensor,  # noqa: A002 - the name that torch.nn.functional.conv2d uses
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    kernel_sizes: Sequence[int] | None = None,
    stride: int | tuple[int, int] = 1,
    padding: Padding = "valid",
    padding_mode: PaddingMode = "zeros",
    groups: int = 1,
    interpolation: Interpolation = "bicubic",
    pool: PoolMode | None = None,
    return_indices: bool = False,
    method: Method = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """`[N, C, H, W] -> [N, O, S, H', W']`, or `[N, O, H', W']` when pooled."""
    step = (stride, stride) if isinstance(stride, int) else stride
    _check_tensors(input, weight, bias, groups)
    _check_choices(interpolation, pool, return_indices, method)
    geometry = resolve_geometry(
        (input.shape[2], input.shape[3]),
        weight.shape[-1],
        kernel_sizes,
        step,
        padding,
        padding_mode,
    )
    stack = direct_stack(input, weight, bias, geometry, groups, interpolation)
    return stack if pool is None else scale_pool(stack, pool, return_indices)


def direct_stack(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    groups: int,
    interpolation: Interpolation,
) -> Tensor:
    """`[N, C, H, W] -> [N, O, S, H', W']`: the definition, one convolution per kernel size."""
    maps = []
    for kernel_size in geometry.kernel_sizes:
        kernel = rescale_kernel(weight, kernel_size, interpolation)
        if geometry.padding == "same":
            extended = _extend(input, kernel_size, geometry.padding_mode)
            maps.append(F.conv2d(extended, kernel, bias, geometry.stride, groups=groups))
        else:
            maps.append(_framed_valid_map(input, kernel, bias, geometry, groups))
    return torch.stack(maps, dim=2)


def _extend(input: Tensor, kernel_size: int, mode: PaddingMode) -> Tensor:  # noqa: A002
    """Extend the input so that a valid convolution returns a map of the input's size."""
    before, after = (kernel_size - 1) // 2, kernel_size // 2
    name = "constant" if mode == "zeros" else mode
    return F.pad(input, (before, after, before, after), mode=name)


def _framed_valid_map(
    input: Tensor,  # noqa: A002
    kernel: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    groups: int,
) -> Tensor:
    """Convolve where the kernel lies inside the input, then frame the map with zeros.

    With a stride, only every stride-th pixel of the framed map is computed.
    """
    margin = geometry.margin(kernel.shape[-1])
    (down, across), (height, width) = geometry.stride, geometry.output_size
    top, left = -(-margin // down), -(-margin // across)
    inside = input[:, :, top * down - margin :, left * across - margin :]
    if inside.shape[2] < kernel.shape[-1] or inside.shape[3] < kernel.shape[-1]:
        return input.new_zeros(input.shape[0], kernel.shape[0], height, width)
    result = F.conv2d(inside, kernel, bias, geometry.stride, groups=groups)
    bottom, right = height - top - result.shape[2], width - left - result.shape[3]
    return F.pad(result, (left, right, top, bottom))


def _check_tensors(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
) -> None:
    if weight.ndim != 4 or weight.shape[2] != weight.shape[3] or weight.shape[2] == 0:
        raise ShapeError(f"weight must be [O, C, k, k] with a square kernel, got {_shape(weight)}")
    if groups < 1 or weight.shape[0] % groups:
        raise OptionError(
            f"groups must divide the {weight.shape[0]} output channels, got groups={groups}"
        )
    channels = weight.shape[1] * groups
    if input.ndim != 4 or input.shape[1] != channels:
        raise ShapeError(
            f"input must be [N, {channels}, H, W] for this weight {_shape(weight)} with "
            f"groups={groups}, got {_shape(input)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"bias must be [{weight.shape[0]}], got {_shape(bias)}")


def _check_choices(interpolation: str, pool: str | None, return_indices: bool, method: str) -> None:
    check_interpolation(interpolation)
    if method not in METHODS:
        raise OptionError(unknown_name_message("method", method, METHODS))
    if pool is not None:
        check_pool_mode(pool)
    elif return_indices:
        raise OptionError("return_indices needs a pool: 'pixel', 'slice' or 'energy'")


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


class SConv2d(nn.Module):
    """`[N, C, H, W] -> [N, O, S, H', W']`, or `[N, O, H', W']` when pooled."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        kernel_sizes: Sequence[int] | None = None,
        stride: int | tuple[int, int] = 1,
        padding: Padding = "valid",
        padding_mode: PaddingMode = "zeros",
        groups: int = 1,
        bias: bool = True,
        interpolation: Interpolation = "bicubic",
        pool: PoolMode | None = None,
        method: Method = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise OptionError(
                f"groups must divide in_channels={in_channels} and out_channels={out_channels}, "
                f"got groups={groups}"
            )
        _check_choices(interpolation, pool, False, method)
        check_padding(padding, padding_mode)
        if kernel_sizes is not None:
            check_kernel_sizes(kernel_sizes)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.kernel_sizes = None if kernel_sizes is None else tuple(kernel_sizes)
        self.stride = (stride, stride) if isinstance(stride, int) else stride
        check_stride(self.stride)
        self.padding: Padding = padding
        self.padding_mode: PaddingMode = padding_mode
        self.groups = groups
        self.interpolation: Interpolation = interpolation
        self.pool: PoolMode | None = pool
        self.method: Method = method
        shape = (out_channels, in_channels // groups, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(self.weight.new_empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias as `torch.nn.Conv2d` does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.weight[0].numel())
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, return_indices: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """`[N, C, H, W] -> [N, O, S, H', W']`, or `[N, O, H', W']` when pooled."""
        return scaled_conv2d(
            x,
            self.weight,
            self.bias,
            kernel_sizes=self.kernel_sizes,
            stride=self.stride,
            padding=self.padding,
            padding_mode=self.padding_mode,
            groups=self.groups,
            interpolation=self.interpolation,
            pool=self.pool,
            return_indices=return_indices,
            method=self.method,
        )
