"""A deeper network on rescaled views of the image, made for photos."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.core.options import check_numbers, check_positive
from equiscale.layers.channels import ViewPool, apply_matrices, check_factors, scale_factors
from equiscale.layers.random_views import TRAIN_RANGE, WINDOW, RandomViews, resizing_matrices
from equiscale.models.classifier import MultiViewNet
from equiscale.models.registry import register_model

FACTORS = (*scale_factors(0.35, 1.0, per_octave=4), 2.0, math.sqrt(8))
"""Views in which the largest and the smallest objects of STIR reach trained sizes.

Reduced views are cheap, so there are many.
"""

LIGHT, COLOUR = 0.7, 0.15
"""In training: standard deviation of the logarithm of the brightness, and the same of each
channel."""

OFFSET = 0.05
"""Added to intensities before the logarithm, so that black is finite."""

STRIDES = (1, 2, 2, 1)
MARGIN = 8
"""Pixels around a reduced view."""

CACHED_PIXELS = 2**17
"""Pixels of a view that a CPU takes at once at inference, so that the maps stay in its cache."""


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
    training="--lr 0.003 --ema 0.99 --break-ties",
)
class DeepChannelNet(MultiViewNet):
    """`[N, C, H, W] -> [N, num_classes]`: four convolutions on rescaled views, answers pooled.

    Each view passes a logarithm of its intensities, which must be 0 to 1 and not normalised, four
    convolutions with batch normalisation, a global maximum and a normalisation of the pooled
    features. Filters of the first convolution have mean zero, so that brightness hardly matters.
    The views' logits are pooled by `logsumexp`: a view counts by the height of its logits, so that
    one in which nothing can be recognised need not be learned.

    In training every image gets `draws` random views instead (`equiscale.layers.RandomViews`),
    which vary in size, place, blur and proportions; brightness and colour vary between images.

    Args:
        in_channels: Channels of the images.
        num_classes: Number of logits.
        widths: Channels after each of the four convolutions.
        factors: Sizes of the views at inference, relative to the image.
        train_range: Smallest and largest size of a view in training.
        window: Part of that range from which the views of one image are drawn, up to 1.
        draws: Views per image in a training step.
    """

    last_stage = "stage4"
    pool: ViewPool = "logsumexp"
    version = 8  # logsumexp, windows of sizes, brightness is invisible

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        widths: Sequence[int] = (12, 32, 32, 48),
        factors: Sequence[float] = FACTORS,
        train_range: tuple[float, float] = TRAIN_RANGE,
        window: float = WINDOW,
        draws: int = 4,
    ) -> None:
        super().__init__(in_channels, num_classes, minimum_size=1)
        _check_widths(widths)
        self.factors = tuple(sorted(check_factors("factors", factors)))
        self.train_views = RandomViews(
            draws, train_range, window, max(factors), light=LIGHT, colour=COLOUR
        )
        self.norm = nn.BatchNorm2d(in_channels, affine=False)
        shapes = zip((in_channels, *widths), widths, (5, 3, 3, 3), STRIDES, strict=False)
        self.convs = nn.ModuleList(
            NormalisedConv2d(*shape, contrast=index == 0) for index, shape in enumerate(shapes)
        )
        # Maxima are far from zero and much alike; a linear layer would learn from them slowly.
        maximum, norm = self.global_pool, nn.BatchNorm1d(widths[-1], affine=False)
        self.global_pool = nn.Sequential(maximum, norm)
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_classes]`; in training, from views that are drawn."""
        if not self.training:
            return self.forward_head(self.forward_features(x))
        self.check_images(x)
        features = self._features(self.train_views(x))
        per_view = features.unflatten(0, (self.train_views.draws, len(x)))
        return self.pool_logits(self.view_logits(per_view.unbind()))

    def forward_features(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, views, num_features]`."""
        self.check_images(x)
        views = (whole_view(x, factor) for factor in self.factors)
        return torch.stack([self._features(view) for view in views], dim=1)

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] ->` maps of every view, `stage1@0.354` to `stage4@2.83`."""
        self.check_images(x)
        return {
            f"stage{index}@{factor:.3g}": map_
            for factor in self.factors
            for index, map_ in enumerate(self._maps(whole_view(x, factor)), start=1)
        }

    def _features(self, view: Tensor) -> Tensor:
        """`[N, C, h, w] -> [N, num_features]`."""
        if self.training or view.device.type != "cpu" or torch.compiler.is_compiling():
            return self.global_pool(self._maps(view)[-1])
        parts = view.split(max(1, CACHED_PIXELS // math.prod(view.shape[2:])))
        return torch.cat([self.global_pool(self._maps(part)[-1]) for part in parts])

    def _maps(self, view: Tensor) -> list[Tensor]:
        """Return the feature map after each stage."""
        maps = []
        # Logarithms after resizing, as in a photo taken from further away.
        view = self.norm(torch.log(view.clamp_min(0) + OFFSET))
        # Faster on a CPU. A clone: `contiguous` leaves the strides of a single channel alone.
        view = view.clone(memory_format=torch.channels_last)
        for conv in self.convs:
            view = F.relu(conv(view), inplace=True)
            maps.append(view)
        return maps


def _check_widths(widths: Sequence[int]) -> None:
    check_numbers("widths", widths)
    if len(widths) != len(STRIDES):
        raise OptionError(f"widths must be four numbers, got {widths!r}")
    check_positive(**{f"widths[{i}]": width for i, width in enumerate(widths)})


class NormalisedConv2d(nn.Module):
    """`[N, C, H, W] -> [N, O, H', W']`: a convolution and batch normalisation.

    With `contrast` the filters have mean zero and the border of the image is repeated: the layer
    responds to differences only, in the logarithm of an image to contrast, whatever the light. At
    inference the normalisation is part of the filters.

    Examples:
        >>> layer = NormalisedConv2d(1, 2, 3, stride=1, contrast=True).eval()
        >>> torch.allclose(layer(torch.ones(1, 1, 8, 8)), layer(torch.zeros(1, 1, 8, 8)), atol=1e-6)
        True
    """

    def __init__(
        self, channels: int, width: int, side: int, stride: int, contrast: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            *(channels, width, side, stride, side // 2),
            bias=False,
            padding_mode="replicate" if contrast else "zeros",
        )
        self.norm = nn.BatchNorm2d(width)
        self.contrast = contrast

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, O, H', W']`."""
        weight = self.conv.weight
        if self.contrast:
            weight = weight - weight.mean(dim=(2, 3), keepdim=True)
        if self.training:
            return self.norm(self.conv._conv_forward(x, weight, None))
        mean, variance = self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert variance is not None
        scale = self.norm.weight * (variance + self.norm.eps).rsqrt()
        bias = self.norm.bias - mean * scale
        return self.conv._conv_forward(x, weight * scale[:, None, None, None], bias)


def whole_view(x: Tensor, factor: float) -> Tensor:
    """Resize images; the view stands in the middle of a canvas, with a margin if it is reduced."""
    stride = math.prod(STRIDES)
    margin = 2 * MARGIN if factor < 1 else 0

    def matrix(side: int) -> Tensor:
        canvas = stride * math.ceil((round(factor * side) + margin) / stride)
        start = (canvas - factor * side) / 2
        if (factor * side).is_integer():
            start = math.floor(start)  # of an odd size: between pixels, the view would be blurred
        place = torch.tensor([[factor], [start]], device=x.device)
        return resizing_matrices(side, canvas, *place)

    height, width = x.shape[2:]
    return apply_matrices(x, matrix(height)[:, None], matrix(width)[:, None])
