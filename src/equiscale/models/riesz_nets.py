"""Networks of Riesz transforms: every object size at once, without sampling scales."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.core.options import check_numbers, check_positive
from equiscale.layers.baselines.riesz import RieszConv2d
from equiscale.models.base import Classifier, register_model

WIDTHS = (16, 32, 48)


@register_model(
    "riesz",
    title="Riesz network",
    group="beyond",
    citation="Barisin et al., arXiv 2305.04665",
    guarantee="The transforms of each layer commute with rescaling exactly, by any factor, for "
    "periodic images, its ReLU as far as pixels are fine enough; on a large canvas the features "
    "of a blob change by 6 % from σ 2 to σ 9, those of standard by 55 %. Shifts leave the logits "
    "unchanged.",
    limits="Kernels decay with the square of the distance only, so that whatever else is on "
    "the canvas, its period and the black margin are seen too; the mean of an image is "
    "lost; the smallest details are those of the pixel grid.",
)
class RieszNet(Classifier):
    """`[N, C, H, W] -> [N, num_classes]`: learned combinations of Riesz transforms.

    Each layer mixes the Riesz transforms of order 1 and 2 of its input by 1×1 convolutions, with
    batch normalisation and ReLU; behind the last the maximum over the image, and a linear layer.
    There is no kernel size and no scale to choose.

    Args:
        in_channels: Channels of the images.
        num_classes: Number of logits.
        widths: Features behind each layer.
        margin: Black pixels put below and to the right of the image. The canvas continues
            periodically, so that they separate the object from its repetitions; Riesz kernels
            decay with the square of the distance only. The feature maps keep them.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        widths: Sequence[int] = WIDTHS,
        margin: int = 16,
    ) -> None:
        check_numbers("widths", widths)
        check_positive(**{f"widths[{i}]": width for i, width in enumerate(widths)})
        if not isinstance(margin, int) or isinstance(margin, bool) or margin < 0:
            raise OptionError(f"margin must be an integer of at least 0, got {margin!r}")
        super().__init__(in_channels, num_classes, minimum_size=2)
        self.margin = margin
        before = (in_channels, *widths[:-1])
        self.layers = nn.ModuleList(map(RieszConv2d, before, widths))
        self.norms = nn.ModuleList(map(nn.BatchNorm2d, widths))
        self.head = nn.Linear(widths[-1], num_classes)

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] -> stage1, stage2, …`, `[N, O, H + margin, W + margin]` each."""
        self.check_images(x)
        maps = F.pad(x, (0, self.margin, 0, self.margin))
        stages = {}
        for index, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True), start=1):
            maps = F.relu(norm(layer(maps)))
            stages[f"stage{index}"] = maps
        return stages
