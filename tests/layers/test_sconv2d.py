"""The layer as a PyTorch user meets it: arguments of Conv2d, transforms, precision, errors."""

from __future__ import annotations

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor import config as inductor_config

from equiscale.core.errors import EquiscaleError, OptionError, ShapeError
from equiscale.layers import SConv2d, scaled_conv2d
from equiscale.layers.scaled.geometry import PADDING_MODES
from equiscale.layers.scaled.pooling import POOL_MODES

POOLS: tuple[Any, ...] = (None, *POOL_MODES)
METHODS: tuple[Any, ...] = ("direct", "spectral")
ATTRIBUTES = (
    *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"),
    "padding_mode",
)
PADDINGS: tuple[Any, ...] = (0, 1, 2, 4, (0, 2), (3, 1), "valid", "same")


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
@pytest.mark.parametrize("kernel_size", [1, 3, 4, (5, 5)], ids=str)
def test_one_scale_is_conv2d(kernel_size: Any, padding: Any) -> None:
    """Over a grid of arguments, given by position."""
    strides: tuple[Any, ...] = (1, 2, (2, 1))
    for stride, mode, groups in itertools.product(strides, PADDING_MODES, (1, 2)):
        if padding == "same" and stride != 1:
            continue  # which Conv2d does not take
        arguments: tuple[Any, ...] = (4, 6, kernel_size, stride, padding, 1, groups, groups == 1)
        arguments += (mode, None, torch.float64)
        conv = nn.Conv2d(*arguments)
        layer = SConv2d(*arguments, pool="pixel", num_scales=1)
        layer.load_state_dict(conv.state_dict())
        for name in ATTRIBUTES:
            assert getattr(layer, name) == getattr(conv, name)
        x = torch.randn(2, 4, 11, 8, dtype=torch.float64)
        for layer.method in METHODS:
            torch.testing.assert_close(layer(x), conv(x))
            torch.testing.assert_close(layer(x[1]), conv(x[1]))


@pytest.mark.parametrize("padding", [1, 3, (0, 2)])
@pytest.mark.parametrize("k", [3, 4])
def test_padding_grows_with_the_kernel(padding: Any, k: int) -> None:
    x, weight = torch.randn(1, 2, 12, 13).double(), torch.randn(3, 2, k, k).double()
    sizes = (k, k + 2, k + 6)
    down, across = (padding, padding) if isinstance(padding, int) else padding
    stack = scaled_conv2d(x, weight, padding=padding, kernel_sizes=sizes)
    for index, size in enumerate(sizes):
        kernel = F.interpolate(weight, size=(size, size), mode="bicubic") * (k / size) ** 2
        grown = (size - k) // 2
        expected = F.conv2d(x, kernel, padding=(down + grown, across + grown))
        torch.testing.assert_close(stack[:, :, index], expected)


@pytest.mark.parametrize("pool", POOLS)
def test_unbatched_input_gives_unbatched_output(pool: Any) -> None:
    layer = SConv2d(2, 3, 3, pool=pool)
    x = torch.randn(1, 2, 9, 8)
    assert torch.equal(layer(x[0]), layer(x)[0])
    if pool:
        expected = layer(x, return_indices=True)
        assert all(
            torch.equal(one, other[0])
            for one, other in zip(layer(x[0], return_indices=True), expected, strict=True)
        )


def test_number_of_scales() -> None:
    layer = SConv2d(1, 1, 3, num_scales=4)
    assert layer.kernel_sizes == (3, 5, 7, 9)
    assert layer(torch.zeros(1, 1, 12, 12)).shape == (1, 1, 4, 10, 10)
    with pytest.raises(OptionError, match="not both"):
        SConv2d(1, 1, 3, num_scales=4, kernel_sizes=(3, 5))


def test_the_pool_of_a_layer_can_be_replaced_in_a_call() -> None:
    layer, x = SConv2d(2, 3, 3, pool="pixel"), torch.randn(2, 2, 9, 8)
    torch.testing.assert_close(layer(x, pool="global"), layer(x).amax(dim=(2, 3)))
    assert layer.pool == "pixel"


