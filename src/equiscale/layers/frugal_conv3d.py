"""A 3-D convolution for the place in front of a global maximum.

Where a maximum lies is found without derivatives, a few images at a time, and no map is kept. Its
value is then the dot product of a kernel and the patch under it, which torch can differentiate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.layers.fourier_conv3d import fourier_conv3d, output_sizes, transforms_pay
from equiscale.layers.frugal_conv import frugal_conv3d, pixels_under_kernels
from equiscale.layers.precision import single, without_autocast

# ruff: noqa: A002 - the name that torch.nn.functional.conv3d uses


class FrugalConv3d(nn.Conv3d):
    """`[N, C, S, H, W] -> [N, O, S', H', W']`, or `[N, O]`: a fast `torch.nn.Conv3d`.

    Parameters, their names and their initial values are those of `torch.nn.Conv3d`.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Side of the kernels.

    Example:
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


def conv3d_peaks(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[N, C, S, H, W] -> [N, O]`: the maximum of `conv3d` over (S, H, W), with all derivatives.

    Computed in float32 for half precision. Of two maxima that differ by less than the rounding of
    a convolution, either may be returned.

    Example:
        >>> conv3d_peaks(torch.ones(1, 1, 3, 9, 9), torch.ones(2, 1, 3, 7, 7))
        tensor([[147., 147.]])
    """
    if torch.compiler.is_exporting():
        return F.conv3d(input, weight, bias).flatten(2).max(2).values
    x, kernels = single(input), single(weight)
    found, position = _find_peaks(x, kernels)
    places = _places(position, x.shape, kernels.shape)
    patches = x.flatten(1).gather(1, places.flatten(1)).view(places.shape)
    values = (patches * kernels.flatten(1)).sum(2)
    # A patch may lack the NaN that made its maximum one.
    values = torch.where(found.isfinite(), values, found)
    return (values if bias is None else values + bias).to(input.dtype)


def _places(position: Tensor, input_shape: Sequence[int], kernel_shape: Sequence[int]) -> Tensor:
    """`[N, O] -> [N, O, (C, T, k, l)]`: places in the flat image under the kernel at a position."""
    first_image = torch.zeros_like(position).flatten()
    sizes = output_sizes(input_shape, kernel_shape)
    corner = torch.unravel_index(position.flatten(), sizes)
    places = pixels_under_kernels(first_image, corner, input_shape, kernel_shape)
    return places.unflatten(0, position.shape)


@torch.no_grad()
def _find_peaks(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """`[N, C, S, H, W] -> 2 × [N, O]`: maxima and their positions in the flat maps."""
    with without_autocast(x):
        if transforms_pay(x, weight):
            values, positions = torch.ops.equiscale.fourier_peaks(x, weight)
        else:
            values, positions = F.conv3d(x, weight).flatten(2).max(2)
    return values, positions


def _fourier_peaks(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    with without_autocast(x):
        peaks = [maps.flatten(2).max(2) for maps in fourier_conv3d(x, weight)]
    return torch.cat([peak.values for peak in peaks]), torch.cat([peak.indices for peak in peaks])


def _fourier_peaks_shapes(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    shape = x.shape[0], weight.shape[0]
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.long)


# An operator of its own, so that the compiler does not have to look into its loop.
_LIBRARY = torch.library.Library("equiscale", "FRAGMENT")
_LIBRARY.define("fourier_peaks(Tensor x, Tensor weight) -> (Tensor, Tensor)")
_LIBRARY.impl("fourier_peaks", _fourier_peaks, "CompositeExplicitAutograd")
torch.library.register_fake("equiscale::fourier_peaks", _fourier_peaks_shapes, lib=_LIBRARY)
