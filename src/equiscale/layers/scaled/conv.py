"""The scaled convolution as a function and as the module `SConv2d`."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.options import check_positive
from equiscale.layers.precision import autocast_is_on, single, without_autocast
from equiscale.layers.scaled.direct import direct_conv
from equiscale.layers.scaled.geometry import (
    Geometry,
    Padding,
    PaddingMode,
    check_kernel_sizes,
    check_padding,
    check_stride,
    resolve_geometry,
)
from equiscale.layers.scaled.kernel_scaling import Interpolation, check_interpolation
from equiscale.layers.scaled.method import Method, check_method, choose_method
from equiscale.layers.scaled.pooling import POOL_MODES, PoolMode, check_pool_mode
from equiscale.layers.scaled.spectral.interface import spectral_conv

# ruff: noqa: A002 - the name that torch.nn.functional.conv2d uses


@overload
def scaled_conv2d(
    input: Tensor,
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
    return_indices: Literal[False] = False,
    method: Method = "auto",
) -> Tensor: ...
@overload
def scaled_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    kernel_sizes: Sequence[int] | None = None,
    stride: int | tuple[int, int] = 1,
    padding: Padding = "valid",
    padding_mode: PaddingMode = "zeros",
    groups: int = 1,
    interpolation: Interpolation = "bicubic",
    pool: PoolMode,
    return_indices: Literal[True],
    method: Method = "auto",
) -> tuple[Tensor, Tensor]: ...
def scaled_conv2d(
    input: Tensor,
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
    """`[N, C, H, W] -> [N, O, S, H', W']`, or `[N, O, H', W']` or `[N, O]` when pooled.

    One kernel is applied at S sizes. With w_i the weight resampled from k×k to K_i×K_i and
    multiplied by k²/K_i², map i is

        y_i = pad_i(w_i ⋆ x + bias),

    an ordinary cross-correlation framed by zeros so that all maps have the size of map 0.

    If the input is enlarged by a factor that takes one kernel size to another, the response moves
    from one map to the other. This holds as far as interpolation is exact: for smooth kernels and
    inputs well, at the pixel grid's limit badly; and never across the border of the input, whose
    distance grows with the kernel.

    Args:
        input: `[N, C, H, W]`.
        weight: `[O, C / groups, k, k]` base kernel.
        bias: `[O]`, added before the frame of zeros.
        kernel_sizes: Sides K_i of the rescaled kernels, increasing and all odd or all even. The
            smallest determines the size of the maps. None takes k, k + 2, … as many as fit the
            input.
        stride: Keep every stride-th pixel of the aligned maps, down and across.
        padding: `"valid"`: kernels lie inside the input, maps are (n - K_0 + 1) pixels long.
            `"same"`: every map has the input's size and there is no frame of zeros.
        padding_mode: What lies beyond the border with `"same"`: `"zeros"`, `"reflect"`,
            `"replicate"` or `"circular"`.
        groups: Number of blocks of channels that do not mix, as in `torch.nn.functional.conv2d`.
        interpolation: How kernels are resampled: `"bicubic"`, `"bilinear"`, `"nearest"`, `"area"`.
        pool: `"pixel"`, `"slice"`, `"energy"`, `"mean_energy"`, or `"global"`, which is over
            pixels too: `[N, O]`; see `scale_pool`. None returns the stack. The stack is not built
            when `method` is spectral and the stride is 1.
        return_indices: With a pool, also return the chosen scale indices, int64: `[N, O, H', W']`
            for pixel, `[N, O]` for the others.
        method: `"direct"`, the definition, or `"spectral"`, the same numbers up to rounding in a
            fraction of the time; `"auto"` estimates which is faster. Only the direct method can
            be differentiated twice; under `torch.export`, auto takes it. A NaN or infinity in the
            input reaches the outputs whose windows contain it with direct, and the sample's whole
            output with spectral. Half precision and autocast compute in float32 with both.

    Raises:
        ShapeError: A tensor has the wrong shape, or the input is too small for the kernels.
        OptionError: An option does not exist or contradicts another.

    Examples:
        >>> x, weight = torch.randn(2, 3, 12, 12), torch.randn(8, 3, 5, 5)
        >>> scaled_conv2d(x, weight).shape
        torch.Size([2, 8, 4, 8, 8])
        >>> y, index = scaled_conv2d(x, weight, pool="slice", return_indices=True)
        >>> y.shape, index.shape
        (torch.Size([2, 8, 8, 8]), torch.Size([2, 8]))
    """
    _check_tensors(input, weight, bias, groups)
    _check_choices(interpolation, pool, method)
    if return_indices and pool is None:
        raise OptionError(f"return_indices needs a pool: one of {', '.join(POOL_MODES)}")
    geometry = resolve_geometry(
        (input.shape[2], input.shape[3]),
        weight.shape[-1],
        _whole_sizes(kernel_sizes),
        _pair(stride),
        padding,
        padding_mode,
    )
    if method == "auto":
        method = choose_method(input, weight, geometry)
    convolve = direct_conv if method == "direct" or input.shape[0] == 0 else spectral_conv
    autocast = autocast_is_on(input)
    with without_autocast(input):
        values, indices = convolve(
            single(input),
            single(weight),
            None if bias is None else single(bias),
            geometry,
            groups,
            interpolation,
            pool,
            return_indices,
        )
    if not autocast:
        values = values.to(input.dtype)
    return (values, indices) if indices is not None else values


def _pair(value: object) -> tuple[int, int]:
    """Return two steps, from one number or from two."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, Sequence) and len(value) == 2:
        down, across = value
        if isinstance(down, int) and isinstance(across, int):
            return down, across
    raise OptionError(f"stride must be an integer or two of them, got {value!r}")


