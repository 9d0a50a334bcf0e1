"""What the job measures on the trained model besides its predictions.

To add a measurement: write a function of model and dataset in `metrics/` and register it
here. Its values and arrays land in the record under its name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from torch import nn

from equiscale.core.registry import Registry
from equiscale.data.dataset import StirDataset
from equiscale.metrics.cost import measure_cost
from equiscale.metrics.equivariance import measure_equivariance
from equiscale.metrics.selection import measure_scale_selection
from equiscale.runs.key import RunKey
from equiscale.runs.record import Measurement

Measure = Callable[[nn.Module, StirDataset], Measurement | None]
"""Returns None for a model or dataset that it does not apply to."""

_log = logging.getLogger(__name__)
MEASUREMENTS: Registry[Measure] = Registry("measurement")
MEASUREMENTS.add("equivariance", measure_equivariance)
MEASUREMENTS.add("scale_selection", measure_scale_selection)
MEASUREMENTS.add("cost", measure_cost)


def collect_measurements(
    model: nn.Module, dataset: StirDataset, key: RunKey
) -> dict[str, Measurement]:
    """Return what every registered measurement that applies says about a trained model."""
    results = {name: _measure(name, model, dataset, key) for name in MEASUREMENTS}
    return {name: result for name, result in results.items() if result is not None}


def _measure(name: str, model: nn.Module, dataset: StirDataset, key: RunKey) -> Measurement | None:
    """Measure; what goes wrong in a model's own code is noted and does not cost the run."""
    try:
        return MEASUREMENTS[name](model, dataset)
    except Exception as error:
        _log.warning("%s of %s cannot be measured: %s", name, key, error)
        return Measurement(values={"error": f"{type(error).__name__}: {error}"})
