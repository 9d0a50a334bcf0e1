"""Earlier methods: image pyramids, learned transformations, resized kernels or inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.options import check_numbers, check_positive
from equiscale.layers.baselines.multi_scale import (
    KANAZAWA_EXPONENTS,
    KANAZAWA_FACTOR,
    XU_KERNEL_SIZES,
    KanazawaConv2d,
    XuConv2d,
)
from equiscale.layers.channels import (
    check_dropout,
    draw_views,
    spread_views,
)
from equiscale.models.classifier import CHANNELS, Classifier, MultiViewNet, TwoStageNet
from equiscale.models.registry import register_model

PYRAMID_LEVELS = 3


@register_model(
    "spatial_transform",
    title="Spatial transformer",
    group="paper",
    citation="Jaderberg et al., NeurIPS 2015, arXiv 1506.02025",
    guarantee="None by construction: a localisation network learns which affine transformation to "
    "undo, starting from the identity.",
    limits="It learns to undo only what it is trained on. Images must have the size `image_size`. "
    "Once trained, shifts change the logits.",
)
class SpatialTransformNet(Classifier):
    """`[N, C, H, W] -> [N, num_classes]`: a learned affine transformation, then `standard`.

    Args:
        kernel_size: Side k of the two kernels after the transformation.
        image_size: Height and width of the images, or one number for both; the localisation
            network works for this size only.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        kernel_size: int = 7,
        image_size: int | Sequence[int] = 64,
    ) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes, kernel_size=kernel_size)
        smallest = max(4, 2 * kernel_size - 1)
        height, width = _height_and_width(image_size, smallest)
        super().__init__(in_channels, num_classes, minimum_size=smallest)
        self.image_size = (height, width)
        self.localisation = nn.Sequential(
            nn.Conv2d(in_channels, 16, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * (height // 4) * (width // 4), 16),
            nn.ReLU(),
            _identity_transform(16),
        )
        self.conv1 = nn.Conv2d(in_channels, CHANNELS[0], kernel_size)
        self.conv2 = nn.Conv2d(*CHANNELS, kernel_size)
        self.head = nn.Linear(CHANNELS[1], num_classes)

    def transform(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, C, H, W]`: the transformed images."""
        theta = self.localisation(x).unflatten(1, (2, 3))
        grid = affine_grid(theta, x.shape[2], x.shape[3])
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] -> transform [N, C, H, W], stage1 [N, 16, ...], stage2 [N, 32, ...]`."""
        self.check_images(x)
        if tuple(x.shape[2:]) != self.image_size:
            height, width = self.image_size
            raise ShapeError(
                f"this model was built for images of {height}×{width} pixels, got "
                f"{x.shape[2]}×{x.shape[3]}; build it with image_size=({x.shape[2]}, {x.shape[3]})"
            )
        transformed = self.transform(x)
        first = F.relu(self.conv1(transformed))
        return {"transform": transformed, "stage1": first, "stage2": F.relu(self.conv2(first))}


def _height_and_width(image_size: int | Sequence[int], smallest: int) -> tuple[int, int]:
    sizes = [image_size] * 2 if isinstance(image_size, int) else image_size
    check_numbers("image_size", sizes)
    if len(sizes) != 2:
        raise OptionError(f"image_size must be one number or (height, width), got {image_size!r}")
    height, width = sizes
    check_positive(image_size=height)
    check_positive(image_size=width)
    if min(height, width) < smallest:
        raise OptionError(f"image_size must be at least {smallest}, got {image_size!r}")
    return height, width


def affine_grid(theta: Tensor, height: int, width: int) -> Tensor:
    """`[N, 2, 3] -> [N, H, W, 2]`: where each pixel is sampled, −1…1 from edge to edge.

    Equals `torch.nn.functional.affine_grid` with `align_corners=False`; empty batches work too.
    """
    rows = (2 * torch.arange(height, dtype=theta.dtype, device=theta.device) + 1) / height - 1
    columns = (2 * torch.arange(width, dtype=theta.dtype, device=theta.device) + 1) / width - 1
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    centres = torch.stack([x, y, torch.ones_like(x)], dim=-1)
    return torch.einsum("hwi,noi->nhwo", centres, theta)


def _identity_transform(features: int) -> nn.Linear:
    linear = nn.Linear(features, 6)
    nn.init.zeros_(linear.weight)
    with torch.no_grad():
        linear.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]))
    return linear


@register_model(
    "ensemble",
    title="Image pyramid ensemble",
    group="paper",
    citation="Altstidl et al., arXiv 2211.10288, after Burt and Adelson, 1983",
    guarantee="An image halved by the pyramid's own blur gives exactly the feature maps of the "
    "next level.",
    limits="Three levels, factors of two only. The logits are averaged with those of levels that "
    "show the object at the wrong size. Zero padding reaches far into the coarsest level.",
)
class EnsembleNet(MultiViewNet):
    """`[N, C, H, W] -> [N, num_classes]`: one network on a Gaussian pyramid, logits averaged.

    Args:
        kernel_size: Side k of both kernels; the convolutions are padded by k // 2.
        dropout: Probability with which a level is left out for an image in training.
    """

    def __init__(
        self, in_channels: int, num_classes: int, kernel_size: int = 7, dropout: float = 0.0
    ) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes, kernel_size=kernel_size)
        check_dropout(dropout)
        # The smallest level that is blurred must exceed the reflected border of two pixels.
        super().__init__(in_channels, num_classes, minimum_size=3 * 2 ** (PYRAMID_LEVELS - 2))
        self.dropout = dropout
        self.conv1 = nn.Conv2d(in_channels, CHANNELS[0], kernel_size, padding=kernel_size // 2)
        self.conv2 = nn.Conv2d(*CHANNELS, kernel_size, padding=kernel_size // 2)
        self.head = nn.Linear(CHANNELS[1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_classes]`; in training, each image sees some levels only."""
        if not (self.training and self.dropout):
            return self.classify(self.stages(x))
        self.check_images(x)
        pyramid = gaussian_pyramid(x, PYRAMID_LEVELS)
        kept = draw_views(len(x), PYRAMID_LEVELS, self.dropout).to(x.device)
        logits = [
            self.head(self.global_pool(self._maps(image[seen])[1]))
            for image, seen in zip(pyramid, kept.T, strict=True)
        ]
        return self.pool_logits(spread_views(logits, kept), kept)

    def _maps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = F.relu(self.conv1(x))
        return first, F.relu(self.conv2(first))

    def stages(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] -> level0.stage1, level0.stage2, level1.stage1, …`, the finest first."""
        self.check_images(x)
        stages = {}
        for level, image in enumerate(gaussian_pyramid(x, PYRAMID_LEVELS)):
            stages[f"level{level}.stage1"], stages[f"level{level}.stage2"] = self._maps(image)
        return stages

    def view_logits(self, features: Sequence[Tensor]) -> Tensor:
        """`views × [N, num_features] -> [N, views, num_classes]`, in one product."""
        return self.head(torch.stack(list(features))).transpose(0, 1)

    def pool_logits(self, logits: Tensor, kept: Tensor | None = None) -> Tensor:
        """`[N, views, num_classes] -> [N, num_classes]`: the mean."""
        return logits.mean(dim=1) if kept is None else super().pool_logits(logits, kept)


def gaussian_pyramid(x: Tensor, levels: int) -> list[Tensor]:
    """`[N, C, H, W] -> [N, C, H, W], [N, C, H // 2, W // 2], …`: blurred and halved each time."""
    pyramid = [x]
    for _ in range(levels - 1):
        blurred = binomial_blur(pyramid[-1])
        half = [blurred.shape[2] // 2, blurred.shape[3] // 2]
        pyramid.append(F.interpolate(blurred, half, mode="bilinear", align_corners=False))
    return pyramid


def binomial_blur(x: Tensor) -> Tensor:
    """`[N, C, H, W] -> [N, C, H, W]`: (1 4 6 4 1)/16 along both axes, borders reflected."""
    row = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], dtype=x.dtype, device=x.device) / 16
    kernel = torch.outer(row, row).expand(x.shape[1], 1, 5, 5)
    return F.conv2d(F.pad(x, [2] * 4, mode="reflect"), kernel, groups=x.shape[1])


@register_model(
    "xu",
    title="Multi-column, resized kernels",
    group="paper",
    citation="Xu et al., arXiv 1411.6369",
    guarantee="Five columns with kernels of five sizes; the strongest response counts: "
    "a blob detector loses 12 % when the blob grows by half, standard 31 %.",
    limits="Both layers of a column use the same size. Kernels are resized coarsely (bilinear or "
    "nearest).",
)
class XuNet(TwoStageNet):
    """`[N, C, H, W] -> [N, num_classes]`: columns of resized kernels, maximum over columns.

    Args:
        kernel_size: Side k of the reference kernels.
        kernel_sizes: Side of the kernels in each column.
    """

    conv1: XuConv2d
    conv2: XuConv2d

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        kernel_size: int = 7,
        kernel_sizes: Sequence[int] = XU_KERNEL_SIZES,
    ) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes, kernel_size=kernel_size)
        super().__init__(
            XuConv2d(in_channels, CHANNELS[0], kernel_size, kernel_sizes),
            XuConv2d(*CHANNELS, kernel_size, kernel_sizes, pool=True),
            in_channels,
            num_classes,
            minimum_size=1,
        )

    def scale_indices(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] -> stage2 [N, 32, H, W]`: the column that holds the maximum."""
        self.check_images(x)
        return {"stage2": self.conv2.scale_indices(F.relu(self.conv1(x)))}


@register_model(
    "kanazawa",
    title="Locally scale-invariant, resized inputs",
    group="paper",
    citation="Kanazawa et al., arXiv 1412.5104",
    guarantee="Every pixel takes its strongest response over seven sizes of the input, a factor "
    "of 1.26 apart: a blob detector loses 3 % when the blob grows by half, standard 31 "
    "%.",
    limits="Objects are shrunk by at most 1.59: from σ 2 to σ 9 the response falls by 74 %. "
    "Enlarged inputs are cropped to their centre. Resizing is bilinear, without antialiasing.",
)
class KanazawaNet(TwoStageNet):
    """`[N, C, H, W] -> [N, num_classes]`: shared kernels on resized inputs, maximum over sizes.

    Args:
        kernel_size: Side k of both kernels.
        exponents: Inputs are resized by 1.26^e; −2…4 in the paper, −2…3 in its release.
    """

    conv1: KanazawaConv2d
    conv2: KanazawaConv2d

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        kernel_size: int = 7,
        exponents: Sequence[float] = KANAZAWA_EXPONENTS,
    ) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes, kernel_size=kernel_size)
        check_numbers("exponents", exponents)
        super().__init__(
            KanazawaConv2d(in_channels, CHANNELS[0], kernel_size, exponents),
            KanazawaConv2d(*CHANNELS, kernel_size, exponents),
            in_channels,
            num_classes,
            # At least one pixel of the last response must be left at every size.
            minimum_size=2 * (kernel_size - 1) + _smallest_canvas(exponents),
        )

    def scale_indices(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] ->` index of the strongest exponent per stage, `[N, O, H', W']`."""
        self.check_images(x)
        first = F.relu(self.conv1(x))
        return {"stage1": self.conv1.scale_indices(x), "stage2": self.conv2.scale_indices(first)}


def _smallest_canvas(exponents: Sequence[float]) -> int:
    largest: float = max(abs(exponent) for exponent in exponents)
    return math.ceil(math.pow(KANAZAWA_FACTOR, largest))
