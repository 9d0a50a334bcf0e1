"""A deeper network on rescaled views of the image, made for photos."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.core.options import check_numbers, check_positive
from equiscale.layers.channels import ViewPool, apply_matrices, scale_factors
from equiscale.models.classifier import MultiViewNet
from equiscale.models.registry import register_model

FACTORS = scale_factors(0.35, 2.01)
"""The range of object sizes in STIR, and half an octave more to enlarge small objects."""

OFFSET = 0.2
"""Added to intensities before the logarithm, so that black is finite and soft edges stay soft."""

STRIDES = (1, 2, 2, 1)
MARGIN = 8
"""Pixels around a reduced view."""


@register_model(
    "deep_channels",
    title="Deep scale channels",
    group="beyond",
    citation="equiscale; after Jansson and Lindeberg, J. Math. Imaging Vis. 2022, arXiv 2106.06418",
    guarantee="Rescaling an object by the ratio of two factors moves the response from one view to "
    "another, up to resampling; the logits follow as far as the views reach.",
    limits="An object that no view shows at a trained size, or that has few pixels left, is not "
    "recognised reliably. The features are on a grid of every fourth pixel of a view, so that "
    "other shifts change the logits.",
)
class DeepChannelNet(MultiViewNet):
    """`[N, C, H, W] -> [N, num_classes]`: four convolutions on rescaled views, answers averaged.

    Each view passes a logarithm of its intensities, which must be 0 to 1 and not normalised, four
    convolutions with batch normalisation, a global maximum, a normalisation of the pooled features
    and a linear layer. The output is the logarithm of the mean of the views' probabilities, so a
    view in which nothing is recognised need not be learned.

    In training every image gets `draws` views of random size and place, each from its own part of
    the range of factors. A batch then mixes all sizes, and so do its batch statistics. Each view
    is also blurred at random, as small objects are in the views that enlarge them.

    Args:
        in_channels: Channels of the images.
        num_classes: Number of logits.
        widths: Channels after each of the four convolutions.
        factors: Sizes of the views, relative to the image. Training draws between the smallest
            and the largest.
        draws: Views per image in a training step.
    """

    last_stage = "stage4"
    pool: ViewPool = "mixture"
    version = 4  # pooled features normalised, mixture

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        widths: Sequence[int] = (12, 32, 32, 48),
        factors: Sequence[float] = FACTORS,
        draws: int = 4,
    ) -> None:
        super().__init__(in_channels, num_classes, minimum_size=1)
        check_numbers("widths", widths)
        if len(widths) != len(STRIDES):
            raise OptionError(f"widths must be four numbers, got {widths!r}")
        check_positive(draws=draws, **{f"widths[{i}]": width for i, width in enumerate(widths)})
        check_numbers("factors", factors)
        if min(factors) <= 0:
            raise OptionError(f"factors must be positive, got {factors!r}")
        self.factors = tuple(sorted(map(float, factors)))
        self.draws = draws
        self.norm = nn.BatchNorm2d(in_channels, affine=False)
        channels = (in_channels, *widths)
        self.convs = nn.ModuleList(
            _normalised(nn.Conv2d(channels[i], width, side, stride, side // 2, bias=False))
            for i, (width, side, stride) in enumerate(
                zip(widths, (5, 3, 3, 3), STRIDES, strict=True)
            )
        )
        # Maxima are far from zero and much alike; a linear layer would learn from them slowly.
        maximum, norm = self.global_pool, nn.BatchNorm1d(widths[-1], affine=False)
        self.global_pool = nn.Sequential(maximum, norm)
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_classes]`; in training, from views that are drawn."""
        if not self.training:
            return self.classify(self.stages(x))
        self.check_images(x)
        *_, last = self._maps(self.draw_views(x))
        features = self.global_pool(last).unflatten(0, (self.draws, len(x)))
        return self.pool_logits(self.view_logits(features.unbind(0)))

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] ->` maps of every view, `stage1@0.354` to `stage4@2`."""
        self.check_images(x)
        return {
            f"stage{index}@{factor:.3g}": map_
            for factor in self.factors
            for index, map_ in enumerate(self._maps(whole_view(x, factor)), start=1)
        }

    def draw_views(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [draws·N, C, H, W]`: each image at random sizes and places."""
        first, octaves = self.factors[0], math.log2(self.factors[-1] / self.factors[0])
        views = []
        for part in range(self.draws):
            chances = torch.rand(4, len(x))
            factor = first * 2 ** (octaves * (part + chances[0]) / self.draws)
            # At most as blurred as what the largest factor enlarges.
            width = 1 + (self.factors[-1] / factor.clamp_min(1) - 1).clamp_min(0) * chances[3]
            sides = zip(x.shape[2:], chances[1:3], strict=True)
            down, across = (
                resizing_matrices(side, side, factor, (side - factor * side) * chance, width)
                for side, chance in sides
            )
            views.append(apply_matrices(x, down[:, None], across[:, None]))
        return torch.cat(views)

    def _maps(self, view: Tensor) -> list[Tensor]:
        """Return the feature map after each stage."""
        maps = []
        # Logarithms after resizing, as in a photo taken from further away.
        view = self.norm(torch.log(view.clamp_min(0) + OFFSET))
        view = view.contiguous(memory_format=torch.channels_last)  # faster on a CPU
        for conv in self.convs:
            view = F.relu(conv(view))
            maps.append(view)
        return maps


def _normalised(conv: nn.Conv2d) -> nn.Module:
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(conv.out_channels)))


def whole_view(x: Tensor, factor: float) -> Tensor:
    """Resize images; the view stands in the middle of a canvas, with a margin if it is reduced."""
    stride = math.prod(STRIDES)
    margin = 2 * MARGIN if factor < 1 else 0

    def matrix(side: int) -> Tensor:
        canvas = stride * math.ceil((round(factor * side) + margin) / stride)
        start = torch.tensor([(canvas - factor * side) / 2])
        return resizing_matrices(side, canvas, torch.tensor([factor]), start)

    height, width = x.shape[2:]
    return apply_matrices(x, matrix(height)[:, None], matrix(width)[:, None])


def resizing_matrices(
    side: int, new_side: int, factor: Tensor, start: Tensor, width: Tensor | float = 1.0
) -> Tensor:
    """`[N], [N], [N] -> [N, new_side, side]`: matrices of bilinear resizing with antialiasing.

    The image begins at `start` in the view; around it the view repeats its border. The filter is
    `width` times as wide as it must be.
    """
    support = ((1 / factor).clamp_min(1) * width)[:, None]
    places = (torch.arange(new_side) + 0.5 - start[:, None]) / factor[:, None]
    inside = torch.minimum(places, side - support / 2).maximum(support / 2)
    distances = (inside[:, :, None] - torch.arange(side) - 0.5).abs()
    weights = (1 - distances / support[:, :, None]).clamp_min(0)
    return weights / weights.sum(dim=2, keepdim=True)
