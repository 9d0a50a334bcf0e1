"""Views of random size, for training scale channels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.core.options import (
    LARGEST_NUMBER,
    check_numbers,
    check_positive,
    check_positive_numbers,
)
from equiscale.layers.channels import apply_matrices, check_images

TRAIN_RANGE = (0.35, 4.0)
"""Smallest and largest view. The largest show parts of objects."""

WINDOW = 0.7
"""Part of this range, in octaves, from which the views of one image are drawn."""


class RandomViews(nn.Module):
    """`[N, C, H, W] -> [draws·N, C, H, W]`: views of random size and place, for training.

    Every image gets `draws` views from a random window of the range of sizes, so that the largest
    are not always among them. The window is divided into `draws` parts, and one view comes from
    each, the smallest first. A view is as large as the image: it shows a part of the enlarged
    image, or the reduced image with its border repeated around it. Views are also stretched, and
    blurred by a random amount, at most as much as an image enlarged by `enlarged`. Brightness and
    colour are drawn once per image. All views of a step are one batch, so that its batch statistics
    mix all sizes.

    Args:
        draws: Views per image.
        train_range: Smallest and largest size of a view, relative to the image.
        window: Part of that range, in octaves, from which the views of one image are drawn.
        enlarged: The largest view at inference.
        stretch: Largest logarithm of a random change of proportions, each way.
        light: Standard deviation of the logarithm of a random brightness. Intensities must not be
            normalised, if it is not 0.
        colour: The same of each channel.

    Raises:
        OptionError: An option has no meaning.

    Examples:
        >>> RandomViews(draws=4)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([8, 3, 64, 64])
    """

    def __init__(
        self,
        draws: int = 4,
        train_range: tuple[float, float] = TRAIN_RANGE,
        window: float = WINDOW,
        enlarged: float = math.sqrt(8),
        stretch: float = 0.1,
        light: float = 0.0,
        colour: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(draws=draws)
        check_numbers("train_range", train_range)
        if len(train_range) != 2 or not 0 < train_range[0] <= train_range[1]:
            raise OptionError(
                f"train_range must be the smallest and the largest factor, got {train_range!r}"
            )
        _check_amount("window", window, largest=1)
        check_positive_numbers(enlarged=enlarged)
        for name, amount in (("stretch", stretch), ("light", light), ("colour", colour)):
            _check_amount(name, amount)
        self.draws, self.train_range, self.window = draws, train_range, window
        self.enlarged, self.stretch, self.light, self.colour = enlarged, stretch, light, colour

    def extra_repr(self) -> str:
        """Show how views are drawn."""
        return f"draws={self.draws}, train_range={self.train_range}, window={self.window:g}"

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [draws·N, C, H, W]`: the first views of all images come first."""
        check_images(x)
        count, channels = x.shape[:2]
        light = self.light * torch.randn(count, 1, 1, 1)
        light = light + self.colour * torch.randn(count, channels, 1, 1)
        x = x * light.exp().to(x)
        lowest = (1 - self.window) * torch.rand(count).to(x.device)
        views = []
        for part in range(self.draws):
            chances = torch.rand(5, count).to(x.device)
            place = lowest + self.window * (part + chances[0]) / self.draws
            factor = self.train_range[0] ** (1 - place) * self.train_range[1] ** place
            width = 1 + (self.enlarged / factor.clamp_min(1) - 1).clamp_min(0) * chances[1]
            stretch = (self.stretch * (2 * chances[2] - 1)).exp()
            sides = zip(x.shape[2:], (factor * stretch, factor / stretch), chances[3:], strict=True)
            down, across = (
                resizing_matrices(side, side, times, (side - times * side) * chance, width)
                for side, times, chance in sides
            )
            views.append(apply_matrices(x, down[:, None], across[:, None]))
        return torch.cat(views)


def _check_amount(name: str, value: object, largest: float = LARGEST_NUMBER) -> None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not known or not 0 <= value <= largest:  # type: ignore[operator]
        limits = "of at least 0" if largest == LARGEST_NUMBER else f"from 0 to {largest:g}"
        raise OptionError(f"{name} must be a number {limits}, got {value!r}")


def resizing_matrices(
    side: int, new_side: int, factor: Tensor, start: Tensor, width: Tensor | float = 1.0
) -> Tensor:
    """`[N], [N], [N] -> [N, new_side, side]`: matrices of bilinear resizing with antialiasing.

    The image begins at `start` in the view; around it the view repeats its border. The filter is
    `width` times as wide as it must be.
    """
    support = ((1 / factor).clamp_min(1) * width)[:, None]
    new, old = (torch.arange(pixels, device=factor.device) for pixels in (new_side, side))
    places = (new + 0.5 - start[:, None]) / factor[:, None]
    inside = torch.minimum(places, side - support / 2).maximum(support / 2)
    distances = (inside[:, :, None] - old - 0.5).abs()
    weights = (1 - distances / support[:, :, None]).clamp_min(0)
    return weights / weights.sum(dim=2, keepdim=True)
