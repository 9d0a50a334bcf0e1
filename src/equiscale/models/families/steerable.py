"""Steerable scale-equivariant networks (SES), with the Hermite and the DISCO basis."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.core.options import check_positive
from equiscale.layers.baselines.disco import load_raw_basis
from equiscale.layers.baselines.steerable import (
    HERMITE_SCALES,
    SUPPORT,
    SteerableConv2d,
    SteerableLift2d,
    check_scales,
    disco_basis,
    hermite_basis,
)
from equiscale.models.classifier import CHANNELS, TwoStageNet
from equiscale.models.registry import register_model


class SteerableNet(TwoStageNet):
    """`[N, C, H, W] -> [N, num_classes]`: Z² → H, then H → H with scale extent 1, both valid.

    Args:
        basis: ψ `[F, S, K, K]` of both layers.
    """

    def __init__(self, in_channels: int, num_classes: int, basis: Tensor) -> None:
        super().__init__(
            SteerableLift2d(in_channels, CHANNELS[0], basis),
            SteerableConv2d(*CHANNELS, basis),
            in_channels,
            num_classes,
            minimum_size=2 * basis.shape[-1] - 1,
        )


@register_model(
    "hermite",
    title="Steerable (SES), Hermite basis",
    group="paper",
    citation="Sosnovik et al., ICLR 2020, arXiv 1910.11093",
    guarantee="Rescaling an image by the ratio of two of its four scales moves the response from "
    "one scale to the other: relative squared error 0.03 at 1.26 and 0.08 at 2 on "
    "smooth images; 0.04 and 0.30 if the kernel is not rescaled.",
    limits="Four scales, a factor of two in all. On white noise the error is 0.30 at 1.26 and 0.74 "
    "at 2. Two 15×15 kernels without padding cost 28 pixels.",
)
class HermiteNet(SteerableNet):
    """`[N, C, H, W] -> [N, num_classes]`: steerable convolutions with Hermite functions.

    Args:
        kernel_size: Effective size k; the basis has k² functions.
        support: Side of the kernels at the largest scale.
        scales: σ of the Hermite functions at each scale.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        kernel_size: int = 7,
        support: int = SUPPORT,
        scales: Sequence[float] = HERMITE_SCALES,
    ) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes, kernel_size=kernel_size)
        check_positive(support=support)
        super().__init__(in_channels, num_classes, hermite_basis(kernel_size, support, scales))


@register_model(
    "disco",
    title="Steerable (SES), DISCO basis",
    group="paper",
    citation="Sosnovik et al., BMVC 2021, arXiv 2106.02733",
    guarantee="As hermite, with a basis optimised so that resizing and convolving commute: "
    "relative squared error 0.002 at 1.26, 0.005 at 1.59 and exactly 0 at "
    "2 (from scale 1) on smooth images, half that of bicubically enlarged kernels or less.",
    limits="Four scales, a factor of two in all. The kernels of scale 2 are dilated: the error is "
    "0.02 from 1.26 and 0.01 from 1.59, twice that of bicubically enlarged kernels, and 0.45 and "
    "0.35 on white noise. As hermite, it costs 28 pixels.",
)
class DiscoNet(SteerableNet):
    """`[N, C, H, W] -> [N, num_classes]`: steerable convolutions with the DISCO basis.

    Args:
        scales: Which scales of the basis to use; all of them by default.
        basis: A file written by `python -m study.disco_basis`; by default the one in the package.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        scales: Sequence[float] | None = None,
        basis: str | None = None,
    ) -> None:
        check_positive(in_channels=in_channels, num_classes=num_classes)
        raw = load_raw_basis(basis)
        known = raw.scales
        chosen = known if scales is None else scales
        check_scales(chosen)
        if not set(chosen) <= set(known):
            raise OptionError(f"scales must be among those of the basis, {known}, got {chosen}")
        values = raw.values[:, [known.index(scale) for scale in chosen]]
        super().__init__(in_channels, num_classes, disco_basis(values))
