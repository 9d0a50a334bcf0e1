"""Models that train in milliseconds, for tests that start real processes."""

from __future__ import annotations

import os
import time

from torch import Tensor, nn


class TinyNet(nn.Module):
    """`[N, C, 64, 64] -> [N, num_classes]`: learns a little, draws random numbers in training."""

    def __init__(self, in_channels: int, num_classes: int, pause: float = 0.0) -> None:
        super().__init__()
        self.pause = pause
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, 4, 8, stride=8), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1)
        )
        self.head = nn.Linear(4 * 64, num_classes)
        self.tied = self.head  # weights with two names

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.pause)
        logits: Tensor = self.head(self.body(x).flatten(1))
        return logits


class Diverging(TinyNet):
    """Its loss is not a number."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (float("nan") if self.training else 1.0)


class Raising(TinyNet):
    """Raises in training."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("no such luck")
        return super().forward(x)


class Deadly(TinyNet):
    """Kills its process in training, like a crash in a library."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            os._exit(9)
        return super().forward(x)


def colour_only(in_channels: int, num_classes: int) -> nn.Module:
    """Return a model that has its own idea of the number of channels."""
    return nn.Sequential(nn.Conv2d(3, 4, 64), nn.Flatten(), nn.Linear(4, num_classes))
