"""Riesz transforms, which commute with rescaling, and a layer of learned combinations."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from equiscale.core.options import check_positive
from equiscale.layers.precision import single, without_autocast


def riesz_responses(height: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return `[2, H, W // 2 + 1]` and `[3, H, W // 2 + 1]`: responses of order 1 and 2.

    At frequency u, the first-order transforms multiply by −i u_x/|u| and −i u_y/|u|, of which the
    factor of −i is returned; the second-order ones by −u_x²/|u|², −u_x u_y/|u|² and −u_y²/|u|².
    They remove the mean of an image. At the highest frequency of an even axis, whose sign is
    ambiguous, odd responses are zero.
    """
    y = _frequencies(height, like)[:, None]
    x = -_frequencies(width, like)[(width + 1) // 2 :].flip(0)
    x = torch.cat([torch.zeros_like(y[0]), x])  # the other half follows from this one
    square = x**2 + y**2
    square = torch.where(square > 0, square, 1.0)  # all responses are 0 there anyway
    odd_x, odd_y = x * (x < 0.5), y * (y > -0.5)
    first = torch.stack(torch.broadcast_tensors(odd_x, odd_y)) / square.sqrt()
    pairs = torch.broadcast_tensors(x**2, odd_x * odd_y, y**2)
    return first.to(like.dtype), (-torch.stack(pairs) / square).to(like.dtype)


def _frequencies(size: int, like: Tensor) -> Tensor:
    """Return `[size]`: as `torch.fft.fftfreq`, in operations that ONNX supports."""
    index = torch.arange(size, dtype=torch.float64, device=like.device)
    return torch.where(2 * index < size, index, index - size) / size


def riesz_transform(x: Tensor) -> Tensor:
    """`[N, C, H, W] -> [N, C, 5, H, W]`: R_x, R_y, R_xx, R_xy, R_yy of a periodic image.

    The transforms commute with rescaling, because the responses depend on the direction of a
    frequency and not on its length. R_xx + R_yy is the negative of the image without its mean.

    Examples:
        >>> parts = riesz_transform(torch.rand(1, 1, 8, 8))
        >>> float((parts[:, :, 0].mean()).abs()) < 1e-6
        True
    """
    first, second = riesz_responses(x.shape[2], x.shape[3], x)
    spectrum = torch.fft.rfft2(x)[:, :, None]
    parts = torch.cat([spectrum * (-1j * first), spectrum * second], dim=2)
    return torch.fft.irfft2(parts, s=x.shape[2:])


class RieszConv2d(nn.Module):
    """`[N, C, H, W] -> [N, O, H, W]`: a learned combination of Riesz transforms of order 1 and 2.

    It equals a 1×1 convolution of `riesz_transform(x)`, but mixes spectra, which saves four of five
    inverse transforms. The image continues periodically beyond its border. Half precision and
    autocast compute in float32.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.

    Examples:
        >>> RieszConv2d(1, 8)(torch.zeros(2, 1, 20, 20)).shape
        torch.Size([2, 8, 20, 20])
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, 5))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the coefficients as `torch.nn.Linear` does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, O, H, W]`."""
        with without_autocast(x):
            weight = single(self.weight)
            return _mix(x.to(weight.dtype), weight).to(self.weight.dtype)

    def extra_repr(self) -> str:
        """Show the numbers of channels."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}"


def _mix(x: Tensor, weight: Tensor) -> Tensor:
    """`[N, C, H, W], [O, C, 5] -> [N, O, H, W]`, in real numbers, as ONNX requires.

    With response E − iD and spectrum P + iQ, the product is (EP + DQ) + i(EQ − DP).
    """
    height, width = x.shape[2:]
    if x.shape[0] == 0:  # the Fourier transform does not take it
        return x.new_zeros(0, len(weight), height, width)
    first, second = riesz_responses(height, width, x)
    odd = (weight[..., :2] @ first.flatten(1)).permute(2, 0, 1)  # [F, O, C]
    even = (weight[..., 2:] @ second.flatten(1)).permute(2, 0, 1)
    spectrum = torch.view_as_real(torch.fft.rfft2(x))  # [N, C, H, F, 2]
    real, imaginary = spectrum.flatten(2, 3).permute(3, 2, 1, 0).unbind(0)  # [F, C, N]
    sources = torch.cat(
        [torch.cat([real, imaginary], dim=1), torch.cat([imaginary, -real], dim=1)], dim=2
    )
    mixed = torch.cat([even, odd], dim=2) @ sources  # [F, O, 2N]
    parts = mixed.unflatten(2, (2, x.shape[0])).permute(3, 1, 0, 2)  # [N, O, F, 2]
    parts = parts.unflatten(2, (height, width // 2 + 1)).contiguous()
    return torch.fft.irfft2(torch.view_as_complex(parts), s=(height, width))
