"""What `deep_channels` adds to scale channels: its views, its drawing of views, its logarithm."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.models import create_model
from equiscale.models.families import deep_channels
from equiscale.models.families.deep_channels import OFFSET, DeepChannelNet, whole_view


def build(in_channels: int = 1, **options: Any) -> DeepChannelNet:
    torch.manual_seed(0)
    model = create_model("deep_channels", in_channels=in_channels, num_classes=5, **options)
    assert isinstance(model, DeepChannelNet)
    return model.eval()


def image() -> Tensor:
    coarse = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return F.interpolate(coarse, (64, 64), mode="bicubic").clamp(0, 1)


@pytest.mark.parametrize("factor", [0.375, 0.5, 1.5])
def test_views_are_those_of_interpolate(factor: float) -> None:
    x, side = image(), round(64 * factor)
    view = whole_view(x, factor)
    margin = (view.shape[2] - side) // 2
    assert margin == (8 if factor < 1 else 0)
    inner = F.pad(view, (-margin,) * 4)
    expected = F.interpolate(x, (side, side), mode="bilinear", antialias=True)
    torch.testing.assert_close(inner, expected)
    torch.testing.assert_close(view, F.pad(inner, (margin,) * 4, mode="replicate"))


def test_rescaling_moves_the_response_to_another_view() -> None:
    """An image of half the size in its own view is the image in the view of half the size."""
    model = build(factors=(0.5, 1.0))
    x = image()
    half = F.interpolate(x, (32, 32), mode="bilinear", antialias=True)
    large, small = model.stages(x), model.stages(F.pad(half, (8,) * 4, mode="replicate"))
    torch.testing.assert_close(large["stage4@0.5"], small["stage4@1"])


@pytest.fixture
def plain_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the changes of brightness, colour and proportions."""
    for name in ("LIGHT", "COLOUR", "STRETCH"):
        monkeypatch.setattr(deep_channels, name, 0.0)


@pytest.mark.usefixtures("plain_views")
def test_training_draws_sizes_per_image_from_each_part_of_the_range() -> None:
    model = build(train_range=(0.5, 2.0), window=1, draws=2).train()
    square = torch.zeros(64, 1, 64, 64)
    square[..., 24:40, 24:40] = 1
    views = model.draw_views(square)
    assert views.shape == (128, 1, 64, 64)
    whole = views.sum(dim=(1, 2, 3)).sqrt() / 16  # no larger than the factor: some are cut
    assert whole[:64].max() <= 1.01
    assert whole[:64].std() > 0.1
    assert whole[64:].max() > 1.5


@pytest.mark.usefixtures("plain_views")
def test_the_views_of_an_image_fill_a_window_of_the_range() -> None:
    dot = torch.zeros(64, 1, 64, 64)
    dot[..., 30:34, 30:34] = 1
    views = build(train_range=(0.25, 1.0), window=0.5, draws=2).draw_views(dot)
    small, large = (views.sum(dim=(1, 2, 3)).sqrt() / 4).view(2, 64)
    assert (large / small).max() < 2.1  # half of two octaves
    assert small.min() < 0.3
    assert small.max() > 0.55
    assert large.max() > 0.8


def test_training_varies_brightness_and_proportions() -> None:
    grey = torch.full((256, 3, 64, 64), 0.5)
    grey[..., 24:40, 24:40] = 0
    views = build(in_channels=3, train_range=(1.0, 1.0), draws=1).draw_views(grey)
    brightness = views[:, :, 0, 0].log() - math.log(0.5)
    assert 0.5 < brightness.mean(dim=1).std() < 0.9
    assert 0.05 < brightness.std(dim=1).mean() < 0.25
    dark = views[:, 0] < views[:, 0, :1, :1] / 2
    proportions = dark.any(dim=1).sum(dim=1) / dark.any(dim=2).sum(dim=1)
    assert 1.05 < proportions.max() < 1.35


@pytest.mark.usefixtures("plain_views")
def test_training_blurs_a_view_as_enlarging_would() -> None:
    """A blurred edge is less steep, down to the steepness in the most enlarged view."""
    edge = torch.zeros(256, 1, 64, 64)
    edge[..., 32:] = 1
    one = build(factors=(2.0,), train_range=(1.0, 2.0), draws=2)
    views = one.draw_views(edge)
    assert not views.isnan().any()
    steepness = views.diff(dim=3).amax(dim=(1, 2, 3))
    assert steepness.max() > 0.8
    assert 0.35 < steepness.min() < 0.55
    none = build(factors=(1.0,), train_range=(0.5, 1.0), draws=1)
    sharp = none.draw_views(edge).diff(dim=3).amax(dim=(1, 2, 3))
    assert sharp.mean() > 0.7  # nothing is enlarged, nothing blurred


def test_the_light_does_not_matter() -> None:
    model = build()
    bright, dark = (model.stages(light * (image() + OFFSET) - OFFSET) for light in (1.0, 1.5))
    torch.testing.assert_close(bright["stage1@1"], dark["stage1@1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (8, 8)}, "widths must be four numbers"),
        ({"widths": (8, 8, 0, 8)}, r"widths\[2\] must be an integer of at least 1"),
        ({"factors": ()}, "factors must be a list of numbers"),
        ({"factors": (1.0, -1.0)}, "factors must be positive"),
        ({"train_range": (2.0, 1.0)}, "train_range must be the smallest and the largest"),
        ({"window": 1.5}, "window must be from 0 to 1"),
        ({"draws": 0}, "draws must be an integer of at least 1"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build(**options)
