"""The fast method against the definition, and the layer as a user meets it."""

from __future__ import annotations

import itertools
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config

from equiscale.core.errors import EquiscaleError, OptionError, ShapeError
from equiscale.layers import SConv2d, scaled_conv2d
from equiscale.layers.scaled.geometry import PADDING_MODES
from equiscale.layers.scaled.kernel_scaling import INTERPOLATIONS
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
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_spectral_equals_direct(size: tuple[int, int, int], pool: Any, padding: Any) -> None:
    for groups, bias in itertools.product((1, 2, 4), (True, False)):
        case = make_case(size, groups=groups, bias=bias)
        assert_methods_agree(case, padding=padding, groups=groups, pool=pool)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_few_channels(pool: Any, channels: int) -> None:
    assert_methods_agree(make_case((14, 13, 3), channels=channels), pool=pool)
    assert_methods_agree(make_case((14, 13, 3), channels=channels, batch=9), pool=pool)


@pytest.mark.parametrize("pool", POOLS)
def test_weight_gradient_when_the_input_needs_none(pool: Any) -> None:
    for channels, batch in ((1, 9), (1, 2), (2, 9)):
        x, weight, bias = make_case((12, 11, 3), channels=channels, batch=batch)
        grads = []
        for method in METHODS:
            y = scaled_conv2d(x.detach(), weight, bias, pool=pool, method=method)
            grad = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view(y.shape)
            grads.append(torch.autograd.grad(y, weight, grad)[0])
        torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("pool", POOL_MODES)
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_sparse_gradients(pool: Any, padding: Any) -> None:
    for size in SIZES:
        assert_methods_agree(make_case(size), density=0.01, pool=pool, padding=padding)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("pool", POOLS)
def test_every_interpolation(interpolation: Any, pool: Any) -> None:
    assert_methods_agree(make_case((12, 13, 5)), interpolation=interpolation, pool=pool)


@pytest.mark.parametrize("padding_mode", PADDING_MODES)
@pytest.mark.parametrize("pool", POOLS)
def test_every_padding_mode(padding_mode: Any, pool: Any) -> None:
    for size in ((9, 10, 3), (8, 9, 4)):
        assert_methods_agree(make_case(size), padding="same", padding_mode=padding_mode, pool=pool)


@pytest.mark.parametrize("stride", [2, (3, 1)])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_strides(stride: Any, pool: Any, padding: Any) -> None:
    assert_methods_agree(make_case((13, 12, 3)), stride=stride, pool=pool, padding=padding)


@pytest.mark.parametrize("kernel_sizes", [(3,), (3, 5, 9), (1, 3, 11), (11,)])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_chosen_kernel_sizes(kernel_sizes: tuple[int, ...], pool: Any, padding: Any) -> None:
    case = make_case((12, 14, 3))
    assert_methods_agree(case, kernel_sizes=kernel_sizes, pool=pool, padding=padding)


def test_same_padding_takes_kernels_larger_than_the_input() -> None:
    case = make_case((5, 6, 3))
    assert_methods_agree(case, kernel_sizes=(3, 7, 15), padding="same", pool="pixel")


