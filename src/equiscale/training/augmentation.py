"""Augmentation of training images; the paper uses none."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.core.protocol import Augmentation
from equiscale.core.spec import OBJECT_SIZES

SIZE_RANGE = (min(OBJECT_SIZES), max(OBJECT_SIZES))
MAX_FACTOR = 2.0
MAX_SHIFT = 8


def augment(
    images: Tensor,
    kind: Augmentation,
    generator: torch.Generator,
    boxes: Tensor | None = None,
    size_range: tuple[int, int] = SIZE_RANGE,
) -> Tensor:
    """`[N, C, H, W] -> [N, C, H, W]`: augment each image independently.

    `rescale` resizes about the centre by a factor that is log-uniform in [1/2, 2]; part of an
    object may leave the canvas. `rescale_object` needs the boxes, `[N, 3]` left, top and size: it
    resizes with antialiasing, so that the object size is log-uniform in `size_range`, and places
    the object anywhere on the canvas. `shift` moves by up to 8 pixels. Pixels from outside the
    image are black. The generator is on the CPU, so that all devices draw the same numbers.
    """
    if kind == "none":
        return images
    count = len(images)
    if kind == "rescale_object":
        if boxes is None:
            raise OptionError("augmentation='rescale_object' needs the boxes of the objects")
        draws = torch.rand(count, 3, generator=generator)
        return _replace_objects(images, boxes, draws, size_range)
    if kind == "rescale":
        exponent = torch.rand(count, generator=generator) * 2 - 1
        factor, shift = torch.exp(math.log(MAX_FACTOR) * exponent), torch.zeros(count, 2)
    else:
        pixels = torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, (count, 2), generator=generator)
        extent = torch.tensor([images.shape[3], images.shape[2]])
        factor, shift = torch.ones(count), -2 * pixels / extent
    return _sample(images, factor.to(images.device), shift.to(images.device))


def _sample(images: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """`[N, C, H, W], [N], [N, 2] -> [N, C, H, W]`: enlarge by `factor` and shift."""
    diagonal = torch.eye(2, device=images.device) / factor[:, None, None]
    theta = torch.cat([diagonal, shift[:, :, None]], dim=2).to(images.dtype)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def _replace_objects(
    images: Tensor, boxes: Tensor, draws: Tensor, size_range: tuple[int, int]
) -> Tensor:
    """`[N, C, H, W], [N, 3], [N, 3] -> [N, C, H, W]`: draws in [0, 1] give sizes and places."""
    draws = draws.to(images.device)
    left, top, size = boxes.to(images.dtype).unbind(1)
    smallest, largest = size_range
    new_size = smallest * (largest / smallest) ** draws[:, 0]
    height, width = images.shape[2:]
    factor, reach = new_size / size, 2 * math.ceil(largest / smallest)
    across = _resizing(width, left, draws[:, 1] * (width - new_size), factor, reach)
    down = _resizing(height, top, draws[:, 2] * (height - new_size), factor, reach)
    return down[:, None] @ images @ across[:, None].transpose(2, 3)


def _resizing(
    length: int, start: Tensor, new_start: Tensor, factor: Tensor, reach: int = 8
) -> Tensor:
    """`[N] × 3 -> [N, length, length]`: matrices of bilinear resizing with antialiasing.

    The pixel at `start` moves to `new_start`; distances grow by `factor`. Weights of the smallest
    factor reach `reach` pixels beyond both ends.
    """
    pixels = torch.arange(-reach, length + reach, device=start.device) + 0.5
    places = (pixels[reach:-reach] - new_start[:, None]) / factor[:, None] + start[:, None]
    support = (1 / factor).clamp_min(1)[:, None, None]
    weights = (1 - (places[:, :, None] - pixels).abs() / support).clamp_min(0)
    inside = weights[:, :, reach:-reach]
    # Places far outside have no weights: 0 / expected, not 0 / 0.
    total = weights.sum(dim=2, keepdim=True)
    expected = torch.maximum(total, 0.9 * support)
    return inside / expected
