"""What the job measures on the trained model besides its predictions.

To add a measurement: write a function of model, dataset and key in `evaluation/` and register it
here. Its values and arrays land in the record under its name.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from equiscale.core.registry import Registry
from equiscale.data.dataset import StirDataset
from equiscale.results.key import RunKey
from equiscale.results.record import Measurement

Measure = Callable[[nn.Module, StirDataset, RunKey], Measurement | None]
"""Returns None for a model, dataset or scenario that it does not apply to."""

MEASUREMENTS: Registry[Measure] = Registry("measurement")


def collect_measurements(
    model: nn.Module, dataset: StirDataset, key: RunKey
) -> dict[str, Measurement]:
    """Return what every registered measurement that applies says about a trained model."""
    results = {name: MEASUREMENTS[name](model, dataset, key) for name in MEASUREMENTS}
    return {name: result for name, result in results.items() if result is not None}
