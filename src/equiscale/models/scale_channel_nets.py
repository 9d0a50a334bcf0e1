"""Networks that look at the image at several sizes and keep what they know at unseen ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.options import check_positive
from equiscale.layers.baselines.frugal_conv import FrugalConv2d
from equiscale.layers.channel_pool import ChannelPool, check_channel_pool, pool_channels
from equiscale.layers.channels import DROPOUT, FACTORS, TRAIN_FACTORS, ImagePyramid
from equiscale.layers.scaled.geometry import Padding
from equiscale.layers.scaled.kernel_scaling import Interpolation
from equiscale.models.base import CHANNELS, Classifier, register_model


@register_model(
    "scale_channels",
    title="Scale channels",
    group="beyond",
    citation="equiscale; after Jansson and Lindeberg, J. Math. Imaging Vis. 2022, arXiv 2106.06418",
    guarantee="Rescaling an object by the ratio of two factors hands what one channel saw to "
    "another one, up to resampling; the logits follow as far as the channels reach.",
    limits="An object that no channel shows at a trained size is classified by luck, and so is one "
    "of few pixels; a shift that is not a whole number of pixels in every copy changes the "
    "resampling.",
)
class ScaleChannelNet(Classifier):
    """`[N, C, H, W] -> [N, num_classes]`: `standard` on resized copies, pooled over them.

    The parameters are those of `standard`, by name and shape.

    Args:
        in_channels: Channels of the images.
        num_classes: Number of logits.
        kernel_size: Side k of both kernels; odd.
        factors: Sizes of the copies, relative to the image.
        train_factors: Sizes of the copies in training.
        pool: How the channels are combined; see `equiscale.layers.pool_channels`.
        dropout: Probability with which a channel sits out a training step.
        padding: `same` keeps small copies usable; `valid` as in `standard`.
        interpolation: How images are resized.
        blur: Blur of all copies, in their own pixels; see `ImagePyramid`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        kernel_size: int = 7,
        factors: Sequence[float] = FACTORS,
        train_factors: Sequence[float] | None = TRAIN_FACTORS,
        pool: ChannelPool = "mixture",
        dropout: float = DROPOUT,
        padding: Padding = "same",
        interpolation: Interpolation = "bicubic",
        blur: float = 0.0,
    ) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes, kernel_size=kernel_size)
        check_channel_pool(pool)
        pyramid = ImagePyramid(factors, train_factors, dropout, interpolation, blur)
        smallest_factor = min(pyramid.factors + pyramid.train_factors)
        valid_size = math.ceil((2 * kernel_size - 1) / smallest_factor)
        minimum_size = valid_size if padding == "valid" else 1
        super().__init__(in_channels, num_classes, minimum_size)
        self.pool: ChannelPool = pool
        self.conv1 = FrugalConv2d(in_channels, CHANNELS[0], kernel_size, padding=padding)
        self.conv2 = FrugalConv2d(*CHANNELS, kernel_size, padding=padding)
        self.head = nn.Linear(CHANNELS[1], num_classes)
        self.pyramid = pyramid

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_classes]`, in training from the channels that are drawn."""
        self.check_images(x)
        return self.classify(self._maps(self.pyramid(x)))

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] ->` maps of every channel, such as `stage2 at 0.5 [N, 32, H/2, W/2]`.

        All channels, whatever the dropout.
        """
        self.check_images(x)
        return self._maps(self.pyramid.copies(x, self.pyramid.factors))

    def _maps(self, copies: dict[float, Tensor]) -> dict[str, Tensor]:
        maps = {}
        for factor, copy in copies.items():
            first = F.relu(self.conv1(copy))
            maps[f"stage1 at {factor:.3g}"] = first
            maps[f"stage2 at {factor:.3g}"] = F.relu(self.conv2(first))
        return maps

    def classify(self, stages: dict[str, Tensor]) -> Tensor:
        """`stages(x) -> [N, num_classes]`: each channel's global max and logits, then pooled."""
        last = [maps for name, maps in stages.items() if name.startswith("stage2")]
        logits = torch.stack([self.head(self.global_pool(maps)) for maps in last], dim=1)
        return pool_channels(logits, self.pool)
