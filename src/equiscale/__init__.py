"""Scale-equivariant convolutions, models and the STIR benchmark for PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equiscale.benchmarking import Benchmark, benchmark
    from equiscale.core.errors import EquiscaleError
    from equiscale.core.spec import Scenario, Split
    from equiscale.data.catalog import register_dataset
    from equiscale.data.dataset import StirDataset, load_dataset
    from equiscale.layers import (
        ObjectSearch,
        ScaleChannels,
        ScalePool,
        SConv2d,
        convert,
        scale_channels,
    )
    from equiscale.models import (
        create_model,
        list_models,
        list_weights,
        load_model,
        register_model,
        save_model,
    )
    from equiscale.probing import probe
    from equiscale.sweeps.launch import register_launcher
    from equiscale.sweeps.measurements import register_measurement
    from equiscale.sweeps.tracking import register_tracker
    from equiscale.training.augmentation import RandomObjectSize

__version__ = "0.1.0"

# Public name -> the module that defines it. Looked up on first use, so that
# `import equiscale` stays fast and does not load torch.
_HOME = {
    "Benchmark": "equiscale.benchmarking",
    "EquiscaleError": "equiscale.core.errors",
    "ObjectSearch": "equiscale.layers",
    "RandomObjectSize": "equiscale.training.augmentation",
    "SConv2d": "equiscale.layers",
    "ScaleChannels": "equiscale.layers",
    "ScalePool": "equiscale.layers",
    "Scenario": "equiscale.core.spec",
    "Split": "equiscale.core.spec",
    "StirDataset": "equiscale.data.dataset",
    "benchmark": "equiscale.benchmarking",
    "convert": "equiscale.layers",
    "create_model": "equiscale.models",
    "list_models": "equiscale.models",
    "list_weights": "equiscale.models",
    "load_model": "equiscale.models",
    "load_dataset": "equiscale.data.dataset",
    "probe": "equiscale.probing",
    "register_dataset": "equiscale.data.catalog",
    "register_launcher": "equiscale.sweeps.launch",
    "register_measurement": "equiscale.sweeps.measurements",
    "register_model": "equiscale.models",
    "register_tracker": "equiscale.sweeps.tracking",
    "save_model": "equiscale.models",
    "scale_channels": "equiscale.layers",
}

# What there is more of in a room: `equiscale.layers.scale_factors`.
_ROOMS = ("analysis", "data", "layers", "metrics", "models", "probing", "testing")

__all__ = [
    "Benchmark",
    "EquiscaleError",
    "ObjectSearch",
    "RandomObjectSize",
    "SConv2d",
    "ScaleChannels",
    "ScalePool",
    "Scenario",
    "Split",
    "StirDataset",
    "__version__",
    "benchmark",
    "convert",
    "create_model",
    "list_models",
    "list_weights",
    "load_dataset",
    "load_model",
    "probe",
    "register_dataset",
    "register_launcher",
    "register_measurement",
    "register_model",
    "register_tracker",
    "save_model",
    "scale_channels",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type is that of the name asked for
    if name in _ROOMS:
        return importlib.import_module(f"equiscale.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'equiscale' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
