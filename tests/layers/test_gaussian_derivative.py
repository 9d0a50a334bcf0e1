"""Gaussian derivatives: the grid's own diffusion, scale covariance, borders, shared statistics."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from scipy.special import ive
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.layers.baselines.gaussian_derivative import (
    GaussianDerivativeConv2d,
    SharedBatchNorm,
    discrete_gaussian,
    smoothing_matrix,
)
from study.disco_basis import correlated_images


def whole_kernel(sigma: float) -> Tensor:
    half = discrete_gaussian(sigma)
    return torch.cat([half[1:].flip(0), half])


@pytest.mark.parametrize("sigma", [0.3, 2.5, 16.0])
def test_weights_are_scaled_bessel_functions(sigma: float) -> None:
    weights = discrete_gaussian(sigma)
    expected = torch.from_numpy(ive(range(len(weights)), sigma**2))
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-15)
    kernel = whole_kernel(sigma)
    assert float(kernel.sum()) == pytest.approx(1, abs=1e-8)
    places = torch.arange(len(kernel)) - len(kernel) // 2
    assert float((kernel * places**2).sum()) == pytest.approx(sigma**2, rel=1e-5)


@pytest.mark.parametrize(("border", "mode"), [("zeros", "constant"), ("replicate", "replicate")])
@pytest.mark.parametrize("size", [1, 9, 40])
def test_matrix_is_a_padded_convolution(border: str, mode: str, size: int) -> None:
    kernel = whole_kernel(1.3)
    reach = len(kernel) // 2 + 1
    x = torch.randn(1, 1, size, dtype=torch.float64)
    matrix = smoothing_matrix(discrete_gaussian(1.3), size, border, margin=1)  # type: ignore[arg-type]
    expected = F.conv1d(F.pad(x, (reach, reach), mode=mode), kernel[None, None])
    torch.testing.assert_close(matrix @ x[0, 0], expected[0, 0], rtol=0, atol=1e-8)


def test_layer_is_the_formula() -> None:
    """On a polynomial, whose smoothed derivatives are known: smoothing adds σ² to x²."""
    sigma = 1.5
    layer = GaussianDerivativeConv2d(1, 1, (sigma,), zero_order=True).double()
    y, x = torch.meshgrid(*[torch.arange(61.0).double() - 30] * 2, indexing="ij")
    image = 2 * x - y + 0.5 * x**2 + 3 * x * y - 0.25 * y**2
    smooth = image + sigma**2 * (0.5 - 0.25)
    terms = [
        smooth,
        sigma * (2 + x + 3 * y),
        sigma * (-1 + 3 * x - 0.5 * y),
        sigma**2 / 2 * torch.ones_like(x),
        sigma**2 / 2 * 3 * torch.ones_like(x),
        sigma**2 / 2 * -0.5 * torch.ones_like(x),
    ]
    expected = sum(c * term for c, term in zip(layer.weight[0, 0], terms, strict=True))
    inner = (slice(20, -20), slice(20, -20))
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(
        layer(image[None, None], 0)[0, 0][inner], expected[inner], rtol=0, atol=1e-4
    )


def covariance_error(narrow: Tensor, wide: Tensor) -> float:
    """Relative squared error of a response at half the size against that at the whole, thinned."""
    inner = (..., slice(8, -8), slice(8, -8))
    thinned = wide[..., ::2, ::2]
    return float((narrow - thinned)[inner].square().sum() / thinned[inner].square().sum())


@pytest.mark.parametrize(("sigma", "bound"), [(0.5, 0.012), (1.0, 0.004), (2.0, 0.0006)])
def test_halving_the_image_moves_the_response_to_half_the_sigma(sigma: float, bound: float) -> None:
    """Of smooth images; the more pixels σ has, the better. A 7×7 convolution is off by 0.22."""
    layer = GaussianDerivativeConv2d(1, 8, (sigma, 2 * sigma))
    noise = correlated_images(4, 128, 0.9, torch.Generator().manual_seed(0))
    blur = smoothing_matrix(discrete_gaussian(2.0).float(), 128, "replicate")
    image = blur @ noise @ blur.T
    plain = nn.Conv2d(1, 8, 7, padding=3, bias=False)
    with torch.no_grad():
        ours = covariance_error(layer(image[..., ::2, ::2], 0), layer(image, 1))
        ordinary = covariance_error(plain(image[..., ::2, ::2]), plain(image))
    assert ours < bound
    assert ordinary > 0.2


def test_bad_arguments_are_named() -> None:
    with pytest.raises(OptionError, match="sigmas must be positive"):
        GaussianDerivativeConv2d(1, 1, (1.0, 0.0))
    with pytest.raises(OptionError, match="did you mean 'zeros'"):
        GaussianDerivativeConv2d(1, 1, (1.0,), border="zero")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="one stride per σ"):
        GaussianDerivativeConv2d(1, 1, (1.0, 2.0), strides=(1,))


def test_no_differences_of_rounded_numbers_are_taken() -> None:
    layer = GaussianDerivativeConv2d(1, 2, (8.0,))
    x = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu"):
        found = layer(x, 0)
    assert torch.equal(found, layer(x, 0))
    norm = SharedBatchNorm(3).bfloat16()
    generator = torch.Generator().manual_seed(0)
    (found,) = norm([torch.randn(4, 3, 5, 5, generator=generator).bfloat16()])
    assert found.dtype == norm.running_mean.dtype == torch.bfloat16
    assert float(found.detach().float().std()) == pytest.approx(1, abs=0.05)


def test_shared_statistics_are_those_of_all_channels_together() -> None:
    """As batch normalisation of one channel that holds all samples, where sizes agree."""
    shared, plain = SharedBatchNorm(3), nn.BatchNorm2d(3)
    maps = [torch.randn(n, 3, 5, 5) * (n + 1) + n for n in (2, 4, 0)]
    together = torch.cat(maps)
    torch.testing.assert_close(torch.cat(shared(maps)), plain(together), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(shared.running_mean, plain.running_mean)
    shared.eval()
    plain.running_var = shared.running_var
    torch.testing.assert_close(torch.cat(shared(maps)), plain.eval()(together))


def test_a_sample_counts_the_same_however_many_pixels_it_has() -> None:
    small, large = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 8, 8)
    norm = SharedBatchNorm(1, momentum=1.0)
    norm([small, large])
    assert float(norm.running_mean) == pytest.approx(0.5)
    assert float(norm.running_var) == pytest.approx(0.25)
