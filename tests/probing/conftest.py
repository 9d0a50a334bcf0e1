from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


class AreaNetwork(nn.Module):
    """Names the most frequent pure colour, or "nothing" if it covers less than `least` pixels.

    Its accuracy is known: 1 where object size² ≥ `least`, else 0.
    """

    names = ("blue", "green", "red", "nothing")

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = nn.Parameter(torch.tensor(float(least)))

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        others = images.sum(1, keepdim=True) - images
        area = ((images > 0.8) & (others < 0.4)).sum((2, 3)).float().flip(1)  # blue, green, red
        return torch.cat([area, self.least.expand(len(images), 1) - 0.5], dim=1)


@pytest.fixture(scope="session")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures of each of three colours."""
    root = tmp_path_factory.mktemp("squares")
    for name, colour in COLOURS.items():
        (root / name).mkdir()
        for number in range(4):
            Image.new("RGB", (80, 80), colour).save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def gradient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one smooth picture, 400×300, in which every place looks different."""
    root = tmp_path_factory.mktemp("gradient")
    y, x = np.mgrid[0:300, 0:400]
    pixels = np.stack([x * 255 / 399, y * 255 / 299, (x + y) * 255 / 698], axis=-1)
    Image.fromarray(pixels.round().astype(np.uint8)).save(root / "photo.png")
    return root
