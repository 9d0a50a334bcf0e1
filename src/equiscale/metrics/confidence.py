"""How sure a measured accuracy is, and how well a classifier knows when it is right."""

from __future__ import annotations

import torch
from torch import Tensor

from equiscale.core.errors import OptionError, ShapeError

_NORMAL_QUANTILE = 1.959963984540054  # of 97.5 %


def accuracy_interval(accuracy: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return Wilson's 95 % confidence interval of each accuracy.

    Unlike a bootstrap, it has a width at 0 % and at 100 % too.

    Args:
        accuracy: Accuracies in [0, 1], of any shape.
        counts: Number of independent images behind each; 0 gives the interval from 0 to 1.

    Returns:
        Lower and upper ends, float64, of the shape of `accuracy`.

    Examples:
        >>> low, high = accuracy_interval(torch.tensor([0.5, 1.0]), torch.tensor([100, 100]))
        >>> low.tolist(), high.tolist()
        ([0.40383..., 0.96300...], [0.59616..., 1.0])
    """
    share, number = accuracy.double(), counts.double()
    square = _NORMAL_QUANTILE**2
    centre = (share * number).nan_to_num() + square / 2
    spread = (share * (1 - share) * number).nan_to_num().clamp(min=0) + square / 4
    width = _NORMAL_QUANTILE * spread.sqrt()
    low, high = ((centre + sign * width) / (number + square) for sign in (-1, 1))
    return low.clamp(min=0), high.clamp(max=1)


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = 10) -> Tensor:
    """Return the expected calibration error.

    Predictions are put into bins of equal width by their confidence. The error is the mean over
    bins of |accuracy − mean confidence|, weighted by the number of predictions.

    Args:
        confidence: `[N]` probability of each predicted class.
        correct: `[N]` whether each prediction is right.
        bins: Number of bins.

    Returns:
        A scalar, float64; NaN without predictions.

    Examples:
        >>> calibration_error(torch.tensor([0.9, 0.9, 0.6]), torch.tensor([True, False, True]))
        tensor(0.4000, dtype=torch.float64)
    """
    if confidence.ndim != 1 or confidence.shape != correct.shape:
        raise ShapeError(
            "expected confidence [N] and correct [N], got "
            f"{list(confidence.shape)} and {list(correct.shape)}"
        )
    if bins < 1:
        raise OptionError(f"bins must be at least 1, got {bins}")
    index = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64, device=confidence.device)
    gaps.index_add_(0, index, correct.double() - confidence.double())
    return gaps.abs().sum() / len(confidence)