@pytest.mark.parametrize(
    ("pool", "padding", "groups", "stride"),
    list(itertools.product(POOLS, ["valid", "same"], [1, 2], [1, 2])),
)
@pytest.mark.usefixtures("each_way")
def test_gradcheck(pool: Any, padding: Any, groups: int, stride: int) -> None:
    x = torch.randn(1, 2, 6, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 2 // groups, 3, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, dtype=torch.float64, requires_grad=True)
    for method in METHODS:

        def convolve(*tensors: Tensor, method: Any = method) -> Tensor:
            return scaled_conv2d(
                *tensors, pool=pool, padding=padding, groups=groups, stride=stride, method=method
            )

        assert torch.autograd.gradcheck(convolve, (x, weight, bias))


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
@pytest.mark.parametrize("method", METHODS)
def test_global_pooling_is_the_global_maximum_of_pixel_and_slice_pooling(method: Any) -> None:
    paddings: tuple[Any, ...] = ("valid", "same")
    pools: tuple[Any, ...] = ("global", "pixel", "slice")
    for size, padding in itertools.product(SIZES, paddings):
        x, weight, bias = make_case(size)
        results = []
        for pool in pools:
            y = scaled_conv2d(x, weight, bias, pool=pool, padding=padding, method=method)
            y = y if pool == "global" else y.flatten(2).max(dim=2).values
            grad = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view(y.shape)
            inputs = [x, weight] if bias is None else [x, weight, bias]
            results.append((y, *torch.autograd.grad(y, inputs, grad)))
        for other in results[1:]:
            torch.testing.assert_close(results[0], other, rtol=1e-10, atol=1e-10)


def test_the_pool_of_a_layer_can_be_replaced_in_a_call() -> None:
    layer, x = SConv2d(2, 3, 3, pool="pixel"), torch.randn(2, 2, 9, 8)
    torch.testing.assert_close(layer(x, pool="global"), layer(x).amax(dim=(2, 3)))
    assert layer.pool == "pixel"


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


def test_parameters_are_those_of_conv2d() -> None:
    conv = nn.Conv2d(6, 8, 5, groups=2)
    layer = SConv2d(6, 8, 5, groups=2)
    assert {name: p.shape for name, p in layer.named_parameters()} == {
        name: p.shape for name, p in conv.named_parameters()
    }
    layer.load_state_dict(conv.state_dict())
    x = torch.randn(1, 6, 9, 9)
    torch.testing.assert_close(layer(x)[:, :, 0], conv(x), rtol=1e-4, atol=1e-5)
    layer(x)
    assert set(layer.state_dict()) == {"weight", "bias"}


def test_initialisation_is_that_of_conv2d() -> None:
    torch.manual_seed(5)
    conv = nn.Conv2d(3, 8, 7)
    torch.manual_seed(5)
    layer = SConv2d(3, 8, 7)
    assert torch.equal(conv.weight, layer.weight)
    assert conv.bias is not None
    assert layer.bias is not None
    assert torch.equal(conv.bias, layer.bias)
    assert layer.weight.abs().max() <= 1 / math.sqrt(3 * 49)


def test_bias_device_and_dtype() -> None:
    layer = SConv2d(1, 2, 3, bias=False, dtype=torch.float64, device="cpu")
    assert layer.bias is None
    assert layer.weight.dtype == torch.float64
    assert layer(torch.randn(1, 1, 8, 8).double()).dtype == torch.float64


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype, method: Any) -> None:
    layer = SConv2d(2, 3, 3, pool="pixel", method=method)
    x = torch.randn(2, 2, 12, 12)
    half = SConv2d(2, 3, 3, pool="pixel", method=method, dtype=dtype)
    half.load_state_dict(layer.state_dict())
    y = half(x.to(dtype))
    assert y.dtype == dtype
    rounded = SConv2d(2, 3, 3, pool="pixel", method=method)
    rounded.load_state_dict(half.state_dict())
    torch.testing.assert_close(y, rounded(x.to(dtype).float()).to(dtype))
    y.sum().backward()
    assert half.weight.grad is not None
    assert half.weight.grad.dtype == dtype


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pool", POOLS)
def test_autocast_computes_in_float32(pool: Any, method: Any) -> None:
    layer = SConv2d(2, 3, 3, pool=pool, method=method)
    x = torch.randn(2, 2, 12, 12)
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = layer(x)
        from_half = layer(x.bfloat16())
    assert torch.equal(actual, expected)
    assert from_half.dtype == torch.float32
    actual.sum().backward()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pool", POOLS)
def test_compiles_without_graph_breaks(pool: Any, method: Any) -> None:
    torch.compiler.reset()
    layer = SConv2d(2, 3, 3, pool=pool, method=method)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 2, 12, 12, requires_grad=True)
    torch.testing.assert_close(compiled(x), layer(x))
    (expected,) = torch.autograd.grad(layer(x).square().sum(), x)
    (actual,) = torch.autograd.grad(compiled(x).square().sum(), x)
    torch.testing.assert_close(actual, expected)


