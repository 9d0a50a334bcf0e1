"""Fast 3-D convolutions against `torch.nn.functional.conv3d`, by spectra and without."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.layers.conftest import assert_close_with_gradients
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from equiscale.layers.baselines import fourier_conv3d
from equiscale.layers.baselines.frugal_conv3d import FrugalConv3d, conv3d_peaks, frugal_conv3d

Tensors = tuple[Tensor, Tensor, Tensor]


def tensors(dtype: torch.dtype = torch.float64, width: int = 16, samples: int = 3) -> Tensors:
    """Input, weight and bias; the kernel is large, so that transforms pay."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()

    return draw(samples, 4, 9, 15, width), draw(6, 4, 5, 7, 6), draw(6)


def small_tensors() -> Tensors:
    x, weight, bias = tensors(width=7, samples=2)
    parts = x[:, :2, :3, :5], weight[:2, :2, :2, :3, :2], bias[:2]
    return tuple(part.detach().clone().requires_grad_() for part in parts)  # type: ignore[return-value]


def peaks(maps: Tensor) -> Tensor:
    return maps.flatten(2).max(2).values


assert_equal = partial(assert_close_with_gradients, rtol=1e-6, atol=1e-7)


@pytest.fixture(params=["transforms", "ordinary"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to compute, whatever the estimate says."""
    price = 0 if request.param == "transforms" else float("inf")
    monkeypatch.setattr(fourier_conv3d, "_PRICE", price)
    return str(request.param)


@pytest.mark.parametrize("width", [15, 16])
def test_equals_conv3d(way: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a dense and a sparse gradient, for an input that is not contiguous too."""
    monkeypatch.setattr(fourier_conv3d, "IMAGES", 2)
    x, weight, bias = inputs = tensors(width=width)
    turned = x.transpose(2, 3).contiguous().transpose(2, 3)
    for reduce in (torch.Tensor.sin, peaks):
        ours, theirs = frugal_conv3d(turned, weight, bias), F.conv3d(x, weight, bias)
        assert_equal(reduce(ours), reduce(theirs), inputs)
    torch.testing.assert_close(frugal_conv3d(x, weight), F.conv3d(x, weight))


def test_peaks_equal_maxima(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fourier_conv3d, "IMAGES", 2)
    x, weight, bias = inputs = tensors()
    assert_equal(conv3d_peaks(x, weight, bias), peaks(F.conv3d(x, weight, bias)), inputs)
    torch.testing.assert_close(conv3d_peaks(x, weight), peaks(F.conv3d(x, weight)))


@pytest.mark.parametrize("function", [frugal_conv3d, conv3d_peaks])
def test_second_derivatives(way: str, function: Any) -> None:
    inputs = small_tensors()
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


def test_maps_in_front_of_a_maximum_have_a_sparse_backward_pass(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equiscale.layers.baselines.frugal_conv._dense_gradients", None)
    inputs = tensors()
    torch.autograd.grad(peaks(frugal_conv3d(*inputs)).sum(), inputs)
    with pytest.raises(TypeError, match="not callable"):
        torch.autograd.grad(frugal_conv3d(*inputs).sum(), inputs)


def test_large_kernels_are_transformed_and_small_ones_are_not() -> None:
    def pays(kernel_size: int, device: str = "cpu") -> bool:
        x = torch.empty(1, device=device).expand(16, 16, 29, 58, 58)
        return fourier_conv3d.transforms_pay(x, torch.empty(32, 16, *[kernel_size] * 3))

    assert [pays(size) for size in (1, 11)] == [False, True]
    assert not pays(7, "meta")


def test_cost_is_what_is_computed() -> None:
    x, weight, _ = (tensor.detach() for tensor in tensors())

    def product(_: object, first: Sequence[int], second: Sequence[int], **others: object) -> int:
        return 2 * math.prod(first) * second[-1]

    in_place = {torch.ops.aten.addmm_: product, torch.ops.aten.baddbmm_: product}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        for _ in fourier_conv3d.fourier_conv3d(x, weight):
            pass
    cost = 2 * fourier_conv3d.fourier_cost(x.shape, weight.shape)
    assert counter.get_total_flops() == cost


def test_empty_batch(way: str) -> None:
    x, weight, bias = tensors()
    for function, shape in ((frugal_conv3d, (0, 6, 5, 9, 11)), (conv3d_peaks, (0, 6))):
        output = function(x[:0], weight, bias)
        assert output.shape == shape
        (gradient,) = torch.autograd.grad(output.sum(), weight)
        assert not gradient.any()


def test_autocast_and_half_precision_compute_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fourier_conv3d, "_PRICE", 0)
    inputs = tensors(torch.float32)
    coarse = [tensor.detach().bfloat16() for tensor in inputs]
    for function in (frugal_conv3d, conv3d_peaks):
        expected = function(*inputs)
        with torch.autocast("cpu", torch.bfloat16):
            found = function(*inputs)
        assert torch.equal(found, expected)
        assert_equal(found, expected, inputs)
        expected = function(*(tensor.float() for tensor in coarse)).bfloat16()
        assert torch.equal(function(*coarse), expected)


def test_nan_reaches_the_peaks(way: str) -> None:
    x, weight, bias = (tensor.detach() for tensor in tensors())
    x[1, 0, -1, -1, -1] = torch.nan
    assert conv3d_peaks(x, weight, bias).isnan().any(1).tolist() == [False, True, False]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("function", [frugal_conv3d, conv3d_peaks])
def test_compiled_in_one_graph(way: str, function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Formatting the compiler's trace takes longer than compiling.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
    inputs = tensors()
    torch.compiler.reset()
    compiled: Any = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_equal(compiled(*inputs), function(*inputs), inputs)


def test_module_is_drawn_and_exported_as_conv3d(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = FrugalConv3d(4, 6, 7)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.conv(x), self.conv(x, pool=True)

    monkeypatch.setattr(fourier_conv3d, "_PRICE", 0)
    torch.manual_seed(0)
    model, x = Both(), torch.rand(2, 4, 9, 15, 16)
    torch.manual_seed(0)
    assert torch.equal(model.conv.weight, nn.Conv3d(4, 6, 7).weight)
    program = torch.export.export(model, (x,))
    assert "equiscale" not in str(program.graph)
    for found, expected in zip(program.module()(x), model(x), strict=True):
        torch.testing.assert_close(found, expected)
