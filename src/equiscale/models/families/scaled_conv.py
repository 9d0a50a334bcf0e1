"""Networks of scaled convolutions: three ways to pool over scale, and a 3-D convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from equiscale.core.options import check_positive
from equiscale.layers import SConv2d
from equiscale.layers.baselines.frugal_conv3d import FrugalConv3d
from equiscale.layers.scaled.geometry import Padding
from equiscale.layers.scaled.kernel_scaling import Interpolation
from equiscale.layers.scaled.method import Method
from equiscale.layers.scaled.pooling import PoolMode
from equiscale.models.classifier import CHANNELS, TwoStageNet
from equiscale.models.registry import register_model

CITATION = "Altstidl et al., arXiv 2211.10288"


def _classify_peaks(net: TwoStageNet, x: Tensor, pool: PoolMode | bool) -> Tensor:
    """Return the logits of a network whose second convolution can pool globally itself.

    ReLU keeps the order of numbers, so it may follow the global maximum.
    """
    net.check_images(x)
    first = F.relu(net.conv1(x), inplace=True)
    logits: Tensor = net.head(F.relu(net.conv2(first, pool=pool)))
    return logits


@register_model(
    "energy_pool",
    title="Scaled convolution, energy pooling",
    group="paper",
    fixed={"pool": "energy"},
    citation=CITATION,
    guarantee="Every channel takes the whole map of the kernel size with the largest sum.",
    limits="The sum does not follow the object: kernels of 39 to 41 for blobs of σ 2 to 9. Maps of "
    "large kernels are framed with zeros, which favours small kernels where responses are "
    "positive.",
)
@register_model(
    "slice_pool",
    title="Scaled convolution, slice pooling",
    group="paper",
    fixed={"pool": "slice"},
    citation=CITATION,
    guarantee="Every channel takes the whole map of the kernel size with the strongest response. "
    "That size follows the object: kernels of 9 to 43 for blobs of σ 2 to 9, r = 0.999.",
    limits="Kernels are only enlarged. One size per channel and image: objects of two sizes "
    "compete. Large kernels fit only near the centre.",
)
@register_model(
    "pixel_pool",
    title="Scaled convolution, pixel pooling",
    group="paper",
    fixed={"pool": "pixel"},
    citation=CITATION,
    guarantee="Every pixel takes its strongest response over all kernel sizes k, k + 2, … that "
    "fit: the response of a blob detector varies by 6 % from σ 2 to σ 9; standard loses 89 %.",
    limits="Kernels are only enlarged, so an object smaller than those trained on is matched only "
    "if training used enlarged kernels. A kernel of size K fits nowhere nearer than K/2 to the "
    "border: of a blob of σ 9 near a corner, 33 % of the response is lost.",
)
class ScalePoolingNet(TwoStageNet):
    """`[N, C, H, W] -> [N, num_classes]`: two scaled convolutions, each pooled over scale.

    Args:
        kernel_size: Side k of the learned kernels, which are applied at k, k + 2, … as far as fit.
        interpolation: How a kernel is resampled, see `SConv2d`.
        method: How the scaled convolution is computed, see `SConv2d`.
        padding: `"valid"`, or `"same"`: zero padding, every map has the size of the image.
        kernel_sizes: Kernel sizes to apply instead, all odd or all even; sizes below k shrink the
            learned kernel.
        pool: How to pool over scale, see `SConv2d`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        kernel_size: int = 7,
        interpolation: Interpolation = "bicubic",
        method: Method = "auto",
        padding: Padding = "valid",
        kernel_sizes: Sequence[int] | None = None,
        *,
        pool: PoolMode,
    ) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes, kernel_size=kernel_size)
        how: dict[str, Any] = {
            "interpolation": interpolation,
            "method": method,
            "pool": pool,
            "padding": padding,
            "kernel_sizes": kernel_sizes,
        }
        sizes = kernel_sizes or (kernel_size,)
        super().__init__(
            SConv2d(in_channels, CHANNELS[0], kernel_size, **how),
            SConv2d(*CHANNELS, kernel_size, **how),
            in_channels,
            num_classes,
            # The largest kernel must fit what the smallest one leaves.
            minimum_size=1 if padding == "same" else min(sizes) + max(sizes) - 1,
        )
        self.pool: PoolMode = pool

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_classes]`.

        After pixel or slice pooling, the global maximum is that of the whole stack. The layer finds
        it without computing the pooled map.
        """
        if self.pool not in ("pixel", "slice"):
            return super().forward(x)
        return _classify_peaks(self, x, pool="global")

    def scale_indices(self, x: Tensor) -> dict[str, Tensor]:
        """`[N, C, H, W] ->` chosen scale index i per stage; by default the kernel size is k + 2i.

        `[N, O, H', W']` for pixel pooling, `[N, O]` for slice and energy pooling.
        """
        self.check_images(x)
        first, index1 = self.conv1(x, return_indices=True)
        _, index2 = self.conv2(F.relu(first), return_indices=True)
        return {"stage1": index1, "stage2": index2}


@register_model(
    "conv3d",
    title="Scaled convolution, 3-D convolution",
    group="paper",
    citation=CITATION,
    guarantee="No pooling over scale: a 3-D convolution sees the responses of seven neighbouring "
    "kernel sizes at once.",
    limits="The scale axis is the kernel size k + 2i, so doubling an object does not shift the "
    "response along it. 6.6 times the parameters of the others.",
)
class Conv3dNet(TwoStageNet):
    """`[N, C, H, W] -> [N, num_classes]`: a scaled convolution, then a 3-D one over (S, H, W).

    Args:
        kernel_size: Side k of both kernels, the 3-D one along scale too.
        interpolation: How a kernel is resampled, see `SConv2d`.
        method: How the scaled convolution is computed, see `SConv2d`.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        kernel_size: int = 7,
        interpolation: Interpolation = "bicubic",
        method: Method = "auto",
    ) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes, kernel_size=kernel_size)
        super().__init__(
            SConv2d(
                in_channels, CHANNELS[0], kernel_size, interpolation=interpolation, method=method
            ),
            FrugalConv3d(*CHANNELS, kernel_size),
            in_channels,
            num_classes,
            # k scales must fit: ⌊(n − k) / 2⌋ + 1 ≥ k.
            minimum_size=3 * kernel_size - 2,
        )

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, num_classes]`: without storing the maps of stage 2."""
        return _classify_peaks(self, x, pool=True)
