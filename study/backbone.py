"""A small residual network, plain and in scale channels: what does it gain on photos?

`study/README.md` has the commands that train them.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

import equiscale
from equiscale.layers import RandomViews, scale_factors

WIDTHS = (24, 48, 96)
FACTORS = (*scale_factors(0.35, 1.0, per_octave=4), 2.0, 8**0.5)  # those of deep_channels


class Block(nn.Module):
    """`[N, C, H, W] -> [N, O, H/s, W/s]`: two convolutions and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride > 1:
            convolution = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, O, H/s, W/s]`."""
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class ResidualNet(nn.Sequential):
    """`[N, C, H, W] -> [N, num_classes]`: three residual blocks, global mean or maximum, linear."""

    def __init__(self, in_channels: int, num_classes: int, maximum: bool = False) -> None:
        stem = nn.Conv2d(in_channels, WIDTHS[0], 3, 2, padding=1, bias=False)
        super().__init__(
            *(stem, nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()),
            Block(WIDTHS[0], WIDTHS[0], 1),
            Block(WIDTHS[0], WIDTHS[1], 2),
            Block(WIDTHS[1], WIDTHS[2], 2),
            nn.AdaptiveMaxPool2d(1) if maximum else nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            # Maxima are far from zero and much alike.
            *([nn.BatchNorm1d(WIDTHS[2], affine=False)] if maximum else []),
            nn.Linear(WIDTHS[2], num_classes),
        )


def wrapped_net(in_channels: int, num_classes: int) -> nn.Module:
    """Return the network in scale channels, with the wrapper's defaults."""
    return equiscale.scale_channels(ResidualNet(in_channels, num_classes))


def max_net(in_channels: int, num_classes: int) -> nn.Module:
    """Return the network with a global maximum."""
    return ResidualNet(in_channels, num_classes, maximum=True)


def robust_net(in_channels: int, num_classes: int) -> nn.Module:
    """Return the network with a global maximum in scale channels, trained with random views."""
    return equiscale.scale_channels(
        max_net(in_channels, num_classes),
        factors=FACTORS,
        pool="logsumexp",
        train_views=RandomViews(),
    )
