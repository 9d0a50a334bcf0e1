from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.polynomial.hermite_e import HermiteE
from tests.layers.conftest import assert_close_with_gradients
from torch import Tensor

from equiscale.core.errors import OptionError, ShapeError
from equiscale.layers.baselines.disco import load_raw_basis
from equiscale.layers.baselines.steerable import (
    HERMITE_SCALES,
    SteerableConv2d,
    SteerableLift2d,
    disco_basis,
    hermite_basis,
    hermite_functions,
)


def bases() -> dict[str, Tensor]:
    return {"hermite": hermite_basis(), "disco": disco_basis(load_raw_basis().values)}


def reference_lift(x: Tensor, weight: Tensor, bias: Tensor, basis: Tensor) -> Tensor:
    """One 15×15 convolution per scale, zeros included."""
    kernels = torch.einsum("ocf,fsyx->socyx", weight, basis.to(weight))
    return torch.stack([F.conv2d(x, kernel, bias) for kernel in kernels], dim=2)


def reference_conv(x: Tensor, weight: Tensor, bias: Tensor, basis: Tensor) -> Tensor:
    """One grouped 15×15 convolution, one group per scale."""
    N, C, S, H, W = x.shape
    kernels = torch.einsum("ocf,fsyx->socyx", weight[:, :, 0], basis.to(weight)).flatten(0, 1)
    maps = F.conv2d(x.transpose(1, 2).reshape(N, S * C, H, W), kernels, groups=S)
    return maps.view(N, S, len(weight), *maps.shape[2:]).transpose(1, 2) + bias.view(-1, 1, 1, 1)


@pytest.mark.parametrize("name", ["hermite", "disco"])
def test_layers_equal_one_grouped_convolution(name: str) -> None:
    basis = bases()[name]
    lift = SteerableLift2d(2, 3, basis).double()
    conv = SteerableConv2d(3, 4, basis).double()
    assert lift.bias is not None
    assert conv.bias is not None
    torch.nn.init.normal_(lift.bias)
    torch.nn.init.normal_(conv.bias)
    # A layer keeps its basis in the default precision.
    basis = basis.float()
    x = torch.randn(2, 2, 31, 33, dtype=torch.float64, requires_grad=True)
    first, first_ref = lift(x), reference_lift(x, lift.weight, lift.bias, basis)
    torch.testing.assert_close(first, first_ref)
    second, second_ref = conv(first), reference_conv(first_ref, conv.weight, conv.bias, basis)
    inputs = [x, *lift.parameters(), *conv.parameters()]
    assert_close_with_gradients(second, second_ref, inputs)


def test_weight_shapes_and_initialisation() -> None:
    lift, conv = SteerableLift2d(3, 16, hermite_basis()), SteerableConv2d(16, 32, hermite_basis())
    assert lift.weight.shape == (16, 3, 49)
    assert conv.weight.shape == (32, 16, 1, 49)
    for layer, fan_in in ((lift, 3 * 49), (conv, 16 * 49)):
        assert layer.weight.abs().max() <= 1 / math.sqrt(fan_in)
        assert layer.weight.abs().max() > 0.98 / math.sqrt(fan_in)
        assert layer.bias is not None
        assert not layer.bias.any()


def test_hermite_functions_follow_the_formula() -> None:
    """Order of the loops, axes and amplitudes, against NumPy's polynomials."""
    sigma, x = 2.52, np.arange(-4, 5)
    functions = hermite_functions(9, sigma, 1.5, 49)

    def along(order: int, s: float) -> np.ndarray:
        polynomial = HermiteE.basis(order)(x / s)
        return polynomial * np.exp(-(x**2) / (2 * s**2)) / s

    index = 0
    for power in range(4):
        s = sigma / 1.5**power
        for m in range(5):
            for n in range(5 - m):
                if index < 49:
                    expected = np.outer(along(n, s), along(m, s))
                    np.testing.assert_allclose(functions[index], expected, atol=1e-12)
                index += 1


def test_every_pixel_outside_the_lattice_is_skipped() -> None:
    """Operations of a layer follow the pixels that are not zero: 7, 9, 11, 15 and 7, 11, 13, 7."""
    sizes = {
        name: [
            SteerableLift2d(1, 1, basis).kernel(index).shape[-1] for index in range(basis.shape[1])
        ]
        for name, basis in bases().items()
    }
    assert sizes == {"hermite": [7, 9, 11, 15], "disco": [7, 11, 13, 7]}


def test_wrong_shapes_and_options_are_named() -> None:
    basis = hermite_basis(scales=HERMITE_SCALES[:2])
    with pytest.raises(ShapeError, match=r"expected \[N, 3, H, W\], got \[1, 2, 20, 20\]"):
        SteerableLift2d(3, 1, basis)(torch.zeros(1, 2, 20, 20))
    with pytest.raises(ShapeError, match=r"expected \[N, 3, 2, H, W\]"):
        SteerableConv2d(3, 1, basis)(torch.zeros(1, 3, 4, 20, 20))
    with pytest.raises(ShapeError, match="K odd"):
        SteerableLift2d(1, 1, torch.zeros(4, 2, 6, 6))
    with pytest.raises(OptionError, match="support must be odd"):
        hermite_basis(support=14)
    with pytest.raises(OptionError, match="kernel_size must be at most 7"):
        hermite_basis(kernel_size=9)
    for scales in ((0.0, 1.0), (2.0, 2.0), (3.0, 2.0)):
        with pytest.raises(OptionError, match="positive and strictly increasing"):
            hermite_basis(scales=scales)
