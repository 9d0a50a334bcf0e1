"""Variants of models: named sets of options. Kept here because the report knows no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Variant:
    """A named set of options of a registered model.

    Attributes:
        base: Name of the model.
        group: `"beyond"` or `"control"`.
        options: Options that differ from the base model's defaults.
        title: One sentence on what differs.
    """

    base: str
    group: Literal["beyond", "control"]
    options: Mapping[str, Any]
    title: str


_ALL_SIZES = tuple(range(3, 64, 2))

VARIANTS: Mapping[str, Variant] = {
    "pixel_pool_same": Variant(
        "pixel_pool",
        "beyond",
        {"padding": "same"},
        "Zero padding, so that kernels of every size reach every pixel.",
    ),
    "pixel_pool_full": Variant(
        "pixel_pool",
        "beyond",
        {"padding": "same", "kernel_sizes": _ALL_SIZES},
        "Zero padding, and kernels from 3 to 63 pixels: shrunken ones too.",
    ),
    "slice_pool_same": Variant(
        "slice_pool",
        "beyond",
        {"padding": "same"},
        "Zero padding, so that kernels of every size reach every pixel.",
    ),
    "slice_pool_full": Variant(
        "slice_pool",
        "beyond",
        {"padding": "same", "kernel_sizes": _ALL_SIZES},
        "Zero padding, and kernels from 3 to 63 pixels: shrunken ones too.",
    ),
    "energy_pool_mean": Variant(
        "energy_pool",
        "beyond",
        {"pool": "mean_energy"},
        "Energy averaged over the valid area, without the bias towards small kernels.",
    ),
    "standard_bn": Variant(
        "standard",
        "control",
        {"batch_norm": True},
        "Batch normalisation, as gaussian_derivative and riesz have it.",
    ),
    "standard_wide": Variant(
        "standard",
        "control",
        {"widths": (39, 79)},
        "As many operations at inference as scale_channels.",
    ),
    "ensemble_dropout": Variant(
        "ensemble",
        "control",
        {"dropout": 0.5},
        "Dropout of views in training, as scale_channels has it.",
    ),
}
"""Name → base model, options, one sentence."""