@pytest.mark.slow
@pytest.mark.needs("g++")
@pytest.mark.skipif(" " in sys.prefix, reason="torch does not quote its path for the compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_inductor_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor_config, "compile_threads", 1)  # no pool of processes
    torch.compiler.reset()
    network = nn.Sequential(SConv2d(1, 2, 3, pool="pixel", method="spectral"), nn.ReLU())
    x = torch.randn(2, 1, 10, 10)
    with torch.no_grad():
        compiled = torch.compile(network, fullgraph=True)
        torch.testing.assert_close(compiled(x), network(x))


@pytest.mark.parametrize("pool", POOLS)
def test_export_goes_through_the_definition(pool: Any) -> None:
    layer = SConv2d(2, 3, 3, pool=pool)
    x = torch.randn(1, 2, 9, 9)
    program = torch.export.export(layer, (x,))
    assert not any("spectral" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("pool", POOLS)
def test_operators_are_registered_correctly(pool: Any, groups: int) -> None:
    x, weight, bias = make_case((8, 9, 3), groups=groups)
    settings: tuple[Any, ...] = ([3, 5, 7], [], False, "bicubic", groups, pool or "none")
    torch.library.opcheck(
        torch.ops.equiscale.spectral_forward.default, (x, weight, bias, *settings, True)
    )


def test_retained_graph_gives_the_same_gradient_twice() -> None:
    x, weight, bias = make_case((12, 12, 3))
    y = scaled_conv2d(x, weight, bias, pool="pixel", method="spectral")
    again = scaled_conv2d(x * 2, weight, bias, pool="pixel", method="spectral")
    first = torch.autograd.grad(y.sum(), (x, weight), retain_graph=True)
    torch.autograd.grad(again.sum(), (x, weight))
    second = torch.autograd.grad(y.sum(), (x, weight))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_inference_mode_and_no_grad() -> None:
    layer = SConv2d(2, 3, 3, pool="pixel", method="spectral")
    x = torch.randn(2, 2, 12, 12)
    expected = layer(x).detach()
    with torch.no_grad():
        assert torch.equal(layer(x), expected)
    with torch.inference_mode():
        assert torch.equal(layer(x), expected)
    layer(x).sum().backward()


def test_threads_do_not_disturb_each_other() -> None:
    layer = SConv2d(2, 3, 3, pool="slice", method="spectral")
    inputs = [torch.randn(1, 2, 10 + i % 3, 12) for i in range(24)]
    expected = [layer(x) for x in inputs]
    with ThreadPoolExecutor(4) as threads:
        actual = list(threads.map(layer, inputs))
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pool", POOLS)
def test_the_output_may_be_changed_in_place(pool: Any, method: Any) -> None:
    for groups in (1, 2):
        layer = SConv2d(2, 4, 3, groups=groups, pool=pool, method=method)
        nn.Sequential(layer, nn.ReLU(inplace=True))(torch.randn(2, 2, 12, 12)).sum().backward()


@pytest.mark.parametrize("pool", POOLS)
def test_channels_last(pool: Any) -> None:
    layer = SConv2d(3, 4, 5, pool=pool, method="spectral")
    x = torch.randn(2, 3, 20, 24)
    expected = layer(x)
    layer = layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), expected)


def test_second_derivatives_name_the_method_that_has_them() -> None:
    x, weight, _ = make_case((9, 9, 3))
    for method in METHODS:
        y = scaled_conv2d(x, weight, pool="pixel", method=method)
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        if method == "direct":
            grad.square().sum().backward()
        else:
            with pytest.raises(OptionError, match="method='direct'"):
                grad.square().sum().backward()


def test_meta_device_gives_shapes() -> None:
    layer = SConv2d(1, 16, 7, pool="pixel", device="meta")
    assert layer(torch.empty(16, 1, 64, 64, device="meta")).shape == (16, 16, 58, 58)


def test_input_of_any_size_at_run_time() -> None:
    layer = SConv2d(1, 2, 3, pool="pixel")
    for height, width in ((3, 3), (3, 20), (9, 8), (17, 5)):
        assert layer(torch.randn(1, 1, height, width)).shape == (1, 2, height - 2, width - 2)


def test_non_contiguous_input() -> None:
    x = torch.randn(3, 12, 13, 4).double().permute(0, 3, 1, 2)
    weight = torch.randn(4, 4, 3, 3).double().transpose(0, 1)
    expected = scaled_conv2d(x, weight, pool="pixel", method="direct")
    torch.testing.assert_close(scaled_conv2d(x, weight, pool="pixel", method="spectral"), expected)


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


