"""The ordinary convolutional network that all others are compared with."""

from __future__ import annotations

from torch import nn

from equiscale.core.options import check_positive
from equiscale.models.base import CHANNELS, TwoStageNet, register_model


@register_model(
    "standard",
    title="Standard CNN",
    citation="Altstidl et al., arXiv 2211.10288",
    guarantee="Shifting an object that stays clear of the border leaves the logits unchanged; "
    "nothing is promised under rescaling.",
    limits="The response of a blob detector falls by 31 % when the blob grows by half, and by "
    "89 % from σ 2 to σ 9.",
)
class StandardNet(TwoStageNet):
    """`[N, C, H, W] -> [N, num_classes]`: two valid convolutions, global max, linear.

    Args:
        in_channels: Channels of the images.
        num_classes: Number of logits.
        kernel_size: Side k of both kernels.
    """

    def __init__(self, in_channels: int, num_classes: int, kernel_size: int = 7) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes, kernel_size=kernel_size)
        super().__init__(
            nn.Conv2d(in_channels, CHANNELS[0], kernel_size),
            nn.Conv2d(*CHANNELS, kernel_size),
            in_channels,
            num_classes,
            minimum_size=2 * kernel_size - 1,
        )
