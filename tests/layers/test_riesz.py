"""Riesz transforms: their definition, and that they commute with rescaling."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equiscale.layers.baselines.riesz import RieszConv2d, riesz_transform


@pytest.mark.parametrize("size", [(8, 8), (9, 12), (7, 5), (10, 2), (6, 1), (1, 6)])
def test_layer_is_a_1x1_convolution_of_the_transforms(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    layer = RieszConv2d(3, 4).double()
    expected = torch.einsum("oca,ncahw->nohw", layer.weight, riesz_transform(x))
    torch.testing.assert_close(layer(x), expected)


def test_a_wave_is_shifted_by_a_quarter_and_weighted_by_its_direction() -> None:
    """cos(u·x) becomes (u_x/|u|) sin(u·x), and −(u_x u_y/|u|²) cos(u·x)."""
    y, x = torch.meshgrid(*[torch.arange(32.0).double()] * 2, indexing="ij")
    phase = 2 * torch.pi * (3 * x + 4 * y) / 32
    found = riesz_transform(torch.cos(phase)[None, None])[0, 0]
    sine, cosine = torch.sin(phase), torch.cos(phase)
    expected = [0.6 * sine, 0.8 * sine, -0.36 * cosine, -0.48 * cosine, -0.64 * cosine]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("size", [(9, 10), (6, 1)])
def test_second_order_adds_up_to_the_image_without_its_mean(size: tuple[int, int]) -> None:
    x = torch.rand(1, 2, *size, dtype=torch.float64)
    parts = riesz_transform(x)
    lost = x.mean((2, 3), keepdim=True)
    torch.testing.assert_close(parts[:, :, 2] + parts[:, :, 4], lost - x)


def enlarged(x: Tensor, factor: int) -> Tensor:
    """A periodic image enlarged exactly, by its Fourier series."""
    height, width = x.shape[2:]
    spectrum = torch.fft.fftshift(torch.fft.fft2(x), dim=(2, 3))
    top, left = ((factor - 1) * n // 2 for n in (height, width))
    padded = nn.functional.pad(spectrum, (left, left, top, top))
    return torch.fft.ifft2(torch.fft.ifftshift(padded, dim=(2, 3))).real * factor**2


def test_the_layer_commutes_with_rescaling() -> None:
    """Exactly for periodic images; a 7×7 convolution changes its response by more than half."""
    x = torch.randn(2, 1, 15, 21, dtype=torch.float64)
    riesz = RieszConv2d(1, 4).double()
    plain = nn.Conv2d(1, 4, 7, padding=3, padding_mode="circular", bias=False).double()
    with torch.no_grad():
        before, after = enlarged(riesz(x), 3), riesz(enlarged(x, 3))
        torch.testing.assert_close(before, after)
        before, after = enlarged(plain(x), 3), plain(enlarged(x, 3))
    assert float((before - after).square().sum() / before.square().sum()) > 0.5


def test_gradients() -> None:
    layer = RieszConv2d(2, 2).double()
    x = torch.randn(1, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))
