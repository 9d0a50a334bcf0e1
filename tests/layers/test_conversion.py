from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import equiscale
from equiscale import SConv2d
from equiscale.core.errors import OptionError
from equiscale.layers.conversion import ConversionError, convert


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.conv2(torch.relu(self.norm(self.conv1(x))))
        return out


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 7, stride=2, padding=3),
        Residual(4),
        nn.Conv2d(4, 6, 1),
        nn.Conv2d(6, 6, 3, groups=3),
    )


def layers_of(model: nn.Module, kind: type[nn.Module]) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, kind)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 5, "stride": (2, 1), "padding": 2, "groups": 2, "padding_mode": "reflect"},
        {"kernel_size": 4, "stride": 2, "padding": 1},
        {"kernel_size": 3, "padding": "same", "bias": False, "padding_mode": "circular"},
    ],
)
def test_arguments_are_kept(arguments: Any) -> None:
    """One size is the convolution itself; of more sizes, the strongest response is kept."""
    conv = nn.Conv2d(4, 6, **arguments)
    x = torch.randn(2, 4, 17, 12)
    torch.testing.assert_close(convert(conv, num_scales=1)(x), conv(x))
    assert (convert(conv, num_scales=3)(x) >= conv(x) - 1e-5).all()


@pytest.mark.parametrize("pool", ["pixel", "slice", "energy"])
def test_a_network_keeps_sizes_names_and_weights(pool: str) -> None:
    model = network()
    converted = equiscale.convert(model, pool=pool, num_scales=3)  # type: ignore[arg-type]
    assert layers_of(converted, SConv2d) == ["0", "1.conv1", "1.conv2", "3"]
    assert layers_of(converted, nn.Conv2d) == ["2"]
    assert layers_of(model, SConv2d) == [], "the original is untouched"
    assert list(converted.state_dict()) == list(model.state_dict())
    for name, value in model.state_dict().items():
        assert torch.equal(converted.state_dict()[name], value)
    x = torch.randn(2, 1, 33, 40)
    assert converted(x).shape == model(x).shape
    converted(x).sum().backward()
    assert all(p.grad is not None for p in converted.parameters())


def test_in_place_keeps_the_parameters_of_an_optimizer() -> None:
    model = network()
    before = list(model.parameters())
    assert convert(model, num_scales=3, inplace=True) is model
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert layers_of(model, SConv2d)


def test_random_numbers_mode_and_frozen_weights_are_left_alone() -> None:
    model = network().eval()
    model[0].weight.requires_grad_(False)
    state = torch.get_rng_state()
    converted = convert(model, num_scales=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in converted.modules())
    assert not converted[0].weight.requires_grad


def test_a_layer_used_twice_stays_one() -> None:
    conv = nn.Conv2d(2, 2, 3, padding=1)
    converted = convert(nn.Sequential(conv, nn.ReLU(), conv), num_scales=3)
    assert isinstance(converted[0], SConv2d)
    assert converted[0] is converted[2]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("1.*", ["1.conv1", "1.conv2"]),
        (["0", "1.conv2"], ["0", "1.conv2"]),
        (lambda name, conv: conv.groups > 1, ["3"]),
        (["2"], ["2"]),
    ],
)
def test_layers_can_be_chosen(layers: object, expected: list[str]) -> None:
    converted = convert(network(), num_scales=3, layers=layers)  # type: ignore[arg-type]
    assert layers_of(converted, SConv2d) == expected


def normalized() -> nn.Module:
    return parametrizations.weight_norm(nn.Conv2d(1, 1, 3))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 1, 3, dilation=2)), r"'0', .* is dilated by \(2, 2\)"),
        (nn.Sequential(nn.Conv2d(1, 1, (3, 5))), "'0', .* is not square"),
        (nn.Sequential(nn.LazyConv2d(1, 3)), "LazyConv2d is not a plain"),
        (nn.Sequential(normalized()), "ParametrizedConv2d is not a plain"),
        (nn.Conv2d(1, 1, 3, dilation=2), "layer 'the model'"),
        (nn.Sequential(nn.Linear(1, 1)), "no layer of Sequential was chosen; .*: none"),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), r"no layer .*: 0 \(1, 1\)"),
    ],
)
def test_what_cannot_be_converted_is_named(model: nn.Module, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        convert(model, num_scales=3)


def test_hooks_and_unknown_names_are_refused_and_nothing_is_half_done() -> None:
    model = network()
    model[3].register_forward_hook(lambda *_: None)
    with pytest.raises(ConversionError, match=r"'3', .* carries hooks"):
        convert(model, num_scales=3, inplace=True)
    assert layers_of(model, SConv2d) == []
    with pytest.raises(ConversionError, match=r"named 'layer9\.\*'; there are: 0, 1\.conv1"):
        convert(model, num_scales=3, layers="layer9.*")


@pytest.mark.parametrize(
    "changes", [{"pool": None}, {"pool": "median"}, {"pool": "global"}, {"num_scales": 0}]
)
def test_bad_options_are_named(changes: dict[str, object]) -> None:
    with pytest.raises(equiscale.EquiscaleError):
        convert(network(), **{"num_scales": 3, **changes})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"needs num_scales.* start with num_scales=4"):
        convert(network())
