"""Each fault is put into a layer that is otherwise the identity; the message must name it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale import SConv2d
from equiscale.testing import assert_classifier_contract, assert_scale_equivariant

Run = Callable[[Any, Tensor], Tensor]


class Layer(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.forward = function


def resize_blocks(x: Tensor) -> Tensor:
    return F.interpolate(F.interpolate(x, scale_factor=0.5), scale_factor=2)


def resize_by_corners(x: Tensor) -> Tensor:
    working = F.interpolate(x, (48, 48), mode="bicubic", align_corners=True)
    return F.interpolate(working, tuple(x.shape[2:]), mode="bicubic", align_corners=False)


def test_equivariant_layers_pass() -> None:
    torch.manual_seed(0)
    assert_scale_equivariant(nn.Conv2d(2, 3, 1), factors=[0.5, 2], tolerance=1e-3, in_channels=2)
    assert_scale_equivariant(SConv2d(1, 8, 7, pool="pixel", dtype=torch.float64), tolerance=0.04)
    for layer in (nn.ReLU(), nn.AvgPool2d(2), nn.Upsample(scale_factor=2, mode="bicubic")):
        assert_scale_equivariant(layer)


FAULTS = {
    "zeros at the border": (nn.ZeroPad2d(3), "padding: the border differs most"),
    "one side": (nn.ZeroPad2d((1, 0, 1, 0)), "padding: the maps are shifted"),
    "every second": (Layer(lambda x: x[..., ::2, ::2]), "stride: the maps are shifted"),
    "every fourth": (Layer(lambda x: x[..., ::4, ::4]), "stride: the maps are shifted"),
    "blocks of 9, centred": (Layer(lambda x: x[..., 4::9, 4::9]), "stride: fine detail"),
    "corners": (Layer(resize_by_corners), "resampling: the maps are zoomed"),
    "nearest": (Layer(resize_blocks), "resampling: fine detail"),
    "3×3": (nn.Conv2d(1, 8, 3), "not padding, stride or resampling"),
    "7×7": (nn.Conv2d(1, 8, 7), "not padding, stride or resampling"),
    "zeros before a layer": (
        nn.Sequential(nn.ZeroPad2d(3), SConv2d(1, 8, 3, pool="pixel")),
        "padding: the border differs most",
    ),
    "nearest before a layer": (
        nn.Sequential(Layer(resize_blocks), SConv2d(1, 8, 3, pool="pixel")),
        "resampling: fine detail",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_failure_names_the_fault(name: str) -> None:
    layer, fault = FAULTS[name]
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    size = 63 if name == "blocks of 9, centred" else 64
    with pytest.raises(AssertionError, match=f"Most likely fault: {fault}"):
        assert_scale_equivariant(layer, image_size=size)


def test_a_bias_does_not_hide_an_error() -> None:
    layer = nn.Conv2d(1, 8, 3)
    nn.init.constant_(layer.bias, 100)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="the response itself depends on the size"):
        assert_scale_equivariant(layer)


def test_maps_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(AssertionError, match="must grow with the image"):
        assert_scale_equivariant(nn.AdaptiveMaxPool2d(4))
    with pytest.raises(AssertionError, match="maps of 2 pixels are too small"):
        assert_scale_equivariant(nn.MaxPool2d(3), image_size=8)
    with pytest.raises(AssertionError, match="Most likely fault"):
        assert_scale_equivariant(nn.Conv2d(1, 2, 5), image_size=8)
    with pytest.raises(AssertionError, match=r"got \[1, 4096\]"):
        assert_scale_equivariant(nn.Flatten())
    for factor in (0.0, float("nan")):
        with pytest.raises(AssertionError, match="constant maps, NaN or infinity"):
            assert_scale_equivariant(Layer(lambda x, factor=factor: x * factor))  # type: ignore[misc]
    for factors, message in (([1], "does not change"), ([], "at least one"), ([-2], "above 0")):
        with pytest.raises(ValueError, match=message):
            assert_scale_equivariant(nn.ReLU(), factors=factors)


class Net(nn.Module):
    """A network that keeps the contract, unless `run` breaks it."""

    def __init__(self, in_channels: int, num_classes: int, run: Run | None = None) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(in_channels))
        self.head = nn.Linear(in_channels, num_classes)
        self.drawn = torch.randn(())
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x) if self.run else self.plain(x)

    def plain(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.amax((2, 3)) * self.scale)
        return logits


class WrongStages(Net):
    def stages(self, x: Tensor) -> Tensor:
        return x


def running(run: Run) -> Callable[..., nn.Module]:
    return partial(Net, run=run)


SHARED = Net(1, 5)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            lambda in_channels, num_classes: Net(in_channels, num_classes + 1),
            r"got \[4, 6\]",
        ),
        (running(lambda net, x: net.plain(x) / 0), "must be finite"),
        (running(lambda net, x: net.plain(F.dropout(x + 1, 0.5))), "dropout or noise"),
        (
            running(lambda net, x: net.plain((x - x.mean()) / x[0].std())),
            "other images",
        ),
        (
            running(lambda net, x: net.head(x.amax((2, 3)))),
            "these parameters: scale",
        ),
        (running(lambda net, x: net.plain(x - net.drawn)), "neither a parameter nor a buffer"),
        (WrongStages, "must return a dictionary"),
        (lambda **_: SHARED, "must build new parameters"),
        (lambda **_: Tensor.relu, "no Module"),
    ],
)
def test_a_broken_contract_is_named(factory: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_classifier_contract(factory)