def test_initialisation_is_that_of_conv2d() -> None:
    torch.manual_seed(5)
    conv = nn.Conv2d(3, 8, 7)
    torch.manual_seed(5)
    layer = SConv2d(3, 8, 7)
    assert torch.equal(conv.weight, layer.weight)
    assert conv.bias is not None
    assert layer.bias is not None
    assert torch.equal(conv.bias, layer.bias)
    assert set(layer.state_dict()) == {"weight", "bias"}


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_computed_in_float32(method: Any) -> None:
    dtype = torch.bfloat16
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
def test_autocast_computes_in_float32(method: Any) -> None:
    layer = SConv2d(2, 3, 3, pool="slice", method=method)
    x = torch.randn(2, 2, 12, 12)
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = layer(x)
        from_half = layer(x.bfloat16())
    assert torch.equal(actual, expected)
    assert from_half.dtype == torch.float32
    actual.sum().backward()


@pytest.mark.parametrize(
    ("pool", "method"), [(None, "direct"), *((pool, "spectral") for pool in POOLS)]
)
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


@pytest.mark.parametrize("pool", ["slice", "mean_energy"])
def test_export_goes_through_the_definition(pool: Any) -> None:
    layer = SConv2d(2, 3, 3, pool=pool)
    x = torch.randn(1, 2, 9, 9)
    program = torch.export.export(layer, (x,))
    assert not any("spectral" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", POOLS)
def test_operators_are_registered_correctly(pool: Any) -> None:
    tensors = [torch.randn(shape).requires_grad_() for shape in ((2, 4, 8, 9), (4, 2, 3, 3), (4,))]
    settings: tuple[Any, ...] = ([3, 5, 7], [1, 2], [], False, "bicubic", 2, pool or "none")
    torch.library.opcheck(torch.ops.equiscale.spectral_forward.default, (*tensors, *settings, True))


def test_retained_graph_gives_the_same_gradient_twice() -> None:
    x, weight = (torch.randn(shape).requires_grad_() for shape in ((2, 3, 12, 12), (4, 3, 3, 3)))
    y = scaled_conv2d(x, weight, pool="pixel", method="spectral")
    again = scaled_conv2d(x * 2, weight, pool="pixel", method="spectral")
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
    layer = SConv2d(2, 4, 3, groups=2, pool=pool, method=method)
    nn.Sequential(layer, nn.ReLU(inplace=True))(torch.randn(2, 2, 12, 12)).sum().backward()


def test_channels_last() -> None:
    layer = SConv2d(3, 4, 5, pool="pixel", method="spectral")
    x = torch.randn(2, 3, 20, 24)
    expected = layer(x)
    layer = layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), expected)


def test_second_derivatives_name_the_method_that_has_them() -> None:
    x, weight = (torch.randn(shape).requires_grad_() for shape in ((1, 2, 9, 9), (3, 2, 3, 3)))
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


def test_non_contiguous_input() -> None:
    x = torch.randn(3, 12, 13, 4).double().permute(0, 3, 1, 2)
    weight = torch.randn(4, 4, 3, 3).double().transpose(0, 1)
    expected = scaled_conv2d(x, weight, pool="pixel", method="direct")
    torch.testing.assert_close(scaled_conv2d(x, weight, pool="pixel", method="spectral"), expected)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("name", ["vmap", "grad", "jvp", "jacrev", "jacfwd"])
def test_function_transforms_name_the_method_that_has_them(name: str) -> None:
    weight, x = torch.randn(3, 2, 3, 3).double(), torch.randn(2, 2, 8, 8).double()

    def apply(method: Any) -> Any:
        def energy(image: torch.Tensor) -> torch.Tensor:
            return scaled_conv2d(image, weight, pool="pixel", method=method).square().sum()

        if name == "jvp":
            return torch.func.jvp(energy, (x,), (x,))[1]
        return getattr(torch.func, name)(energy)(x)

    with pytest.raises(OptionError, match=r"torch\.func .* use method='direct'"):
        apply("spectral")
    torch.testing.assert_close(apply("auto"), apply("direct"))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_forward_mode_differentiation_is_not_dropped_silently() -> None:
    weight, x = torch.randn(3, 2, 3, 3).double(), torch.randn(1, 2, 8, 8).double()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(weight, weight)
        with pytest.raises(OptionError, match="forward-mode"):
            scaled_conv2d(x, dual, method="spectral")
        x, weight, bias = torch.randn(8, 8, 32, 32), torch.randn(16, 8, 5, 5), torch.zeros(16)
        values = scaled_conv2d(
            x, weight, torch.autograd.forward_ad.make_dual(bias, bias + 1), pool="pixel"
        )
        assert torch.autograd.forward_ad.unpack_dual(values).tangent is not None


