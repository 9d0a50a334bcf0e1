"""What `deep_channels` adds to scale channels: its views, its drawing of views, its logarithm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.models import create_model
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


@pytest.mark.parametrize("side", [63, 65])
def test_the_view_at_full_size_is_the_image(side: int) -> None:
    x = torch.rand(1, 1, side, side, generator=torch.Generator().manual_seed(0))
    view = whole_view(x, 1.0)
    start = (view.shape[2] - side) // 2
    torch.testing.assert_close(view[:, :, start : start + side, start : start + side], x)


def test_rescaling_moves_the_response_to_another_view() -> None:
    """An image of half the size in its own view is the image in the view of half the size."""
    model = build(factors=(0.5, 1.0))
    x = image()
    half = F.interpolate(x, (32, 32), mode="bilinear", antialias=True)
    large, small = model.stages(x), model.stages(F.pad(half, (8,) * 4, mode="replicate"))
    torch.testing.assert_close(large["stage4@0.5"], small["stage4@1"])


def test_contrast_does_not_depend_on_the_light() -> None:
    """Up to the offset that keeps black finite."""
    model = build()
    bright, dark = (model.stages(light * (image() + OFFSET) - OFFSET) for light in (1.0, 1.5))
    torch.testing.assert_close(bright["stage1@1"], dark["stage1@1"])


def test_many_images_are_classified_in_parts() -> None:
    model = build()
    x = torch.rand(9, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(x), model.classify(model.stages(x)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (8, 8)}, "widths must be four numbers"),
        ({"widths": (8, 8, 0, 8)}, r"widths\[2\] must be an integer of at least 1"),
        ({"factors": ()}, "factors must be a list of numbers"),
        ({"factors": (1.0, -1.0)}, "factors must be positive"),
        ({"factors": (1.0, 1.001)}, "differ in three digits"),
        ({"train_range": (2.0, 1.0)}, "train_range must be the smallest and the largest"),
        ({"window": 1.5}, "window must be a number from 0 to 1"),
        ({"draws": 0}, "draws must be an integer of at least 1"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build(**options)
