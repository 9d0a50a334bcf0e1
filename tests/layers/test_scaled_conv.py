"""The fast method against the definition: values, indices and gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from equiscale.layers import SConv2d, scaled_conv2d
from equiscale.layers.scaled.geometry import PADDING_MODES
from equiscale.layers.scaled.kernel_scaling import INTERPOLATIONS
from equiscale.layers.scaled.native import SWITCH
from equiscale.layers.scaled.pooling import POOL_MODES

POOLS: tuple[Any, ...] = (None, *POOL_MODES)
METHODS: tuple[Any, ...] = ("direct", "spectral")
SIZES = [(12, 12, 3), (13, 12, 3), (11, 14, 4), (9, 9, 2), (7, 11, 5)]


def make_case(
    size: tuple[int, int, int],
    channels: int = 4,
    groups: int = 1,
    bias: bool = True,
    batch: int = 3,
) -> tuple[Tensor, Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(hash((size, channels, groups)) % 2**31)

    def draw(*shape: int) -> Tensor:
        values = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return values.requires_grad_()

    height, width, k = size
    weight = draw(4, channels // groups, k, k)
    return draw(batch, channels, height, width), weight, draw(4) if bias else None


def assert_methods_agree(
    case: tuple[Tensor, Tensor, Tensor | None], density: float = 1.0, **options: Any
) -> None:
    """Compare values, indices and all gradients of the two methods."""
    indexed = options.get("pool") is not None
    results: list[Any] = []
    for method in METHODS:
        options |= {"return_indices": indexed, "method": method}
        result: Any = scaled_conv2d(*case, **options)
        results.append(result if indexed else (result, None))
    (expected, expected_indices), (actual, indices) = results
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    if indexed:
        assert torch.equal(indices, expected_indices)
        assert indices.dtype == torch.int64
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(expected.shape, generator=generator) < density
    grad = torch.randn(expected.shape, dtype=expected.dtype, generator=generator) * mask
    inputs = [tensor for tensor in case if tensor is not None]
    expected_grads = torch.autograd.grad(expected, inputs, grad)
    actual_grads = torch.autograd.grad(actual, inputs, grad)
    for one, other in zip(actual_grads, expected_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pool", POOLS)
def test_spectral_equals_direct(size: tuple[int, int, int], pool: Any) -> None:
    options = [("valid", 1, True), ("valid", 2, False), ("same", 1, False), ("same", 4, True)]
    for padding, groups, bias in options:
        case = make_case(size, groups=groups, bias=bias)
        assert_methods_agree(case, padding=padding, groups=groups, pool=pool)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("pool", POOLS)
def test_few_channels_and_sparse_gradients(pool: Any) -> None:
    """Other orders of the sums, and the backward pass that visits single pixels."""
    for channels, batch in ((1, 3), (2, 9)):
        assert_methods_agree(make_case((14, 13, 3), channels=channels, batch=batch), pool=pool)
    for size, padding in zip(SIZES, itertools.cycle(["valid", "same"]), strict=False):
        assert_methods_agree(make_case(size), density=0.01, pool=pool, padding=padding)


@pytest.mark.parametrize("pool", POOLS)
def test_weight_gradient_when_the_input_needs_none(pool: Any) -> None:
    for channels, batch in ((1, 9), (2, 2)):
        x, weight, bias = make_case((12, 11, 3), channels=channels, batch=batch)
        grads = []
        for method in METHODS:
            y = scaled_conv2d(x.detach(), weight, bias, pool=pool, method=method)
            grad = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view(y.shape)
            grads.append(torch.autograd.grad(y, weight, grad)[0])
        torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_every_interpolation(interpolation: Any) -> None:
    for pool in (None, "pixel", "slice"):
        assert_methods_agree(make_case((12, 13, 5)), interpolation=interpolation, pool=pool)


@pytest.mark.parametrize("padding_mode", PADDING_MODES)
@pytest.mark.parametrize("padding", ["same", 1, (0, 3), 3])
def test_every_padding(padding_mode: Any, padding: Any) -> None:
    for size, pool in itertools.product(((9, 10, 3), (8, 9, 4)), (None, "pixel", "slice")):
        k = size[2]
        options = {"padding_mode": padding_mode, "padding": padding, "pool": pool}
        assert_methods_agree(make_case(size), kernel_sizes=(k, k + 2, k + 4), **options)


@pytest.mark.parametrize("compiled", ["0", "1"])
@pytest.mark.parametrize("stride", [2, (3, 1), (1, 4)])
@pytest.mark.parametrize("pool", POOLS)
def test_strides(stride: Any, pool: Any, compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, compiled)
    for padding in ("valid", "same", 2):
        for density in (1.0, 0.02):
            case = make_case((13, 12, 3))
            assert_methods_agree(case, density, stride=stride, pool=pool, padding=padding)


@pytest.mark.parametrize("kernel_sizes", [(3,), (3, 5, 9), (1, 3, 11), (11,), (2, 6)])
@pytest.mark.parametrize("pool", POOLS)
def test_chosen_kernel_sizes(kernel_sizes: tuple[int, ...], pool: Any) -> None:
    for padding in ("valid", "same"):
        case = make_case((12, 14, 3))
        assert_methods_agree(case, kernel_sizes=kernel_sizes, pool=pool, padding=padding)


def test_padding_takes_kernels_larger_than_the_input_and_smaller_than_the_learned_one() -> None:
    case = make_case((5, 6, 3))
    assert_methods_agree(case, kernel_sizes=(3, 7, 15), padding="same", pool="pixel")
    assert_methods_agree(case, kernel_sizes=range(1, 99, 2), padding="same", pool="slice")
    assert_methods_agree(make_case((12, 13, 7)), kernel_sizes=(1, 3, 9), padding=1, pool="pixel")


@pytest.mark.parametrize(
    ("padding", "groups", "stride"), [("valid", 1, 1), ("same", 2, 1), ("valid", 2, 2)]
)
@pytest.mark.parametrize("pool", POOLS)
def test_gradcheck(pool: Any, padding: Any, groups: int, stride: int) -> None:
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    options: Any = {"pool": pool, "padding": padding, "groups": groups, "stride": stride}
    tensors = draw(1, 2, 6, 7), draw(2, 2 // groups, 3, 3), draw(2)
    for method in METHODS:
        assert torch.autograd.gradcheck(
            lambda *t, m=method: scaled_conv2d(*t, **options, method=m), tensors, fast_mode=True
        )


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("pool", POOL_MODES)
def test_float32_is_close_and_chooses_alike(pool: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(4, 8, 40, 40, generator=generator)
    layer = SConv2d(8, 16, 7, pool=pool)
    exact = scaled_conv2d(
        x.double(), layer.weight.double(), None, pool=pool, return_indices=True, method="direct"
    )
    y, index = scaled_conv2d(
        x, layer.weight, None, pool=pool, return_indices=True, method="spectral"
    )
    torch.testing.assert_close(y, exact[0].float(), rtol=1e-4, atol=2e-5)
    assert (index == exact[1]).double().mean() > 0.999


@pytest.mark.usefixtures("each_way")
def test_zeros_of_the_frame_take_part_in_the_maximum() -> None:
    x, weight = torch.ones(1, 1, 9, 9), -torch.ones(1, 1, 3, 3)
    for method in METHODS:
        y, index = scaled_conv2d(x, weight, pool="pixel", return_indices=True, method=method)
        assert y[0, 0, 0, 0] == 0
        assert index[0, 0, 0, 0] == 1
        assert y[0, 0, 3, 3] < 0
        for pool in ("slice", "global"):
            y, index = scaled_conv2d(x, weight, pool=pool, return_indices=True, method=method)
            assert y.max() == 0
            assert index.item() == 1


@pytest.mark.parametrize("method", METHODS)
def test_infinite_gradients_on_the_frame_count_as_nothing(method: Any) -> None:
    weight = (-torch.ones(1, 1, 3, 3)).requires_grad_()
    y = scaled_conv2d(torch.ones(1, 1, 9, 9), weight, pool="pixel", method=method)
    assert y[0, 0, 0, 0] == 0, "a zero of the frame"
    grad = torch.zeros_like(y)
    grad[0, 0, 0, 0] = torch.inf
    assert torch.autograd.grad(y, weight, grad)[0].eq(0).all()


@pytest.mark.usefixtures("each_way")
def test_ties_go_to_the_first_index() -> None:
    x, weight = torch.zeros(1, 1, 9, 9), torch.randn(1, 1, 3, 3)
    for method, pool in itertools.product(METHODS, POOL_MODES):
        _, index = scaled_conv2d(x, weight, pool=pool, return_indices=True, method=method)
        assert (index == 0).all()


@pytest.mark.usefixtures("each_way")
def test_nan_reaches_the_output() -> None:
    x = torch.randn(2, 1, 9, 9)
    x[0, 0, 4, 4] = torch.nan
    for pool in POOLS:
        y = scaled_conv2d(x, torch.randn(1, 1, 3, 3), pool=pool, method="spectral")
        assert y[0].isnan().any()
        assert not y[1].isnan().any()


@pytest.mark.usefixtures("each_way")
def test_empty_batch() -> None:
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    for method, pool in itertools.product((*METHODS, "auto"), POOLS):
        y = scaled_conv2d(torch.zeros(0, 3, 8, 9), weight, pool=pool, method=method)
        assert y.shape == {None: (0, 4, 3, 6, 7), "global": (0, 4)}.get(pool, (0, 4, 6, 7))
        y.sum().backward()


def test_an_enlarged_pattern_moves_to_a_larger_kernel_where_a_plain_convolution_fails() -> None:
    """A blob three times as large gets the same response, at three times the kernel size."""
    coordinates = torch.arange(63.0) - 31

    def blob(width: float) -> Tensor:
        profile = torch.exp(-0.5 * (coordinates / width) ** 2)
        return torch.outer(profile, profile)[None, None]

    torch.manual_seed(0)
    weight = torch.randn(16, 1, 7, 7)
    small, large = (scaled_conv2d(blob(width), weight)[:, :, :, 28, 28] for width in (3, 9))
    centre = torch.linalg.vector_norm
    ours = centre(large[..., 7] - small[..., 0]) / centre(small[..., 0])  # 21×21 and 7×7
    plain = centre(large[..., 0] - small[..., 0]) / centre(small[..., 0])
    assert ours < 0.05
    assert plain > 5 * ours
