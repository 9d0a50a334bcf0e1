"""What is measured on a trained model; each measurement is a function of model and data."""

from equiscale.evaluation.accuracy import accuracy_per_size, measure_predictions, predict
from equiscale.evaluation.cost import OperationCount, count_operations, measure_inference_seconds
from equiscale.evaluation.equivariance import EquivarianceErrors, equivariance_error
from equiscale.evaluation.selection import ScaleSelection, scale_selection

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
