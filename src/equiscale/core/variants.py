"""Variants of models: named sets of options. Kept here because the report knows no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Variant:
    """A named set of options of a registered model."""

    base: str
    group: Literal["beyond", "control"]
    options: Mapping[str, Any]  # those that differ from the base model's defaults
    title: str  # one sentence on what differs


_SAME = {"padding": "same"}
_FULL = {**_SAME, "kernel_sizes": tuple(range(3, 64, 2))}
_EVERY_PIXEL = "Zero padding, so that kernels of every size reach every pixel."
_EVERY_SIZE = "Zero padding, and kernels from 3 to 63 pixels: shrunken ones too."
_MEAN = "Energy averaged over the valid area, without the bias towards small kernels."
_NORM = "Batch normalisation, as gaussian_derivative and riesz have it."
_WIDE = "As many operations at inference as scale_channels."
_DROPOUT = "Dropout of views in training, as scale_channels has it."

VARIANTS: Mapping[str, Variant] = {
    "pixel_pool_same": Variant("pixel_pool", "beyond", _SAME, _EVERY_PIXEL),
    "pixel_pool_full": Variant("pixel_pool", "beyond", _FULL, _EVERY_SIZE),
    "slice_pool_same": Variant("slice_pool", "beyond", _SAME, _EVERY_PIXEL),
    "slice_pool_full": Variant("slice_pool", "beyond", _FULL, _EVERY_SIZE),
    "energy_pool_mean": Variant("energy_pool", "beyond", {"pool": "mean_energy"}, _MEAN),
    "standard_bn": Variant("standard", "control", {"batch_norm": True}, _NORM),
    "standard_wide": Variant("standard", "control", {"widths": (39, 79)}, _WIDE),
    "ensemble_dropout": Variant("ensemble", "control", {"dropout": 0.5}, _DROPOUT),
}
"""Name → base model, options, one sentence."""