def _whole_sizes(kernel_sizes: object) -> tuple[int, ...] | None:
    """Return the sizes as a tuple, from any iterable of integers."""
    if kernel_sizes is None:
        return None
    try:
        return tuple(map(operator.index, kernel_sizes))  # type: ignore[call-overload]
    except TypeError:
        raise OptionError(
            f"kernel_sizes must be None or a sequence of integers, got {kernel_sizes!r}"
        ) from None


def _check_tensors(input: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    if weight.ndim != 4 or weight.shape[2] != weight.shape[3] or weight.numel() == 0:
        raise ShapeError(
            f"weight must be [O, C, k, k] with a square kernel and no empty axis, "
            f"got {_shape(weight)}"
        )
    if not isinstance(groups, int) or groups < 1 or weight.shape[0] % groups:
        raise OptionError(
            f"groups must divide the {weight.shape[0]} output channels, got groups={groups}"
        )
    channels = weight.shape[1] * groups
    if input.ndim != 4 or input.shape[1] != channels:
        raise ShapeError(
            f"input must be [N, {channels}, H, W] for this weight {_shape(weight)} with "
            f"groups={groups}, got {_shape(input)}"
        )
    if 0 in input.shape[2:]:
        raise ShapeError(f"input must have at least one pixel, got {_shape(input)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"bias must be [{weight.shape[0]}], got {_shape(bias)}")
    if input.dtype != weight.dtype and not autocast_is_on(input):
        raise OptionError(
            f"input and weight must have one dtype, got {input.dtype} and {weight.dtype}"
        )


def _check_choices(interpolation: str, pool: str | None, method: str) -> None:
    check_interpolation(interpolation)
    check_method(method)
    if pool is not None:
        check_pool_mode(pool)


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


class SConv2d(nn.Module):
    """`[N, C, H, W] -> [N, O, S, H', W']`, or `[N, O, H', W']` or `[N, O]` when pooled.

    The scaled convolution of "Just a Matter of Scale?" (arXiv 2211.10288): one learned kernel
    applied at every size it can be enlarged to. It has the parameters of a `torch.nn.Conv2d`, with
    the same names, shapes and initialisation, so that the weights of one load into the other. See
    `scaled_conv2d` for the formula, for what it guarantees and where that ends.

    Args:
        in_channels: Number C of input channels.
        out_channels: Number O of output channels.
        kernel_size: Side k of the learned kernel.
        kernel_sizes: Sides of the rescaled kernels; None takes as many as fit the input.
        stride: Keep every stride-th pixel.
        padding: `"valid"` or `"same"`.
        padding_mode: What lies beyond the border with `"same"`.
        groups: Number of blocks of channels that do not mix.
        bias: Whether to learn a bias.
        interpolation: How kernels are resampled.
        pool: How to pool over scale, see `scale_pool`; None returns the stack.
        method: `"auto"`, `"direct"` or `"spectral"`.
        device: Of the parameters.
        dtype: Of the parameters.

    Examples:
        >>> x = torch.randn(2, 3, 32, 32)
        >>> SConv2d(3, 16, kernel_size=7)(x).shape
        torch.Size([2, 16, 13, 26, 26])
        >>> SConv2d(3, 16, kernel_size=7, pool="pixel")(x).shape
        torch.Size([2, 16, 26, 26])
    """

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
        _check_sizes(in_channels, out_channels, kernel_size, groups)
        _check_choices(interpolation, pool, method)
        check_padding(padding, padding_mode)
        check_stride(_pair(stride))
        self.kernel_sizes = _whole_sizes(kernel_sizes)
        if self.kernel_sizes is not None:
            check_kernel_sizes(self.kernel_sizes)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = _pair(stride)
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

    @overload
    def forward(
        self, x: Tensor, return_indices: Literal[False] = False, pool: PoolMode | None = None
    ) -> Tensor: ...
    @overload
    def forward(
        self, x: Tensor, return_indices: Literal[True], pool: PoolMode | None = None
    ) -> tuple[Tensor, Tensor]: ...
    def forward(
        self, x: Tensor, return_indices: bool = False, pool: PoolMode | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`[N, C, H, W] -> [N, O, S, H', W']`, or `[N, O, H', W']` or `[N, O]` when pooled.

        Args:
            x: Input.
            return_indices: With a pool, also return the chosen scale indices.
            pool: Instead of the layer's own, for this call; None takes the layer's.
        """
        return scaled_conv2d(  # type: ignore[call-overload,misc]
            x,
            self.weight,
            self.bias,
            kernel_sizes=self.kernel_sizes,
            stride=self.stride,
            padding=self.padding,
            padding_mode=self.padding_mode,
            groups=self.groups,
            interpolation=self.interpolation,
            pool=self.pool if pool is None else pool,
            return_indices=return_indices,
            method=self.method,
        )

    def geometry(self, input_size: tuple[int, int]) -> Geometry:
        """Return kernel sizes and output size for an input of this height and width."""
        return resolve_geometry(
            input_size,
            self.kernel_size,
            self.kernel_sizes,
            self.stride,
            self.padding,
            self.padding_mode,
        )

    def extra_repr(self) -> str:
        """Show the arguments that differ from their defaults."""
        defaults = {
            "kernel_sizes": None,
            "stride": (1, 1),
            "padding": "valid",
            "padding_mode": "zeros",
            "groups": 1,
            "interpolation": "bicubic",
            "pool": None,
            "method": "auto",
        }
        shown = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        for name, default in defaults.items():
            if getattr(self, name) != default:
                shown.append(f"{name}={getattr(self, name)!r}")
        if self.bias is None:
            shown.append("bias=False")
        return ", ".join(shown)


def _check_sizes(in_channels: int, out_channels: int, kernel_size: int, groups: int) -> None:
    check_positive(
        in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, groups=groups
    )
    if in_channels % groups or out_channels % groups:
        raise OptionError(
            f"groups must divide in_channels={in_channels} and out_channels={out_channels}, "
            f"got groups={groups}"
        )
