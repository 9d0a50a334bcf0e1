"""A 3-D convolution that is fast with large kernels, above all before a global max pooling.

The maximum is then found without derivatives, a few images at a time, and no map is kept. Its
derivatives are those of the dot product of a kernel and the patch under it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.layers.baselines.fourier_conv3d import fourier_conv3d, output_sizes, transforms_pay
from equiscale.layers.baselines.frugal_conv import frugal_conv, pixels_under_kernels
from equiscale.layers.precision import autocast_is_on, single, without_autocast

# ruff: noqa: A002 - the name that torch.nn.functional.conv3d uses


class FrugalConv3d(nn.Conv3d):
    """`[N, C, S, H, W] -> [N, O, S', H', W']`, or `[N, O]`: a fast `torch.nn.Conv3d`.

    Parameters, their names and their initial values are those of `torch.nn.Conv3d`.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Side of the kernels.

    Examples:
        >>> conv, x = FrugalConv3d(2, 4, 3), torch.rand(1, 2, 5, 6, 7)
        >>> conv(x).shape
        torch.Size([1, 4, 3, 4, 5])
        >>> torch.allclose(conv(x, pool=True), conv(x).amax(dim=(2, 3, 4)), atol=1e-6)
        True
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size)

    def forward(self, input: Tensor, pool: bool = False) -> Tensor:
        """`[N, C, S, H, W] -> [N, O, S', H', W']` by `frugal_conv3d`.

        With `pool`, `[N, O]`, the maximum of each map by `conv3d_peaks`.
        """
        convolve = conv3d_peaks if pool else frugal_conv3d
        return convolve(input, self.weight, self.bias)


def frugal_conv3d(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[N, C, S, H, W] -> [N, O, S', H', W']`: `conv3d`, fast with large kernels on CPUs.

    Values and gradients are those of `torch.nn.functional.conv3d`, up to rounding where the values
    come from spectra, see `transforms_pay`: a relative 1e-6, and a NaN or infinity reaches all
    pixels of the scales whose kernels contain it. There, half precision and autocast compute in
    float32. The backward pass is sparse, and the function can be differentiated twice.

    Examples:
        >>> frugal_conv3d(torch.ones(1, 1, 3, 9, 9), torch.ones(1, 1, 3, 7, 7)).shape
        torch.Size([1, 1, 1, 3, 3])
    """
    if torch.compiler.is_exporting() or not transforms_pay(input, weight):
        return frugal_conv(input, weight, bias)
    autocast = autocast_is_on(input)
    with without_autocast(input):
        bias = None if bias is None else single(bias)
        output = frugal_conv(single(input), single(weight), bias)
    return output if autocast else output.to(input.dtype)


def conv3d_peaks(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[N, C, S, H, W] -> [N, O]`: the maximum of `frugal_conv3d` over (S, H, W).

    Derivatives of any order are those of the first maximum; where two are equal up to rounding,
    either may count as the first. Half precision and autocast compute in float32.

    Examples:
        >>> conv3d_peaks(torch.ones(1, 1, 3, 9, 9), torch.ones(2, 1, 3, 3, 3))
        tensor([[27., 27.]])
    """
    if torch.compiler.is_exporting():
        return F.conv3d(input, weight, bias).flatten(2).max(2).values
    x, kernels = single(input), single(weight)
    shift = None if bias is None else single(bias)
    peaks, position = _find_peaks(x, kernels, shift)
    if torch.is_grad_enabled():
        patches = _patches(x, kernels, position)
        products = (patches * kernels.flatten(1)).sum(2)
        source = products if shift is None else products + shift
        peaks = peaks + (source - source.detach())  # the same value, with derivatives
    return peaks.to(input.dtype)


def _patches(x: Tensor, weight: Tensor, position: Tensor) -> Tensor:
    """`[N, C, S, H, W] -> [N, O, (C, T, k, l)]`: patches under the kernels at `[N, O]` places."""
    corner = torch.unravel_index(position.flatten(), output_sizes(x.shape, weight.shape))
    own_image = torch.zeros_like(position).flatten()
    places = pixels_under_kernels(own_image, corner, x.shape, weight.shape)
    places = places.unflatten(0, position.shape)
    return x.flatten(1).gather(1, places.flatten(1)).view(places.shape)


@torch.no_grad()
def _find_peaks(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """`[N, C, S, H, W] -> 2 × [N, O]`: maxima and their positions in the flat maps."""
    with without_autocast(x):
        if not transforms_pay(x, weight):
            values, positions = F.conv3d(x, weight, bias).flatten(2).max(2)
            return values, positions
        values, positions = torch.ops.equiscale.fourier_peaks(x, weight)
        return values if bias is None else values + bias, positions


def _fourier_peaks(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    with without_autocast(x):
        peaks = [maps.flatten(2).max(2) for maps in fourier_conv3d(x, weight)]
    return torch.cat([peak.values for peak in peaks]), torch.cat([peak.indices for peak in peaks])


def _fourier_peaks_shapes(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    shape = x.shape[0], weight.shape[0]
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.long)


# A custom operator, so that the compiler does not trace its loop.
_LIBRARY = torch.library.Library("equiscale", "FRAGMENT")
_LIBRARY.define("fourier_peaks(Tensor x, Tensor weight) -> (Tensor, Tensor)")
_LIBRARY.impl("fourier_peaks", _fourier_peaks, "CompositeExplicitAutograd")
torch.library.register_fake("equiscale::fourier_peaks", _fourier_peaks_shapes, lib=_LIBRARY)
