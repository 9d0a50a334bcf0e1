"""Convolutions with a sparse backward pass.

Before a global max pooling, only one pixel per sample and channel has a non-zero gradient. These
convolutions visit only such pixels if there are few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.core.registry import check_name
from equiscale.layers.baselines.fourier_conv3d import large_conv3d
from equiscale.layers.scaled.geometry import PADDINGS, Padding

# ruff: noqa: A002 - the name that torch.nn.functional.conv2d uses

SPARSE_SHARE = 1 / 128
"""Share of non-zero output gradients up to which the backward pass is sparse."""

CHUNK = 1 << 22
"""Numbers in the patches gathered at a time, 16 MB in float32."""


def frugal_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    padding: int = 0,
    dilation: int = 1,
) -> Tensor:
    """`[N, C, H, W] -> [N, O, H', W']`: `conv2d` with a sparse backward pass.

    Values and gradients are those of `torch.nn.functional.conv2d`, and it can be differentiated
    twice. The input is padded in a separate step, because padded convolutions with large kernels
    are slow on CPUs.

    Examples:
        >>> frugal_conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3), padding=1)[0, 0, 0]
        tensor([4., 6., 6., 4.])
    """
    padded = F.pad(input, [padding] * 4) if padding else input
    return frugal_conv(padded, weight, bias, dilation)


class FrugalConv2d(nn.Conv2d):
    """`[N, C, H, W] -> [N, O, H', W']`: `nn.Conv2d` for networks that end in a global maximum.

    Parameters and values are those of `nn.Conv2d`; the backward pass is sparse.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Side of the kernels; odd.
        padding: `"valid"`, or `"same"`: the output has the size of the input.

    Examples:
        >>> FrugalConv2d(1, 4, 7, padding="same")(torch.zeros(2, 1, 20, 16)).shape
        torch.Size([2, 4, 20, 16])
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, padding: Padding = "valid"
    ) -> None:
        if kernel_size % 2 == 0:
            raise OptionError(f"kernel_size must be odd, got {kernel_size}")
        check_name("padding", padding, PADDINGS)
        super().__init__(in_channels, out_channels, kernel_size, padding=padding)

    def forward(self, input: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, O, H', W']`."""
        if not self.training:
            return super().forward(input)
        margin = self.kernel_size[0] // 2 if self.padding == "same" else 0
        return frugal_conv2d(input, self.weight, self.bias, margin)


def frugal_conv(input: Tensor, weight: Tensor, bias: Tensor | None, dilation: int = 1) -> Tensor:
    """`[N, C, *] -> [N, O, *']`: `conv2d` over two axes, undilated `large_conv3d` over three."""
    given = (input, weight) if bias is None else (input, weight, bias)
    trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    if not trained or torch.compiler.is_exporting():
        return _convolve(input, weight, bias, dilation)
    output: Tensor = _FrugalConv.apply(input, weight, bias, dilation)  # type: ignore[no-untyped-call]
    return output


def _convolve(input: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
    if input.ndim == 5:
        return large_conv3d(input, weight, bias)
    return F.conv2d(input, weight, bias, dilation=dilation)


class _FrugalConv(torch.autograd.Function):
    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
        return _convolve(input, weight, bias, dilation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401
        ctx.save_for_backward(*inputs[:2])
        ctx.dilation = inputs[3]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:2])
        # Autocast may have rounded the input and the gradient; the weight is kept exact.
        x_, gradient = x.to(weight.dtype), gradient.to(weight.dtype)
        if torch.is_grad_enabled():  # for second derivatives
            pair = _dense_gradients(gradient, x_, weight, ctx.dilation, wanted)
        else:
            pair = torch.ops.equiscale.conv_gradients(
                gradient.contiguous(), x_, weight, ctx.dilation, wanted
            )
        dx = pair[0].to(x.dtype) if wanted[0] else None
        db = gradient.transpose(0, 1).flatten(1).sum(1) if ctx.needs_input_grad[2] else None
        return dx, pair[1] if wanted[1] else None, db, None


def _conv_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, dilation: int, wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    """`[N, O, *'] -> [N, C, *], [O, C, k, ...]`; a gradient that is not needed is empty."""
    if gradient.count_nonzero() <= SPARSE_SHARE * gradient.numel():
        return _sparse_gradients(gradient, x, weight, dilation, wanted)
    return _dense_gradients(gradient, x, weight, dilation, wanted)


def _conv_gradients_shapes(
    gradient: Tensor, x: Tensor, weight: Tensor, dilation: int, wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x) if wanted[0] else x.new_empty(0)
    return dx, torch.empty_like(weight) if wanted[1] else weight.new_empty(0)


# A custom operator, so that the compiler does not trace it.
_LIBRARY = torch.library.Library("equiscale", "FRAGMENT")
_LIBRARY.define(
    "conv_gradients(Tensor gradient, Tensor x, Tensor weight, int dilation, bool[] wanted)"
    " -> (Tensor, Tensor)"
)
_LIBRARY.impl("conv_gradients", _conv_gradients, "CompositeExplicitAutograd")
torch.library.register_fake("equiscale::conv_gradients", _conv_gradients_shapes, lib=_LIBRARY)


def _dense_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, dilation: int, wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    dx, dw = x.new_empty(0), weight.new_empty(0)
    if wanted[0]:
        dx = _torch_gradient(gradient, x, weight, dilation, 0)
    if wanted[1] and x.ndim == 4 and weight.shape[1] == 1:
        # For a single channel, a product with the unfolded image is faster than torch's routine.
        patches = _patches(x, weight.shape[-1], dilation)[:, 0].flatten(3).flatten(0, 2)
        dw = (gradient.transpose(0, 1).flatten(1) @ patches).view_as(weight)
    elif wanted[1]:
        dw = _torch_gradient(gradient, x, weight, dilation, 1)
    return dx, dw


def _torch_gradient(
    gradient: Tensor, x: Tensor, weight: Tensor, dilation: int, which: int
) -> Tensor:
    """Return torch's gradient of the input (0) or the weight (1)."""
    ones, zeros, mask = [1] * (x.ndim - 2), [0] * (x.ndim - 2), [which == 0, which == 1, False]
    dilations = [dilation] * (x.ndim - 2)
    result: Tensor = torch.ops.aten.convolution_backward(
        gradient, x, weight, None, ones, zeros, dilations, False, zeros, 1, mask
    )[which]
    return result


def _sparse_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, dilation: int, wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    positions = gradient.nonzero()
    values = gradient[tuple(positions.T)]
    step = max(1, CHUNK // weight[0].numel())
    dx, dw = x.new_zeros(x.numel() if wanted[0] else 0), torch.zeros_like(weight).flatten(1)
    pixels, kernels = x.flatten(), weight.flatten(1)
    for chosen, value in zip(positions.split(step), values[:, None].split(step), strict=True):
        sample, channel, *corner = chosen.unbind(1)
        places = pixels_under_kernels(sample, corner, x.shape, weight.shape, dilation)
        if wanted[0]:
            dx.scatter_add_(0, places.flatten(), (kernels[channel] * value).flatten())
        if wanted[1]:
            patches = pixels.index_select(0, places.flatten()).view(places.shape)
            dw.index_add_(0, channel, patches * value)
    dx = dx.view_as(x) if wanted[0] else x.new_empty(0)
    return dx, dw.view_as(weight) if wanted[1] else weight.new_empty(0)


def pixels_under_kernels(
    sample: Tensor,
    corner: Sequence[Tensor],
    input_shape: Sequence[int],
    kernel_shape: Sequence[int],
    dilation: int = 1,
) -> Tensor:
    """`P samples and corners -> [P, (C, k, ...)]`: places in the flat input under each kernel."""
    strides = [math.prod(input_shape[axis + 1 :]) for axis in range(len(input_shape))]
    first = sample * strides[0]
    for index, stride in zip(corner, strides[2:], strict=True):
        first = first + index * stride
    steps = [1] + [dilation] * len(corner)
    taps = torch.zeros((), dtype=torch.long, device=sample.device)
    for length, step, stride in zip(kernel_shape[1:], steps, strides[1:], strict=True):
        taps = taps[..., None] + step * stride * torch.arange(length, device=sample.device)
    return first[:, None] + taps.flatten()


def _patches(x: Tensor, kernel_size: int, dilation: int) -> Tensor:
    """`[N, C, H, W] -> [N, C, H', W', k, k]`: the pixels under each kernel, as a view."""
    reach = dilation * (kernel_size - 1) + 1
    return x.unfold(2, reach, 1).unfold(3, reach, 1)[..., ::dilation, ::dilation]
