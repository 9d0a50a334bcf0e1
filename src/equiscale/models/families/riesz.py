"""Networks of Riesz transforms, which need no sampling of scales."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.core.options import check_numbers, check_positive
from equiscale.layers.baselines.riesz import RieszConv2d
from equiscale.models.classifier import Classifier
from equiscale.models.registry import register_model

WIDTHS = (16, 32, 48)


@register_model(
    "riesz",
    title="Riesz network",
    group="beyond",
    citation="Barisin et al., arXiv 2305.04665",
    guarantee="Each transform commutes with rescaling by any factor, exactly for periodic images; "
    "ReLU does as far as the pixels are fine enough. On a large canvas the features of a blob "
    "change by 6 % from σ 2 to σ 9, those of standard by 55 %. Shifts leave the logits unchanged.",
    limits="Kernels decay only with the square of the distance, so features also depend on the "
    "rest of the canvas, its periodic repetition and the black margin. The mean of an image is "
    "lost. Details smaller than a pixel do not exist.",
)
class RieszNet(Classifier):
    """`[N, C, H, W] -> [N, num_classes]`: learned combinations of Riesz transforms.

    Each layer mixes the Riesz transforms of order 1 and 2 of its input by 1×1 convolutions, with
    batch normalisation and ReLU; global max pooling and a linear layer follow. There is no kernel
    size and no scale to choose.

    Args:
        widths: Features after each layer.
        margin: Black pixels added below and to the right of the image. The transforms treat the
            canvas as periodic; the margin separates the object from its repetitions. The feature
            maps include it.
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
