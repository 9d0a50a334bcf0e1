"""What is measured on a trained model; each measurement is a function of model and data."""

from equiscale.evaluation.accuracy import accuracy_per_size, measure_predictions, predict

__all__ = ["accuracy_per_size", "measure_predictions", "predict"]
