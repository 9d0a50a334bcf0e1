from __future__ import annotations

import pytest
import torch
from torch import nn

from equiscale.training.loop import LabelledImages


class SmallNet(nn.Module):
    """Learns blobs; dropout and batch normalisation make it depend on random state and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 5, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2)
        )
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(x).flatten(1))
        return logits


@pytest.fixture
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SmallNet()


def make_blobs(count: int, seed: int) -> LabelledImages:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = torch.rand(count, 1, 20, 20, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 5 * label : 5 * label + 5] += 1
    return LabelledImages(images, labels)


@pytest.fixture
def blobs() -> tuple[LabelledImages, LabelledImages]:
    """A training and a validation set that can be learned in a few epochs."""
    return make_blobs(70, 1), make_blobs(40, 2)
