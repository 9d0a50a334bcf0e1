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
    guarantee="As pixel_pool, and kernels of every size reach every pixel: of a blob of σ 9 near a "
    "corner, pixel_pool loses 33 %, this nothing.",
    limits="Kernels are only enlarged; kernels that reach beyond the border see black there, "
    "which may be an edge, so that logits of an untrained network change by up to 1.1 % "
    "when a small object moves by four pixels.",
)(partial(PixelPoolNet, padding="same"))

register_model(
    "slice_pool_same",
    title="Slice pooling, padded",
    group="beyond",
    citation=f"{CITATION}, padded",
    guarantee="As slice_pool, and kernels of every size reach every pixel.",
    limits="Kernels are only enlarged; one size per channel and image; black beyond the border "
    "may be an edge (logits of an untrained network change by up to 0.9 %).",
)(partial(SlicePoolNet, padding="same"))

register_model(
    "pixel_pool_full",
    title="Pixel pooling, padded, kernels 3 to 63",
    group="beyond",
    citation=f"{CITATION}, padded, with shrunken kernels",
    guarantee="As pixel_pool_same, and kernels are shrunk too, to 3 pixels: of 31 sizes, one of 5 "
    "pixels answers to a blob of σ 1.",
    limits="Kernels of 3 and 5 pixels hold less than the 7×7 they are resampled from; black "
    "beyond the border (logits of an untrained network change by up to 1.3 %).",
)(partial(PixelPoolNet, padding="same", kernel_sizes=FULL_KERNEL_SIZES))

register_model(
    "slice_pool_full",
    title="Slice pooling, padded, kernels 3 to 63",
    group="beyond",
    citation=f"{CITATION}, padded, with shrunken kernels",
    guarantee="As slice_pool_same, and kernels are shrunk too, to 3 pixels: of 31 sizes, one of 5 "
    "pixels answers to a blob of σ 1.",
    limits="Kernels of 3 and 5 pixels hold less than the 7×7 they are resampled from; one size "
    "per channel and image.",
)(partial(SlicePoolNet, padding="same", kernel_sizes=FULL_KERNEL_SIZES))


@register_model(
    "energy_pool_mean",
    title="Energy pooling, mean over the valid area",
    group="beyond",
    citation=f"{CITATION}, unbiased",
    guarantee="As energy_pool, without its liking for small kernels: on images of noise it takes "
    "many sizes, energy_pool always the smallest.",
    limits="The mean over the few pixels where a large kernel fits depends on where the object "
    "is: kernels of 53 to 57 for blobs of σ 2 to 9, and logits of an untrained network "
    "change by up to 52 % when a small object moves by four pixels.",
)
class MeanEnergyPoolNet(ScalePoolingNet):
    """`[N, C, H, W] -> [N, num_classes]`: the slice with the largest mean inside its frame."""

    pool = "mean_energy"
