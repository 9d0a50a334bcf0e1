"""One network on several rescaled views of the image, its answers pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.options import check_positive
from equiscale.layers.baselines.frugal_conv import FrugalConv2d
from equiscale.layers.channels import (
    DROPOUT,
    FACTORS,
    RescaledViews,
    ViewPool,
    check_view_pool,
    scale_factors,
)
from equiscale.layers.scaled.geometry import Padding
from equiscale.layers.scaled.kernel_scaling import Interpolation
from equiscale.models.classifier import CHANNELS, MultiViewNet
from equiscale.models.registry import register_model

TRAIN_FACTORS = scale_factors(0.125, 2.83)
"""Training also takes views so small or large that little can be recognised, to learn to be unsure
there."""


@register_model(
    "scale_channels",
    title="Scale channels",
    group="beyond",
    citation="equiscale; after Jansson and Lindeberg, J. Math. Imaging Vis. 2022, arXiv 2106.06418",
    guarantee="Rescaling an object by the ratio of two factors moves the response from one view to "
    "another, up to resampling; the logits follow as far as the views reach.",
    limits="An object that no view shows at a trained size, or that has few pixels left, is not "
    "recognised reliably. A shift that is not a whole number of pixels in every view changes the "
    "resampling.",
)
class ScaleChannelNet(MultiViewNet):
    """`[N, C, H, W] -> [N, num_classes]`: `standard` on rescaled views, their logits pooled.

    The parameters are those of `standard`, by name and shape. The output is that of
    `equiscale.ScaleChannels`: log-probabilities with `pool="mixture"` or `"vote"`, pooled logits
    otherwise. It trains on more views than the wrapper by default, and uses no canvas.

    Args:
        kernel_size: Side k of both kernels; odd.
        factors: Sizes of the views, relative to the image.
        train_factors: Sizes of the views in training.
        pool: How the views' logits are pooled; see `equiscale.layers.pool_views`.
        dropout: Probability with which a view is left out of a training step.
        padding: `"same"` keeps small views usable; `"valid"` as in `standard`.
        interpolation: How images are resized.
        blur: Blur of each view, in its own pixels; see `RescaledViews`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        kernel_size: int = 7,
        factors: Sequence[float] = FACTORS,
        train_factors: Sequence[float] | None = TRAIN_FACTORS,
        pool: ViewPool = "mixture",
        dropout: float = DROPOUT,
        padding: Padding = "same",
        interpolation: Interpolation = "bicubic",
        blur: float = 0.0,
    ) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes, kernel_size=kernel_size)
        check_view_pool(pool)
        views = RescaledViews(factors, train_factors, dropout, interpolation, blur, canvas="none")
        smallest_factor = min(views.factors + views.train_factors)
        valid_size = math.ceil((2 * kernel_size - 1) / smallest_factor)
        minimum_size = valid_size if padding == "valid" else 1
        super().__init__(in_channels, num_classes, minimum_size)
        self.pool = pool
        self.conv1 = FrugalConv2d(in_channels, CHANNELS[0], kernel_size, padding=padding)
        self.conv2 = FrugalConv2d(*CHANNELS, kernel_size, padding=padding)
        self.head = nn.Linear(CHANNELS[1], num_classes)
        self.views = views

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_classes]`; in training, from the views that are drawn."""
        self.check_images(x)
        return self.classify(self._maps(self.views(x)))

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] ->` maps of every view, such as `stage2@0.5 [N, 32, H/2, W/2]`."""
        self.check_images(x)
        return self._maps(self.views.make(x, self.views.factors))

    def _maps(self, views: dict[float, Tensor]) -> dict[str, Tensor]:
        maps = {}
        for factor, view in views.items():
            first = F.relu(self.conv1(view))
            maps[f"stage1@{factor:.3g}"] = first
            maps[f"stage2@{factor:.3g}"] = F.relu(self.conv2(first))
        return maps
