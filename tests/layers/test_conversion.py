from __future__ import annotations

import itertools

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
    ("size", "stride", "padding", "mode", "groups"),
    [
        *itertools.product((3, 5), (1, 2, (2, 1)), (0, "half"), ("zeros",), (1, 2)),
        (3, 1, "same", "zeros", 1),
        (3, 2, "valid", "reflect", 1),
        (4, 2, 0, "zeros", 1),
        (5, 2, "half", "reflect", 2),
        (5, 1, "half", "replicate", 1),
        (3, 3, "half", "circular", 1),
    ],
)
def test_one_size_is_the_convolution_itself(
    size: int, stride: int | tuple[int, int], padding: int | str, mode: str, groups: int
) -> None:
    conv = nn.Conv2d(
        4,
        6,
        size,
        stride=stride,
        padding=size // 2 if padding == "half" else padding,
        padding_mode=mode,  # type: ignore[arg-type]
        groups=groups,
    )
    x = torch.randn(2, 4, 17, 12)
    torch.testing.assert_close(convert(conv, num_scales=1)(x), conv(x))
    assert convert(conv)(x).shape == conv(x).shape


@pytest.mark.parametrize("pool", ["pixel", "slice", "energy"])
def test_a_network_keeps_sizes_names_and_weights(pool: str) -> None:
    model = network()
    converted = equiscale.convert(model, pool=pool)  # type: ignore[arg-type]
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


def test_global_pooling_leaves_nothing_to_convert() -> None:
    with pytest.raises(OptionError, match="no map for the next layer"):
        equiscale.convert(network(), pool="global")


def test_the_strongest_response_is_kept() -> None:
    conv = nn.Conv2d(1, 2, 3, padding=1)
    x = torch.randn(1, 1, 20, 20)
    assert (convert(conv)(x) >= conv(x) - 1e-5).all()


def test_in_place_keeps_the_parameters_of_an_optimizer() -> None:
    model = network()
    before = list(model.parameters())
    assert convert(model, inplace=True) is model
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert layers_of(model, SConv2d)


def test_random_numbers_are_left_alone() -> None:
    model = network()
    state = torch.get_rng_state()
    convert(model)
    assert torch.equal(torch.get_rng_state(), state)


def test_mode_and_frozen_weights_are_kept() -> None:
    model = network().eval()
    model[0].weight.requires_grad_(False)
    converted = convert(model)
    assert not any(module.training for module in converted.modules())
    assert not converted[0].weight.requires_grad


def test_a_layer_used_twice_stays_one() -> None:
    conv = nn.Conv2d(2, 2, 3, padding=1)
    converted = convert(nn.Sequential(conv, nn.ReLU(), conv))
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
    converted = convert(network(), layers=layers)  # type: ignore[arg-type]
    assert layers_of(converted, SConv2d) == expected


def normalized() -> nn.Module:
    return parametrizations.weight_norm(nn.Conv2d(1, 1, 3))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 1, 3, dilation=2)), r"'0', .* is dilated by \(2, 2\)"),
        (nn.Sequential(nn.Conv2d(1, 1, (3, 5))), "'0', .* is not square"),
        (nn.Sequential(nn.Conv2d(1, 1, 5, padding=1)), r"'0', .* \(1, 1\), where .* has 0 or 2"),
        (
            nn.Sequential(nn.Conv2d(1, 1, 4, padding="same")),
            "'0', .* its padding is same, where a scaled convolution has 0;",
        ),
        (nn.Sequential(nn.LazyConv2d(1, 3)), "LazyConv2d is not a plain"),
        (nn.Sequential(normalized()), "ParametrizedConv2d is not a plain"),
        (nn.Conv2d(1, 1, 3, dilation=2), "layer 'the model'"),
        (nn.Sequential(nn.Linear(1, 1)), "no layer of Sequential was chosen; .*: none"),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), r"no layer .*: 0 \(1, 1\)"),
    ],
)
def test_what_cannot_be_converted_is_named(model: nn.Module, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        convert(model)


def test_hooks_and_unknown_names_are_refused_and_nothing_is_half_done() -> None:
    model = network()
    model[3].register_forward_hook(lambda *_: None)
    with pytest.raises(ConversionError, match=r"'3', .* carries hooks"):
        convert(model, inplace=True)
    assert layers_of(model, SConv2d) == []
    with pytest.raises(ConversionError, match=r"named 'layer9\.\*'; there are: 0, 1\.conv1"):
        convert(model, layers="layer9.*")


@pytest.mark.parametrize("changes", [{"pool": None}, {"pool": "median"}, {"num_scales": 0}])
def test_bad_options_are_named(changes: dict[str, object]) -> None:
    with pytest.raises(equiscale.EquiscaleError):
        convert(network(), **changes)  # type: ignore[arg-type]
