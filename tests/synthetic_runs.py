"""Records that look like those of real runs, made from the published means without training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equiscale.analysis.comparison import published_curves
from equiscale.analysis.selection import SIZES
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.models import list_models
from equiscale.runs.key import RunKey
from equiscale.runs.record import History, Measurement, Predictions, RunRecord
from equiscale.runs.store import RunStore
from equiscale.sweeps.measurements import size_pairs

OBJECTS = {"emoji": (36, 1)}
EPOCH_SECONDS = {"standard": 1.0, "pixel_pool": 9.0, "slice_pool": 8.0, "energy_pool": 6.0}
POOLING = {"pixel_pool": "pixel", "slice_pool": "slice", "energy_pool": "energy"}


@dataclass(frozen=True)
class SyntheticRuns:
    """Which records to make; every one is the same each time."""

    scenarios: Sequence[Scenario] = tuple(Scenario)
    models: Sequence[str] = tuple(list_models("paper"))
    seeds: Sequence[int] = (1, 2, 3)
    protocol: TrainingProtocol = field(default_factory=TrainingProtocol)
    class_names: Mapping[int, str] | None = None

    def records(self) -> Iterator[RunRecord]:
        for scenario, model, seed in product(self.scenarios, self.models, self.seeds):
            yield self.record("emoji", scenario, model, seed)

    def record(self, dataset: str, scenario: Scenario, model: str, seed: int) -> RunRecord:
        key = RunKey(
            model=model,
            dataset=dataset,
            dataset_hash=f"{dataset:x<64}",
            scenario=scenario,
            seed=seed,
            protocol=self.protocol,
        )
        generator = np.random.default_rng(int(key.run_id, 16))
        seconds = EPOCH_SECONDS.get(model, 2.0) * generator.uniform(0.9, 1.1, 12)
        return RunRecord(
            key=key,
            history=History(tuple(np.linspace(3, 0.1, 12)), tuple(np.linspace(0.1, 0.95, 12))),
            predictions=_predictions(key, generator),
            measurements=self._measurements(key, generator),
            timings={
                "epoch_seconds": [round(float(s), 4) for s in seconds],
                "run_seconds": round(float(seconds.sum()), 3),
            },
            environment={
                "equiscale": "0.1.0",
                "torch": "2.13.0",
                "python": "3.11.2",
                "device": "cpu",
                "threads": 1,
                "commit": "0" * 40,
            },
        )

    def _measurements(self, key: RunKey, generator: np.random.Generator) -> dict[str, Measurement]:
        found = {"equivariance": _equivariance(key, generator), "cost": _cost(key, generator)}
        if key.model in POOLING:
            found["scale_selection"] = self._selection(key, generator)
        return found

    def _selection(self, key: RunKey, generator: np.random.Generator) -> Measurement:
        classes, instances = OBJECTS.get(key.dataset, (4, 2))
        slopes = generator.uniform(-0.1, 0.6, 32)
        sizes = np.array(SIZES)[:, None, None]
        noise = generator.normal(0, 2.5, (len(SIZES), classes * instances, 32))
        chosen = _odd(7 + (sizes - 17) * slopes + noise)
        arrays: dict[str, NDArray[np.uint8]] = {
            "object_sizes": np.array(SIZES, np.uint8),
            "chosen.conv1": chosen[..., :16],
            "chosen.conv2": chosen,
        }
        if key.model == "pixel_pool":
            arrays["maps.conv2"] = _maps(slopes[:32])
        names = [f"class {index}" for index in range(classes)]
        for index, name in (self.class_names or {}).items():
            names[index] = name
        pool = POOLING[key.model]
        values = {
            "layers": {"conv1": pool, "conv2": pool},
            "class_names": names,
            "instances": instances,
            "example": 0,
        }
        return Measurement(values=values, arrays=arrays)


def write_records(records: Iterable[RunRecord], root: Path) -> RunStore:
    """Write records as a finished sweep leaves them, without its care for the disk."""
    store = RunStore(root)
    for record in records:
        directory = store.directory(record.key.run_id)
        directory.mkdir(parents=True)
        for name, data in record.to_files().items():
            (directory / name).write_bytes(data)
    return store


def _predictions(key: RunKey, generator: np.random.Generator) -> Predictions:
    classes, instances = OBJECTS.get(key.dataset, (4, 2))
    objects = classes * instances
    known = published_curves().get((key.dataset, key.scenario.value, key.model))
    means = np.full(len(SIZES), 0.5) if known is None else known
    chance = np.clip(np.asarray(means) + generator.normal(0, 0.02), 0, 1)
    labels = np.tile(np.repeat(np.arange(classes), instances), len(SIZES))
    hit = generator.random(len(labels)) < np.repeat(chance, objects)
    predicted = np.where(hit, labels, (labels + 1) % classes)
    return Predictions(
        predicted.astype(np.uint8),
        labels.astype(np.uint8),
        np.repeat(np.array(SIZES, np.uint8), objects),
    )


def _equivariance(key: RunKey, generator: np.random.Generator) -> Measurement:
    base = {"pixel_pool": 0.25, "slice_pool": 0.2, "energy_pool": 0.6, "kanazawa": 0.4}
    objects = int(np.prod(OBJECTS.get(key.dataset, (4, 2))))
    values: dict[str, object] = {"objects": objects, "undefined": 6}
    values |= {"stages": ["stage1", "stage2"], "pairs": [list(pair) for pair in size_pairs()]}
    arrays = {}
    for stage, factor in (("stage1", 0.7), ("stage2", 1.0)):
        spread = generator.uniform(0.8, 1.2, (len(size_pairs()), objects))
        errors = (base.get(key.model, 0.9) * factor * spread).astype(np.float32)
        errors[0, 0] = np.nan
        arrays[stage] = errors
        for (first, second), row in zip(size_pairs(), errors, strict=True):
            values[f"{stage}_{first}_{second}"] = round(float(np.nanmean(row)), 5)
            values[f"{stage}_{first}_{second}_undefined"] = int(np.isnan(row).sum())
    return Measurement(values=values, arrays=arrays)


def _cost(key: RunKey, generator: np.random.Generator) -> Measurement:
    scaled = key.model in POOLING
    return Measurement(
        values={
            "operations_by_formula": 12_709_081_472 if scaled else 140_950_656,
            "operations_executed": 1_124_267_136 if scaled else 140_952_960,
            "parameters": 27_108,
        },
        timings={
            "inference_seconds": float(generator.uniform(0.5, 0.6)) * (0.06 if scaled else 0.008),
            "peak_memory_bytes": 400_000_000,
        },
    )


def _maps(slopes: NDArray[np.float64]) -> NDArray[np.uint8]:
    axis = np.abs(np.arange(52) - 25.5)
    centre = np.clip(1 - np.maximum(axis[:, None], axis[None, :]) / 25.5, 0, 1)
    sizes = np.array(SIZES)[:, None, None, None]
    return _odd(7 + (sizes - 10) * np.abs(slopes)[:, None, None] * centre)


def _odd(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Round to the nearest kernel size 7, 9, …, 57."""
    return (7 + 2 * np.clip(np.rint((values - 7) / 2), 0, 25)).astype(np.uint8)
