"""The multi-scale convolutions against their straightforward formulations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.layers.conftest import assert_close_with_gradients
from torch import Tensor

from equiscale.core.errors import OptionError, ShapeError
from equiscale.layers.baselines.multi_scale import (
    KanazawaConv2d,
    XuConv2d,
    first_maximum,
    xu_kernel,
)


def xu_reference(x: Tensor, weight: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Every kernel zero-padded to the largest; `x` is `[N, C, S, H, W]`."""
    maps = []
    for column, size in zip(x.unbind(2), sizes, strict=True):
        kernel = weight
        if size < weight.shape[-1]:
            kernel = F.interpolate(weight, (size, size), mode="bilinear", align_corners=True)
        elif size > weight.shape[-1]:
            kernel = F.interpolate(weight, (size, size), mode="nearest")
        kernel = kernel * (weight.norm(1, (2, 3)) / kernel.norm(1, (2, 3)))[..., None, None]
        padded = F.pad(kernel, [(max(sizes) - size) // 2] * 4)
        maps.append(F.conv2d(column, padded, padding=max(sizes) // 2))
    return torch.stack(maps, dim=2)


def kanazawa_reference(x: Tensor, weight: Tensor, bias: Tensor, exponents: list[int]) -> Tensor:
    """Resize, crop or pad, convolve at full size, resize back, crop or pad, maximum."""

    def resize(image: Tensor, factor: float) -> Tensor:
        resized = F.interpolate(image, scale_factor=factor, mode="bilinear", align_corners=True)
        (H, W), (h, w) = image.shape[2:], resized.shape[2:]
        left, top = (W - w) // 2, (H - h) // 2
        return F.pad(resized, (left, W - w - left, top, H - h - top))

    responses = []
    for exponent in exponents:
        factor = 1.26**exponent
        response = F.conv2d(resize(x, factor) if exponent else x, weight, bias)
        responses.append(resize(response, 1 / factor) if exponent else response)
    return torch.stack(responses).max(dim=0).values


@pytest.mark.parametrize("sizes", [(3, 5, 7, 9, 11), (1, 5), (7,)])
def test_xu_equals_the_padded_formulation(sizes: tuple[int, ...]) -> None:
    layer = XuConv2d(2, 3, 7, sizes).double()
    x = torch.randn(2, 2, len(sizes), 13, 16, dtype=torch.float64, requires_grad=True)
    assert_close_with_gradients(layer(x), xu_reference(x, layer.weight, sizes), [x, layer.weight])
    reference = xu_reference(x, layer.weight, sizes)
    layer.pool = True
    assert_close_with_gradients(layer(x), reference.max(dim=2).values, [x, layer.weight])
    assert torch.equal(layer.scale_indices(x), reference.max(dim=2).indices)


def test_xu_zero_filter_stays_zero() -> None:
    weight = torch.zeros(1, 1, 7, 7, requires_grad=True)
    kernel = xu_kernel(weight, 3)
    assert not kernel.any()
    (gradient,) = torch.autograd.grad(kernel.sum(), weight)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("exponents", "size"),
    [([-2, -1, 0, 1, 2, 3, 4], (19, 22)), ([-2, 3], (32, 32)), ([-4], (19, 22))],
)
def test_kanazawa_equals_the_straightforward_formulation(
    exponents: list[int], size: tuple[int, int]
) -> None:
    layer = KanazawaConv2d(2, 3, 5, exponents).double()
    x = torch.randn(2, 2, *size, dtype=torch.float64, requires_grad=True)
    reference = kanazawa_reference(x, layer.weight, layer.bias, exponents)
    assert_close_with_gradients(layer(x), reference, [x, layer.weight, layer.bias])


def test_kanazawa_indices_name_the_exponent() -> None:
    layer = KanazawaConv2d(1, 2, 3)
    x = torch.randn(1, 1, 24, 24)
    alone = [KanazawaConv2d(1, 2, 3, [exponent]) for exponent in layer.exponents]
    for single in alone:
        single.load_state_dict(layer.state_dict())
    stack = torch.stack([single(x) for single in alone])
    assert torch.equal(layer.scale_indices(x), stack.max(dim=0).indices)


def test_maximum_ties_and_nan() -> None:
    a = torch.tensor([1.0, 2.0, float("nan"), 0.0], requires_grad=True)
    b = torch.tensor([1.0, 3.0, 0.0, float("nan")], requires_grad=True)
    largest = first_maximum([a, b])
    assert largest[:2].tolist() == [1.0, 3.0]
    assert largest[2:].isnan().all()
    gradients = torch.autograd.grad(largest[:2].sum(), (a, b))
    assert [g[:2].tolist() for g in gradients] == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("sizes", [(4,), (3, -5), (3.0,)])
def test_xu_bad_sizes_are_named(sizes: tuple[int, ...]) -> None:
    with pytest.raises(OptionError, match="kernel_sizes must be odd and positive"):
        XuConv2d(1, 1, 7, sizes)


def test_wrong_columns_and_empty_exponents_are_named() -> None:
    with pytest.raises(ShapeError, match=r"5 columns \[N, C, 5, H, W\], got \[1, 1, 4, 9, 9\]"):
        XuConv2d(1, 1, 7)(torch.zeros(1, 1, 4, 9, 9))
    with pytest.raises(OptionError, match="exponents must be a list of numbers"):
        KanazawaConv2d(1, 1, 7, [])
