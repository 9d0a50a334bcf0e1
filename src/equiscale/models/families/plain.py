"""The plain convolutional network that the others are compared with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from equiscale.core.errors import OptionError
from equiscale.core.options import check_numbers, check_positive
from equiscale.models.classifier import CHANNELS, TwoStageNet
from equiscale.models.registry import register_model


@register_model(
    "standard",
    title="Standard CNN",
    group="paper",
    citation="Altstidl et al., arXiv 2211.10288",
    guarantee="Shifting an object that stays clear of the border leaves the logits unchanged; "
    "nothing is promised under rescaling.",
    limits="The response of a blob detector falls by 31 % when the blob grows by half, and by "
    "89 % from σ 2 to σ 9.",
)
class StandardNet(TwoStageNet):
    """`[N, C, H, W] -> [N, num_classes]`: two valid convolutions, global max, linear.

    Args:
        kernel_size: Side k of both kernels.
        widths: Channels after the first and the second convolution.
        batch_norm: Whether each convolution is followed by batch normalisation.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        kernel_size: int = 7,
        widths: Sequence[int] = CHANNELS,
        batch_norm: bool = False,
    ) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes, kernel_size=kernel_size)
        check_numbers("widths", widths)
        if len(widths) != 2:
            raise OptionError(f"widths must be two numbers, got {widths!r}")
        first, second = widths
        check_positive(**{"widths[0]": first, "widths[1]": second})
        convolutions = (
            nn.Conv2d(in_channels, first, kernel_size),
            nn.Conv2d(first, second, kernel_size),
        )
        conv1, conv2 = map(_normalised, convolutions) if batch_norm else convolutions
        super().__init__(
            conv1,
            conv2,
            in_channels,
            num_classes,
            minimum_size=2 * kernel_size - 1,
            features=second,
        )


def _normalised(conv: nn.Conv2d) -> nn.Module:
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(conv.out_channels)))
