"""Networks of Gaussian derivatives in several scale channels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.core.options import check_numbers, check_positive, check_positive_numbers
from equiscale.layers.baselines.gaussian_derivative import (
    BorderMode,
    GaussianDerivativeConv2d,
    SharedBatchNorm,
)
from equiscale.layers.channels import (
    ViewPool,
    check_dropout,
    check_view_pool,
    draw_views,
    spread_views,
)
from equiscale.models.classifier import MultiViewNet
from equiscale.models.registry import register_model

WIDTHS = (16, 32, 48, 64)
LARGEST_SIGMA = 1024


@register_model(
    "gaussian_derivative",
    title="Gaussian-derivative network",
    group="beyond",
    citation="Lindeberg 2022, Perzanowski and Lindeberg 2025",
    guarantee="Halving an image moves its maps two scale channels down, through all four layers: "
    "relative squared error at most 0.035 on smooth images; of a 7×7 convolution, 0.24.",
    limits="Five scale channels, a factor of 1.41 apart, four in all. The finest works at half a "
    "pixel, where differences are coarse (error 0.009 in one layer, 0.0004 from two pixels on). "
    "Coarser grids for large σ are not exact; a larger `sampling` is.",
)
class GaussianDerivativeNet(MultiViewNet):
    """`[N, C, H, W] -> [N, num_classes]`: Gaussian derivatives of growing σ in scale channels.

    Layer k of channel j works at `σ · channel_ratio^j · layer_ratio^k` pixels of the image, with
    coefficients and batch statistics that all channels share. Each layer ends in a ReLU; global max
    pooling, a linear layer and pooling of the logits over scale channels follow.

    Args:
        widths: Features after each layer.
        sigma: σ of the first layer of the finest channel, in pixels.
        layer_ratio: Ratio of σ from layer to layer.
        num_channels: Number of scale channels.
        channel_ratio: Ratio of σ from channel to channel.
        pool: How the logits are pooled over scale channels; see `equiscale.layers.pool_views`.
        dropout: Probability with which a scale channel is left out for an image in training.
        zero_order: Whether layers also use the smoothed input itself.
        sampling: Grids are halved as long as σ stays at least this many of their pixels; larger is
            more exact and slower.
        border: Padding of the images, `"zeros"` or `"replicate"`; feature maps are always padded
            with `"replicate"`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        widths: Sequence[int] = WIDTHS,
        sigma: float = 0.5,
        layer_ratio: float = 2.0,
        num_channels: int = 5,
        channel_ratio: float = math.sqrt(2),
        pool: ViewPool = "mean",
        dropout: float = 0.8,
        zero_order: bool = False,
        sampling: float = 1.0,
        border: BorderMode = "zeros",
    ) -> None:
        check_numbers("widths", widths)
        check_positive(
            num_channels=num_channels, **{f"widths[{i}]": w for i, w in enumerate(widths)}
        )
        check_positive_numbers(
            sigma=sigma, layer_ratio=layer_ratio, channel_ratio=channel_ratio, sampling=sampling
        )
        check_view_pool(pool)
        check_dropout(dropout)
        super().__init__(in_channels, num_classes, minimum_size=1)
        self.num_channels = num_channels
        self.pool = pool
        self.dropout = dropout
        finest = [sigma * layer_ratio**layer for layer in range(len(widths))]
        largest = max(finest) * max(1.0, channel_ratio ** (num_channels - 1))
        if largest > LARGEST_SIGMA or num_channels > LARGEST_SIGMA:
            raise OptionError(
                f"{num_channels} channels with a σ of up to {largest:.3g} pixels are too many or "
                f"too wide; both must be at most {LARGEST_SIGMA}"
            )
        sigmas = [[channel_ratio**j * s for s in finest] for j in range(num_channels)]
        grids = [sampling_grids(channel, sampling) for channel in sigmas]
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        for k, (before, width) in enumerate(zip((in_channels, *widths), widths, strict=False)):
            steps = [grid[k] for grid in grids]  # of the input grid, in image pixels
            self.layers.append(
                GaussianDerivativeConv2d(
                    before,
                    width,
                    [channel[k] / step for channel, step in zip(sigmas, steps, strict=True)],
                    [grid[k + 1] // grid[k] for grid in grids],
                    zero_order,
                    border if k == 0 else "replicate",
                )
            )
            self.norms.append(SharedBatchNorm(width))
        self.last_stage = f"stage{len(widths)}"
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_classes]`; in training, each image sees some channels only."""
        if not (self.training and self.dropout):
            return self.classify(self.stages(x))
        self.check_images(x)
        kept = draw_views(len(x), self.num_channels, self.dropout).to(x.device)
        *_, last = self._layers([x[seen] for seen in kept.T])
        logits = [self.head(self.global_pool(maps)) for maps in last]
        return self.pool_logits(spread_views(logits, kept), kept)

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] -> channel0.stage1, channel1.stage1, …, channel0.stage2, …`."""
        self.check_images(x)
        return {
            f"channel{channel}.stage{stage}": one
            for stage, maps in enumerate(self._layers([x] * self.num_channels), start=1)
            for channel, one in enumerate(maps)
        }

    def _layers(self, maps: list[Tensor]) -> Iterator[list[Tensor]]:
        """`S × [N_s, C, H, W] -> S × [N_s, O, H_s, W_s]` after each layer in turn."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            maps = norm([layer(one, channel) for channel, one in enumerate(maps)])
            maps = [F.relu(one) for one in maps]
            yield maps


def sampling_grids(sigmas: Sequence[float], sampling: float) -> list[int]:
    """Return the step of the grid before and after each layer: powers of two, from 1.

    Examples:
        >>> sampling_grids([1.0, 2.0, 4.5], sampling=1.0)
        [1, 1, 2, 4]
    """
    steps = [1]
    for sigma in sigmas:
        step = steps[-1]
        while sigma / (2 * step) >= sampling:
            step *= 2
        steps.append(step)
    return steps
