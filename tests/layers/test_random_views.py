"""Random views: which sizes are drawn, and what changes with them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equiscale import ScaleChannels
from equiscale.core.errors import OptionError, ShapeError
from equiscale.layers import RandomViews


def draw(images: Tensor, **options: Any) -> Tensor:
    torch.manual_seed(0)
    views: Tensor = RandomViews(**{"stretch": 0.0, **options})(images)
    return views


def test_sizes_are_drawn_per_image_from_each_part_of_the_range() -> None:
    square = torch.zeros(64, 1, 64, 64)
    square[..., 24:40, 24:40] = 1
    views = draw(square, train_range=(0.5, 2.0), window=1, draws=2)
    assert views.shape == (128, 1, 64, 64)
    whole = views.sum(dim=(1, 2, 3)).sqrt() / 16  # no larger than the factor: some are cut
    assert whole[:64].max() <= 1.01
    assert whole[:64].std() > 0.1
    assert whole[64:].max() > 1.5


def test_the_views_of_an_image_fill_a_window_of_the_range() -> None:
    dot = torch.zeros(64, 1, 64, 64)
    dot[..., 30:34, 30:34] = 1
    views = draw(dot, train_range=(0.25, 1.0), window=0.5, draws=2)
    small, large = (views.sum(dim=(1, 2, 3)).sqrt() / 4).view(2, 64)
    assert (large / small).max() < 2.1  # half of two octaves
    assert small.min() < 0.3
    assert small.max() > 0.55
    assert large.max() > 0.8


def test_brightness_and_proportions_vary() -> None:
    grey = torch.full((256, 3, 64, 64), 0.5)
    grey[..., 24:40, 24:40] = 0
    views = draw(grey, train_range=(1.0, 1.0), draws=1, light=0.7, colour=0.15, stretch=0.1)
    brightness = views[:, :, 0, 0].log() - math.log(0.5)
    assert 0.5 < brightness.mean(dim=1).std() < 0.9
    assert 0.05 < brightness.std(dim=1).mean() < 0.25
    dark = views[:, 0] < views[:, 0, :1, :1] / 2
    proportions = dark.any(dim=1).sum(dim=1) / dark.any(dim=2).sum(dim=1)
    assert 1.05 < proportions.max() < 1.35


def test_without_light_intensities_stay() -> None:
    """So that normalised images can be used."""
    flat = torch.full((2, 3, 16, 16), -1.5)
    torch.testing.assert_close(draw(flat, draws=1), flat)


def test_a_view_is_blurred_as_enlarging_would() -> None:
    """A blurred edge is less steep, down to the steepness in the most enlarged view."""
    edge = torch.zeros(256, 1, 64, 64)
    edge[..., 32:] = 1
    views = draw(edge, train_range=(1.0, 2.0), draws=2, enlarged=2.0)
    assert not views.isnan().any()
    steepness = views.diff(dim=3).amax(dim=(1, 2, 3))
    assert steepness.max() > 0.8
    assert 0.35 < steepness.min() < 0.55
    sharp = draw(edge, train_range=(0.5, 1.0), draws=1, enlarged=1.0)
    assert sharp.diff(dim=3).amax(dim=(1, 2, 3)).mean() > 0.7  # nothing is enlarged or blurred


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws must be an integer of at least 1"),
        ({"train_range": (2.0, 1.0)}, "train_range must be the smallest and the largest"),
        ({"window": 1.5}, "window must be a number from 0 to 1"),
        ({"window": "x"}, "window must be a number from 0 to 1"),
        ({"stretch": math.nan}, "stretch must be a number of at least 0"),
        ({"light": -1}, "light must be a number of at least 0"),
        ({"enlarged": 0}, "enlarged must be a number above 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RandomViews(**options)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveMaxPool2d(1), nn.Flatten()
    )


def test_scale_channels_train_with_them_and_infer_as_ever() -> None:
    x = torch.rand(5, 3, 32, 32)
    plain, drawn = (ScaleChannels(network(), train_views=v) for v in (None, RandomViews(draws=3)))
    assert drawn.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(drawn.eval()(x), plain.eval()(x))
    torch.manual_seed(1)
    logits = drawn.train().view_logits(x)
    assert logits.shape == (5, 3, 8)
    torch.manual_seed(1)
    views = RandomViews(draws=3)(x).view(3, 5, 3, 32, 32)
    expected = network().train()(views.flatten(0, 1)).view(3, 5, 8)
    torch.testing.assert_close(logits, expected.transpose(0, 1))


def test_scale_channels_refuse_two_ways_to_train_and_what_is_no_image() -> None:
    with pytest.raises(OptionError, match="either train_factors or train_views"):
        ScaleChannels(network(), train_factors=(1.0,), train_views=RandomViews())
    with pytest.raises(ShapeError, match="views need images"):
        ScaleChannels(network(), train_views=RandomViews())(torch.rand(3, 32, 32))
