"""Random changes of training images; differences from the paper, which uses none."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.results.key import Augmentation

MAX_FACTOR = 2.0
MAX_SHIFT = 8


def augment(images: Tensor, kind: Augmentation, generator: torch.Generator) -> Tensor:
    """`[N, C, H, W] -> [N, C, H, W]`, each image changed by its own draw.

    Args:
        images: A batch.
        kind: `none`; `rescale`: resized about its centre by a factor that is log-uniform in
            [1/2, 2]; `shift`: moved by up to 8 pixels. What comes from outside is black.
        generator: Source of the draws, on the CPU, so that all devices see the same ones.
    """
    if kind == "none":
        return images
    count = len(images)
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
