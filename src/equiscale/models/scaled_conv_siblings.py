"""The scaled networks of the paper with what it blames mended: border, shrunken kernels, energy."""

from __future__ import annotations

from functools import partial

from equiscale.models.base import register_model
from equiscale.models.scaled_conv_nets import (
    CITATION,
    PixelPoolNet,
    ScalePoolingNet,
    SlicePoolNet,
)

FULL_KERNEL_SIZES = tuple(range(3, 64, 2))
"""From less than half of 7 to the largest that fits the canvas."""

register_model(
    "pixel_pool_same",
    title="Pixel pooling, padded",
    group="beyond",
    citation=f"{CITATION}, padded",
    guarantee="",
    limits="",
)(partial(PixelPoolNet, padding="same"))

register_model(
    "slice_pool_same",
    title="Slice pooling, padded",
    group="beyond",
    citation=f"{CITATION}, padded",
    guarantee="",
    limits="",
)(partial(SlicePoolNet, padding="same"))

register_model(
    "pixel_pool_full",
    title="Pixel pooling, padded, kernels 3 to 63",
    group="beyond",
    citation=f"{CITATION}, padded, with shrunken kernels",
    guarantee="",
    limits="",
)(partial(PixelPoolNet, padding="same", kernel_sizes=FULL_KERNEL_SIZES))

register_model(
    "slice_pool_full",
    title="Slice pooling, padded, kernels 3 to 63",
    group="beyond",
    citation=f"{CITATION}, padded, with shrunken kernels",
    guarantee="",
    limits="",
)(partial(SlicePoolNet, padding="same", kernel_sizes=FULL_KERNEL_SIZES))


@register_model(
    "energy_pool_mean",
    title="Energy pooling, mean over the valid area",
    group="beyond",
    citation=f"{CITATION}, unbiased",
    guarantee="",
    limits="",
)
class MeanEnergyPoolNet(ScalePoolingNet):
    """`[N, C, H, W] -> [N, num_classes]`: the slice with the largest mean inside its frame."""

    pool = "mean_energy"
