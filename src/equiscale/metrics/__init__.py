"""What is measured on a trained model; each measurement is a function of model and data."""

from equiscale.metrics.accuracy import accuracy_per_size, measure_predictions, predict
from equiscale.metrics.cost import OperationCount, count_operations, measure_inference_seconds
from equiscale.metrics.equivariance import EquivarianceErrors, equivariance_error
from equiscale.metrics.selection import ScaleSelection, scale_selection

__all__ = [
    "EquivarianceErrors",
    "OperationCount",
    "ScaleSelection",
    "accuracy_per_size",
    "count_operations",
    "equivariance_error",
    "measure_inference_seconds",
    "measure_predictions",
    "predict",
    "scale_selection",
]