BAD_CALLS: list[tuple[dict[str, Any], type[EquiscaleError], str]] = [
    ({"x": torch.zeros(1, 2, 4, 9)}, ShapeError, r"5×5 kernel does not fit a 4×9 input"),
    ({"x": torch.zeros(1, 3, 9, 9)}, ShapeError, r"\[N, 2, H, W\].*got \[1, 3, 9, 9\]"),
    ({"x": torch.zeros(2, 9, 9)}, ShapeError, r"got \[2, 9, 9\]"),
    ({"weight": torch.zeros(4, 2, 5, 3)}, ShapeError, "square kernel"),
    ({"bias": torch.zeros(3)}, ShapeError, r"bias must be \[4\]"),
    ({"kernel_sizes": ()}, OptionError, "kernel_sizes is empty"),
    ({"kernel_sizes": (5, 5)}, OptionError, "strictly increasing"),
    ({"kernel_sizes": (5, 6)}, OptionError, "all odd or all even"),
    ({"kernel_sizes": (5, 11)}, ShapeError, r"11×11 kernel does not fit.*up to 9"),
    ({"groups": 3}, OptionError, "groups must divide the 4 output channels"),
    ({"groups": 0}, OptionError, "groups"),
    ({"stride": 0}, OptionError, "stride must be at least 1"),
    ({"padding": "full"}, OptionError, "unknown padding 'full'"),
    ({"padding": "same", "padding_mode": "mirror"}, OptionError, "unknown padding_mode"),
    ({"padding_mode": "reflect"}, OptionError, "has no effect"),
    ({"interpolation": "cubic"}, OptionError, "did you mean 'bicubic'"),
    ({"pool": "slize"}, OptionError, "did you mean 'slice'"),
    ({"method": "spectra"}, OptionError, "did you mean 'spectral'"),
    ({"return_indices": True}, OptionError, "return_indices needs a pool"),
    ({"padding": 2}, OptionError, "unknown padding 2"),
    ({"pool": 1}, OptionError, "unknown pool 1"),
    ({"stride": 2.0}, OptionError, "stride must be an integer or two of them"),
    ({"stride": (2, 2, 2)}, OptionError, "stride must be an integer or two of them"),
    ({"kernel_sizes": 5}, OptionError, "a sequence of integers, got 5"),
    ({"kernel_sizes": [5.0, 7.0]}, OptionError, "a sequence of integers"),
    ({"groups": 2.0}, OptionError, "groups must divide"),
    ({"x": torch.zeros(1, 2, 0, 9)}, ShapeError, "at least one pixel"),
    ({"x": torch.zeros(1, 2, 9, 9).double()}, OptionError, "one dtype.*float64.*float32"),
    ({"weight": torch.zeros(0, 2, 5, 5)}, ShapeError, "no empty axis"),
    (
        {"padding": "same", "padding_mode": "reflect", "kernel_sizes": (5, 21)},
        ShapeError,
        "can extend a 9×9 input by 8",
    ),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_CALLS)
def test_wrong_calls_are_explained(
    changes: dict[str, Any], error: type[EquiscaleError], message: str
) -> None:
    call: dict[str, Any] = {
        "x": torch.zeros(1, 2, 9, 9),
        "weight": torch.zeros(4, 2, 5, 5),
        "bias": None,
        **changes,
    }
    with pytest.raises(error, match=message):
        scaled_conv2d(call.pop("x"), call.pop("weight"), call.pop("bias"), **call)


@pytest.mark.parametrize(
    "arguments",
    [
        {"groups": 3},
        {"kernel_size": 0},
        {"kernel_size": (5, 5)},
        {"groups": 2.0},
        {"kernel_sizes": []},
        {"stride": (1, 0)},
        {"pool": "max"},
        {"padding": "valid", "padding_mode": "circular"},
    ],
)
def test_the_module_refuses_wrong_arguments_when_it_is_made(arguments: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        SConv2d(**{"in_channels": 4, "out_channels": 4, "kernel_size": 3, **arguments})


def test_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(SConv2d(1, 2, 7)) == "SConv2d(1, 2, kernel_size=7)"
    shown = repr(SConv2d(4, 4, 3, stride=2, groups=2, bias=False, pool="pixel"))
    assert "stride=(2, 2), groups=2, pool='pixel', bias=False" in shown
