"""Random changes of training images; differences from the paper, which uses none."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.core.protocol import Augmentation
from equiscale.core.spec import OBJECT_SIZES

MAX_FACTOR = 2.0
MAX_SHIFT = 8


def augment(
    images: Tensor, kind: Augmentation, generator: torch.Generator, boxes: Tensor | None = None
) -> Tensor:
    """`[N, C, H, W] -> [N, C, H, W]`, each image changed by its own draw.

    `rescale` knows nothing about the image, so that an object may leave the canvas in part.
    `rescale_object` is the strongest fair use of rescaling: it takes the boxes of the training
    objects and the range of object sizes, 17 to 64, as known, and nothing else.

    Args:
        images: A batch.
        kind: `none`; `rescale`: resized about its centre by a factor that is log-uniform in
            [1/2, 2]; `rescale_object`: resized, antialiased, so that the object's size is
            log-uniform in [17, 64], and placed anywhere on the canvas; `shift`: moved by up to 8
            pixels. What comes from outside is black.
        generator: Source of the draws, on the CPU, so that all devices see the same ones.
        boxes: `[N, 3]`, left, top and size of every object; `rescale_object` needs them.
    """
    if kind == "none":
        return images
    count = len(images)
    if kind == "rescale_object":
        if boxes is None:
            raise OptionError("augmentation='rescale_object' needs to know where the objects are")
        return _replace_objects(images, boxes, torch.rand(count, 3, generator=generator))
    if kind == "rescale":
        exponent = torch.rand(count, generator=generator) * 2 - 1
        factor, shift = torch.exp(math.log(MAX_FACTOR) * exponent), torch.zeros(count, 2)
    else:
        pixels = torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, (count, 2), generator=generator)
        extent = torch.tensor([images.shape[3], images.shape[2]])
        factor, shift = torch.ones(count), -2 * pixels / extent
    return _sample(images, factor.to(images.device), shift.to(images.device))


def _sample(images: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """`[N, C, H, W], [N], [N, 2] -> [N, C, H, W]`: enlarge by `factor`, sample at `shift`."""
    diagonal = torch.eye(2, device=images.device) / factor[:, None, None]
    theta = torch.cat([diagonal, shift[:, :, None]], dim=2).to(images.dtype)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def _replace_objects(images: Tensor, boxes: Tensor, draws: Tensor) -> Tensor:
    """`[N, C, H, W], [N, 3], [N, 3] -> [N, C, H, W]`: sizes and places from 0…1."""
    draws = draws.to(images.device)
    left, top, size = boxes.to(images.dtype).unbind(1)
    smallest, largest = min(OBJECT_SIZES), max(OBJECT_SIZES)
    new_size = smallest * (largest / smallest) ** draws[:, 0]
    height, width = images.shape[2:]
    across = _resizing(width, left, draws[:, 1] * (width - new_size), new_size / size)
    down = _resizing(height, top, draws[:, 2] * (height - new_size), new_size / size)
    return down[:, None] @ images @ across[:, None].transpose(2, 3)


def _resizing(length: int, start: Tensor, new_start: Tensor, factor: Tensor) -> Tensor:
    """`[N] × 3 -> [N, length, length]`: bilinear, and wider where the image shrinks.

    The pixel at `start` goes to `new_start`; distances grow by `factor`.
    """
    reach = 8  # enough for a factor of 1/4 beyond both ends
    pixels = torch.arange(-reach, length + reach, device=start.device) + 0.5
    places = (pixels[reach:-reach] - new_start[:, None]) / factor[:, None] + start[:, None]
    support = (1 / factor).clamp_min(1)[:, None, None]
    weights = (1 - (places[:, :, None] - pixels).abs() / support).clamp_min(0)
    inside = weights[:, :, reach:-reach]
    # Places far outside have no weights at all: 0 there, whatever they are divided by.
    total = weights.sum(dim=2, keepdim=True)
    expected = torch.maximum(total, 0.9 * support)
    return inside / expected
