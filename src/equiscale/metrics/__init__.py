"""Measurements on tensors: accuracy by object size, equivariance error, scale selection, cost.

The functions take predictions, labels, object sizes and feature maps. The classes accumulate
them over batches; they are `torchmetrics.Metric` if torchmetrics is installed, else plain modules
with the same methods.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from equiscale.metrics.accuracy import (
    BucketAccuracy,
    SizeAccuracy,
    accuracy_by_bucket,
    accuracy_by_size,
    usable_range,
)
from equiscale.metrics.confidence import accuracy_interval, calibration_error
from equiscale.metrics.cost import (
    OperationCount,
    count_operations,
    count_parameters,
    measure_inference_seconds,
    peak_memory_bytes,
)
from equiscale.metrics.equivariance import crop_boxes, equivariance_error
from equiscale.metrics.inference import predict
from equiscale.metrics.selection import scale_selection, selection_correlation

if TYPE_CHECKING:
    from equiscale.metrics.accumulators import AccuracyByBucket, EquivarianceError, UsableRange

__all__ = [
    "AccuracyByBucket",
    "BucketAccuracy",
    "EquivarianceError",
    "OperationCount",
    "SizeAccuracy",
    "UsableRange",
    "accuracy_by_bucket",
    "accuracy_by_size",
    "accuracy_interval",
    "calibration_error",
    "count_operations",
    "count_parameters",
    "crop_boxes",
    "equivariance_error",
    "measure_inference_seconds",
    "peak_memory_bytes",
    "predict",
    "scale_selection",
    "selection_correlation",
    "usable_range",
]

_ACCUMULATORS = ("AccuracyByBucket", "EquivarianceError", "UsableRange")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type is that of the name asked for
    if name in _ACCUMULATORS:  # on first use: torchmetrics takes a second to import
        return getattr(importlib.import_module("equiscale.metrics.accumulators"), name)
    raise AttributeError(f"module 'equiscale.metrics' has no attribute {name!r}")
