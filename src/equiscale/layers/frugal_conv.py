"""A convolution whose backward pass costs what its gradient is worth.

Behind a maximum over branches and a global max pooling, only one pixel per sample and channel
carries a gradient. The ordinary backward pass multiplies all the zeros; this one looks first.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

from equiscale.core.errors import OptionError
from equiscale.layers.geometry import Padding, check_padding

SPARSE_SHARE = 1 / 128
"""Share of non-zero output gradients up to which only those are worked through."""

CHUNK = 1 << 22
"""Numbers in the patches that are gathered at a time, 16 MB in float32."""


def frugal_conv2d(
    input: Tensor,  # noqa: A002 - the name that torch.nn.functional.conv2d uses
    weight: Tensor,
    bias: Tensor | None = None,
    padding: int = 0,
    dilation: int = 1,
) -> Tensor:
    """`[N, C, H, W] -> [N, O, H', W']`: `conv2d`, with a backward pass that skips zeros.

    Values and gradients are those of `torch.nn.functional.conv2d`; second derivatives work too.
    Padding is a copy of its own, because padded convolutions with large kernels are slow on CPUs.

    Example:
        >>> frugal_conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3), padding=1)[0, 0, 0]
        tensor([4., 6., 6., 4.])
    """
    padded = F.pad(input, [padding] * 4) if padding else input
    trained = torch.is_grad_enabled() and (padded.requires_grad or weight.requires_grad)
    if not trained or torch.compiler.is_exporting():
        return F.conv2d(padded, weight, bias, dilation=dilation)
    output: Tensor = _FrugalConv.apply(padded, weight, dilation)  # type: ignore[no-untyped-call]
    return output if bias is None else output + bias[:, None, None].to(output.dtype)


class FrugalConv2d(nn.Conv2d):
    """`[N, C, H, W] -> [N, O, H', W']`: `nn.Conv2d` for networks that end in a global maximum.

    Parameters and values are those of `nn.Conv2d`; in training the backward pass skips zeros.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Side of the kernels; odd.
        padding: `"valid"`, or `"same"`: the output has the size of the input.

    Example:
        >>> FrugalConv2d(1, 4, 7, padding="same")(torch.zeros(2, 1, 20, 16)).shape
        torch.Size([2, 4, 20, 16])
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, padding: Padding = "valid"
    ) -> None:
        if kernel_size % 2 == 0:
            raise OptionError(f"kernel_size must be odd, got {kernel_size}")
        check_padding(padding, "zeros")
        super().__init__(in_channels, out_channels, kernel_size, padding=padding)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that nn.Conv2d uses
        """`[N, C, H, W] -> [N, O, H', W']`."""
        if not self.training:
            return super().forward(input)
        margin = self.kernel_size[0] // 2 if self.padding == "same" else 0
        return frugal_conv2d(input, self.weight, self.bias, margin)


class _FrugalConv(torch.autograd.Function):
    @staticmethod
    def forward(input: Tensor, weight: Tensor, dilation: int) -> Tensor:  # noqa: A002
        return F.conv2d(input, weight, dilation=dilation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:  # noqa: ANN401
        ctx.save_for_backward(*inputs[:2])
        ctx.dilation = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:2])
        # Autocast may have rounded the input and the gradient; the weight is kept exact.
        x_, gradient = x.to(weight.dtype), gradient.to(weight.dtype)
        if torch.is_grad_enabled():  # second derivatives are asked for
            pair = _dense_gradients(gradient, x_, weight, ctx.dilation, wanted)
        else:
            pair = torch.ops.equiscale.conv_gradients(
                gradient.contiguous(), x_, weight, ctx.dilation, wanted
            )
        dx = pair[0].to(x.dtype) if wanted[0] else None
        return dx, pair[1] if wanted[1] else None, None


def _conv_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, dilation: int, wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    """`[N, O, H', W'] -> [N, C, H, W], [O, C, k, k]`; one that is not wanted stays empty."""
    if gradient.count_nonzero() <= SPARSE_SHARE * gradient.numel():
        return _sparse_gradients(gradient, x, weight, dilation, wanted)
    return _dense_gradients(gradient, x, weight, dilation, wanted)


def _conv_gradients_shapes(
    gradient: Tensor, x: Tensor, weight: Tensor, dilation: int, wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x) if wanted[0] else x.new_empty(0)
    return dx, torch.empty_like(weight) if wanted[1] else weight.new_empty(0)


# An operator of its own, so that the compiler does not have to look into its choice.
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
        dx = conv2d_input(x.shape, weight, gradient, dilation=dilation)
    if wanted[1] and weight.shape[1] == 1:
        # A product with the unfolded image beats the library's routine for a single channel.
        patches = _patches(x, weight.shape[-1], dilation)[:, 0].flatten(3).flatten(0, 2)
        dw = (gradient.transpose(0, 1).flatten(1) @ patches).view_as(weight)
    elif wanted[1]:
        dw = conv2d_weight(x, weight.shape, gradient, dilation=dilation)
    return dx, dw


def _sparse_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, dilation: int, wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    positions = gradient.nonzero()
    values = gradient[tuple(positions.T)]
    step = max(1, CHUNK // weight[0].numel())
    dx = x.new_zeros(x.shape[0] * x.shape[2] * x.shape[3] if wanted[0] else 0, x.shape[1])
    dw = weight.new_zeros(weight.shape[0] if wanted[1] else 0, weight[0].numel())
    for first in range(0, len(values), step):
        chosen, value = positions[first : first + step], values[first : first + step]
        if wanted[0]:
            _add_input_gradient(dx, chosen, value, x, weight, dilation)
        if wanted[1]:
            _add_weight_gradient(dw, chosen, value, x, weight, dilation)
    N, C, H, W = x.shape
    dx = dx.view(N, H, W, C).permute(0, 3, 1, 2).contiguous() if wanted[0] else x.new_empty(0)
    return dx, dw.view_as(weight) if wanted[1] else weight.new_empty(0)


def _add_input_gradient(
    dx: Tensor, positions: Tensor, values: Tensor, x: Tensor, weight: Tensor, dilation: int
) -> None:
    """Add `g · w[o]` to the pixels under each kernel; `dx` is `[N·H·W, C]`."""
    sample, channel, row, column = positions.unbind(1)
    height, width = x.shape[2:]
    tap = dilation * torch.arange(weight.shape[-1], device=x.device)
    corner = (sample * height + row) * width + column
    pixels = corner[:, None] + (tap[:, None] * width + tap).flatten()
    kernels = weight.flatten(2).transpose(1, 2)[channel] * values[:, None, None]
    dx.index_add_(0, pixels.flatten(), kernels.flatten(0, 1))


def _add_weight_gradient(
    dw: Tensor, positions: Tensor, values: Tensor, x: Tensor, weight: Tensor, dilation: int
) -> None:
    """Add `g ·` the patch under each kernel to the kernel's channel; `dw` is `[O, C·k·k]`."""
    sample, channel, row, column = positions.unbind(1)
    patches = _patches(x, weight.shape[-1], dilation)[sample, :, row, column]
    dw.index_add_(0, channel, patches.flatten(1) * values[:, None])


def _patches(x: Tensor, kernel_size: int, dilation: int) -> Tensor:
    """`[N, C, H, W] -> [N, C, H', W', k, k]`: the pixels under each kernel, as a view."""
    reach = dilation * (kernel_size - 1) + 1
    return x.unfold(2, reach, 1).unfold(3, reach, 1)[..., ::dilation, ::dilation]
