"""The scaled convolution as a function and as the module `SConv2d`."""

from __future__ import annotations

import math
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
    Pair,
    check_kernel_sizes,
    check_padding,
    check_pair,
    check_stride,
    resolve_geometry,
)
from equiscale.layers.scaled.kernel_scaling import Interpolation, check_interpolation
from equiscale.layers.scaled.method import Method, check_method, choose_method, is_transformed
from equiscale.layers.scaled.pooling import POOL_MODES, PoolMode, check_pool_mode
from equiscale.layers.scaled.spectral.interface import spectral_conv

# ruff: noqa: A002 - the name that torch.nn.functional.conv2d uses


@overload
def scaled_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: Padding | int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    *,
    kernel_sizes: Sequence[int] | None = None,
    padding_mode: PaddingMode = "zeros",
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
    stride: int | Pair = 1,
    padding: Padding | int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    *,
    kernel_sizes: Sequence[int] | None = None,
    padding_mode: PaddingMode = "zeros",
    interpolation: Interpolation = "bicubic",
    pool: PoolMode,
    return_indices: Literal[True],
    method: Method = "auto",
) -> tuple[Tensor, Tensor]: ...
def scaled_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Pair = 1,
    padding: Padding | int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    *,
    kernel_sizes: Sequence[int] | None = None,
    padding_mode: PaddingMode = "zeros",
    interpolation: Interpolation = "bicubic",
    pool: PoolMode | None = None,
    return_indices: bool = False,
    method: Method = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """`[N, C, H, W] -> [N, O, S, H', W']`, or `[N, O, H', W']` or `[N, O]` when pooled.

    One kernel is applied at S sizes. With w_i the weight resampled from k×k to K_i×K_i and
    multiplied by k²/K_i², map i is

        y_i = pad_i(w_i ⋆ x + bias),

    an ordinary cross-correlation. pad_i frames the map with zeros, so that all maps have the size
    of map 0. An input without a batch axis, `[C, H, W]`, gives outputs without one.

    If the input is enlarged by the ratio of two kernel sizes, the response moves from one map to
    the other. This holds as far as interpolation is exact: well for smooth kernels and inputs,
    badly for details of one pixel. It does not hold near the border of the input, and large
    kernels are near it more often.

    Args:
        input: `[N, C, H, W]` or `[C, H, W]`.
        weight: `[O, C / groups, k, k]` base kernel.
        bias: `[O]`, added before the frame of zeros.
        stride: Keep every stride-th pixel of the aligned maps, down and across.
        padding: 0 or `"valid"`: kernels lie inside the input, and maps are n - K_0 + 1 pixels long.
            p, or a pair (down, across): maps are n + 2p - k + 1 pixels long, as with
            `torch.nn.functional.conv2d`. The padding grows with the kernel, so that there is no
            frame of zeros. `"same"`: the same with the size of the input, for even k too.
        dilation: Only 1; kernels are enlarged instead.
        groups: Number of blocks of channels that do not mix, as in `torch.nn.functional.conv2d`.
        kernel_sizes: Sides K_i of the rescaled kernels, increasing and all odd or all even. None
            takes k, k + 2, … as many as fit the input.
        padding_mode: What lies beyond the border: `"zeros"`, `"reflect"`, `"replicate"` or
            `"circular"`.
        interpolation: How kernels are resampled: `"bicubic"`, `"bilinear"`, `"nearest"`, `"area"`.
        pool: `"pixel"`, `"slice"`, `"energy"`, `"mean_energy"` or `"global"`, see `scale_pool`.
            None returns the stack. The spectral method with stride 1 pools without building it.
        return_indices: With a pool, also return the chosen scale indices, int64: `[N, O, H', W']`
            for pixel, `[N, O]` for the others.
        method: `"direct"` is the definition. `"spectral"` gives the same numbers up to rounding in
            a fraction of the time. `"auto"` estimates which is faster. Only the direct method has
            second derivatives, forward-mode differentiation and `torch.func` transforms; auto
            chooses it for the last two and under `torch.export`. A NaN or infinity in the input
            reaches the outputs whose windows contain it with direct, and the sample's whole
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
    _check_options(interpolation, pool, method, padding, padding_mode, dilation)
    if return_indices and pool is None:
        raise OptionError(f"return_indices needs a pool: one of {', '.join(POOL_MODES)}")
    x = input if input.ndim == 4 else input.unsqueeze(0)
    geometry = resolve_geometry(
        (x.shape[2], x.shape[3]), weight.shape[-1], kernel_sizes, stride, padding, padding_mode
    )
    if method == "auto":
        method = choose_method(x, weight, geometry, bias)
    elif method == "spectral":
        _refuse_transforms(x, weight, *([] if bias is None else [bias]))
    convolve = direct_conv if method == "direct" or x.shape[0] == 0 else spectral_conv
    with without_autocast(x):
        values, indices = convolve(
            single(x),
            single(weight),
            None if bias is None else single(bias),
            geometry,
            groups,
            interpolation,
            pool,
            return_indices,
        )
    if not autocast_is_on(x):
        values = values.to(x.dtype)
    if input.ndim == 3:
        values, indices = values.squeeze(0), None if indices is None else indices.squeeze(0)
    return values if indices is None else (values, indices)


def _check_tensors(input: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    _check_dtypes(input, weight, *([] if bias is None else [bias]))
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
    if input.ndim not in (3, 4) or input.shape[-3] != channels:
        raise ShapeError(
            f"input must be [N, {channels}, H, W] or [{channels}, H, W] for this weight "
            f"{_shape(weight)} with groups={groups}, got {_shape(input)}"
        )
    if 0 in input.shape[-2:]:
        raise ShapeError(f"input must have at least one pixel, got {_shape(input)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"bias must be [{weight.shape[0]}], got {_shape(bias)}")


def _check_dtypes(*tensors: Tensor) -> None:
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise OptionError(
                f"input, weight and bias must be tensors of floating-point numbers, got {kind}"
            )
    mixed = autocast_is_on(tensors[0])  # there, half precision and float32 may meet
    dtypes = [single(tensor).dtype if mixed else tensor.dtype for tensor in tensors]
    if len(set(dtypes)) > 1:
        found = ", ".join(str(tensor.dtype) for tensor in tensors)
        raise OptionError(f"input, weight and bias must have one dtype, got {found}")


def _check_options(
    interpolation: str,
    pool: str | None,
    method: str,
    padding: object,
    padding_mode: str,
    dilation: object,
) -> None:
    check_interpolation(interpolation)
    check_method(method)
    padding = check_padding(padding, padding_mode)
    if dilation not in (1, (1, 1), [1, 1]):
        raise OptionError(
            f"dilation must be 1, got {dilation!r}: a scaled convolution enlarges its kernel "
            "instead; choose the sizes with kernel_sizes"
        )
    if pool is None:
        return
    check_pool_mode(pool)
    wraps = padding_mode == "circular" and padding not in ("valid", (0, 0))
    if wraps and pool in ("energy", "mean_energy"):
        raise OptionError(
            f"pool={pool!r} cannot tell kernel sizes apart with padding_mode='circular': the sum "
            "of a map that wraps around depends on the sum of the input only; use another "
            "padding_mode or pool"
        )


def _refuse_transforms(*tensors: Tensor) -> None:
    if is_transformed(*tensors):
        raise OptionError(
            "method='spectral' supports neither torch.func transforms (vmap, grad, jvp, …) nor "
            "forward-mode differentiation; use method='direct', or 'auto', which chooses it"
        )


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


class SConv2d(nn.Module):
    """`[N, C, H, W] -> [N, O, S, H', W']`, or `[N, O, H', W']` or `[N, O]` when pooled.

    The scaled convolution of "Just a Matter of Scale?" (arXiv 2211.10288): one learned kernel,
    applied at many sizes. It takes the arguments of `torch.nn.Conv2d`, in the same order, and has
    its parameters, with the same names, shapes and initialisation: the weights of one load into
    the other, and with `num_scales=1` and a pool both compute the same. See `scaled_conv2d` for
    the formula and for what it guarantees.

    Args:
        in_channels: Number C of input channels.
        out_channels: Number O of output channels.
        kernel_size: Side k of the learned kernel, which is square.
        stride: Keep every stride-th pixel.
        padding: Pixels, `"valid"` or `"same"`, see `scaled_conv2d`.
        dilation: Only 1.
        groups: Number of blocks of channels that do not mix.
        bias: Whether to learn a bias.
        padding_mode: What lies beyond the border.
        device: Of the parameters.
        dtype: Of the parameters.
        pool: How to pool over scale, see `scale_pool`; None returns the stack.
        num_scales: Number S of kernel sizes k, k + 2, …; None takes as many as fit the input.
        kernel_sizes: The kernel sizes themselves, instead of `num_scales`.
        interpolation: How kernels are resampled.
        method: `"auto"`, `"direct"` or `"spectral"`.

    Examples:
        >>> x = torch.randn(2, 3, 32, 32)
        >>> SConv2d(3, 16, 7)(x).shape
        torch.Size([2, 16, 13, 26, 26])
        >>> SConv2d(3, 16, 7, stride=2, padding=3, pool="pixel", num_scales=4)(x).shape
        torch.Size([2, 16, 16, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: Padding | int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        pool: PoolMode | None = None,
        num_scales: int | None = None,
        kernel_sizes: Sequence[int] | None = None,
        interpolation: Interpolation = "bicubic",
        method: Method = "auto",
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise OptionError(
                f"groups must divide in_channels={in_channels} and out_channels={out_channels}, "
                f"got groups={groups}"
            )
        _check_options(interpolation, pool, method, padding, padding_mode, dilation)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _check_square(kernel_size)
        self.stride = check_stride(stride)
        self.padding = check_padding(padding, padding_mode)
        self.dilation = (1, 1)
        self.groups = groups
        self.padding_mode: PaddingMode = padding_mode
        self.pool: PoolMode | None = pool
        self.kernel_sizes = _choose_sizes(self.kernel_size[0], num_scales, kernel_sizes)
        self.interpolation: Interpolation = interpolation
        self.method: Method = method
        shape = (out_channels, in_channels // groups, *self.kernel_size)
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
            x: Input, `[N, C, H, W]` or `[C, H, W]`.
            return_indices: With a pool, also return the chosen scale indices.
            pool: Replaces the pool of the layer in this call; None keeps it.
        """
        return scaled_conv2d(  # type: ignore[call-overload,misc]
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            groups=self.groups,
            kernel_sizes=self.kernel_sizes,
            padding_mode=self.padding_mode,
            interpolation=self.interpolation,
            pool=self.pool if pool is None else pool,
            return_indices=return_indices,
            method=self.method,
        )

    def geometry(self, input_size: Pair) -> Geometry:
        """Return kernel sizes and output size for an input of this height and width."""
        return resolve_geometry(
            input_size,
            self.kernel_size[0],
            self.kernel_sizes,
            self.stride,
            self.padding,
            self.padding_mode,
        )

    def extra_repr(self) -> str:
        """Show the arguments that differ from their defaults."""
        defaults = {
            "padding": (0, 0),
            "groups": 1,
            "padding_mode": "zeros",
            "pool": None,
            "kernel_sizes": None,
            "interpolation": "bicubic",
            "method": "auto",
        }
        shown = [f"{self.in_channels}, {self.out_channels}"]
        shown += [f"kernel_size={self.kernel_size}, stride={self.stride}"]
        for name, default in defaults.items():
            if getattr(self, name) != default:
                shown.append(f"{name}={getattr(self, name)!r}")
        if self.bias is None:
            shown.append("bias=False")
        return ", ".join(shown)


def _check_square(kernel_size: object) -> Pair:
    height, width = check_pair("kernel_size", kernel_size, least=1)
    if height != width:
        raise OptionError(f"kernel_size must be one number or a square pair, got {kernel_size!r}")
    return height, width


def _choose_sizes(
    base_size: int, num_scales: int | None, kernel_sizes: Sequence[int] | None
) -> tuple[int, ...] | None:
    if num_scales is None:
        return check_kernel_sizes(kernel_sizes)
    check_positive(num_scales=num_scales)
    if kernel_sizes is not None:
        raise OptionError("give num_scales or kernel_sizes, not both")
    return tuple(range(base_size, base_size + 2 * num_scales, 2))