@pytest.mark.parametrize("pool", ["energy", "mean_energy"])
def test_energy_with_circular_padding_is_refused(pool: Any) -> None:
    with pytest.raises(OptionError, match="cannot tell kernel sizes apart"):
        SConv2d(1, 1, 3, padding=1, padding_mode="circular", pool=pool)
    SConv2d(1, 1, 3, padding_mode="circular", pool=pool)  # kernels lie inside: nothing wraps


BAD_CALLS: list[tuple[dict[str, Any], type[EquiscaleError], str]] = [
    ({"x": torch.zeros(1, 2, 4, 9)}, ShapeError, r"5×5 kernel does not fit a 4×9 input"),
    ({"x": torch.zeros(1, 3, 9, 9)}, ShapeError, r"\[N, 2, H, W\] or .*got \[1, 3, 9, 9\]"),
    ({"x": torch.zeros(9, 9)}, ShapeError, r"got \[9, 9\]"),
    ({"x": torch.zeros(1, 2, 0, 9)}, ShapeError, "at least one pixel"),
    ({"x": torch.zeros(1, 2, 9, 9).double()}, OptionError, "one dtype.*float64.*float32"),
    ({"bias": torch.zeros(4).double()}, OptionError, "one dtype.*float32.*float64"),
    ({"x": torch.zeros(1, 2, 9, 9, dtype=torch.uint8)}, OptionError, "floating-point.*uint8"),
    ({"weight": torch.zeros(4, 2, 5, 5, dtype=torch.complex64)}, OptionError, "floating-point"),
    ({"x": [1.0]}, OptionError, "must be tensors of floating-point numbers, got list"),
    ({"weight": torch.zeros(4, 2, 5, 3)}, ShapeError, "square kernel"),
    ({"weight": torch.zeros(0, 2, 5, 5)}, ShapeError, "no empty axis"),
    ({"bias": torch.zeros(3)}, ShapeError, r"bias must be \[4\]"),
    ({"kernel_sizes": ()}, OptionError, "kernel_sizes is empty"),
    ({"kernel_sizes": (5, 5)}, OptionError, "strictly increasing"),
    ({"kernel_sizes": (5, 6)}, OptionError, "all odd or all even"),
    ({"kernel_sizes": [5.0, 7.0]}, OptionError, "a sequence of integers"),
    ({"kernel_sizes": (5, 11)}, ShapeError, r"11×11 kernel does not fit.*up to 9"),
    ({"groups": 3}, OptionError, "groups must divide the 4 output channels"),
    ({"groups": 2.0}, OptionError, "groups must divide"),
    ({"stride": 0}, OptionError, "stride must be at least 1"),
    ({"stride": 2.0}, OptionError, "stride must be an integer or a pair"),
    ({"padding": (1, 1, 1)}, OptionError, "padding must be an integer or a pair"),
    ({"padding": -1}, OptionError, "padding must be at least 0"),
    ({"padding": "full"}, OptionError, "unknown padding 'full'"),
    ({"padding": "same", "padding_mode": "mirror"}, OptionError, "unknown padding_mode"),
    ({"dilation": 2}, OptionError, "dilation must be 1, got 2"),
    ({"interpolation": "cubic"}, OptionError, "did you mean 'bicubic'"),
    ({"pool": "slize"}, OptionError, "did you mean 'slice'"),
    ({"method": "spectra"}, OptionError, "did you mean 'spectral'"),
    ({"return_indices": True}, OptionError, "return_indices needs a pool"),
    (
        {"padding": "same", "padding_mode": "reflect", "kernel_sizes": (5, 21)},
        ShapeError,
        "can extend a 9×9 input by 8 .* needs 10; use kernel_sizes up to 17",
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
        {"kernel_size": (5, 3)},
        {"kernel_sizes": []},
        {"num_scales": 0},
        {"stride": (1, 0)},
        {"padding": "full"},
        {"dilation": (2, 1)},
        {"pool": "max"},
    ],
)
def test_the_module_refuses_wrong_arguments_when_it_is_made(arguments: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(arguments))):
        SConv2d(**{"in_channels": 4, "out_channels": 4, "kernel_size": 3, **arguments})


def test_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(SConv2d(1, 2, 7)) == "SConv2d(1, 2, kernel_size=(7, 7), stride=(1, 1))"
    shown = repr(SConv2d(4, 4, 3, stride=2, padding=1, groups=2, bias=False, pool="pixel"))
    assert "stride=(2, 2), padding=(1, 1), groups=2, pool='pixel', bias=False" in shown
