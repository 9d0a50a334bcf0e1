"""How long runs will take, from the epochs of those that were measured. No torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from equiscale.core.files import canonical_json
from equiscale.runs.key import RunKey
from equiscale.runs.record import RunRecord
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps.grid import DatasetChoice


@dataclass(frozen=True)
class Timing:
    """What one finished run cost."""

    key: RunKey
    train_images: int
    run_seconds: float

    @cached_property
    def model(self) -> str:
        """The model with all that decides what an epoch of it costs."""
        return _model(self.key)

    @classmethod
    def of(cls, record: RunRecord) -> Timing:
        """Return the timing of a record."""
        sizes = record.predictions.sizes
        objects = len(record.predictions.labels) // len(sizes)
        images = objects * len(record.key.scenario.train_sizes(sizes))
        return cls(record.key, images, record.timings.get("run_seconds", math.nan))


class MeasuredRuns:
    """The timings of a store's finished runs; `problems` names records that cannot be used."""

    def __init__(self, store: RunStore) -> None:
        self.problems: list[str] = []
        self._store = store
        self._timings: dict[str, Timing] = {}

    def timings(self) -> list[Timing]:
        """Return the timings of all runs that are finished by now."""
        new = set(self._store.run_ids(RunState.DONE)) - set(self._timings)
        for record in self._store.load_all(new, self.problems):
            self._timings[record.key.run_id] = Timing.of(record)
        return [timing for timing in self._timings.values() if timing.run_seconds > 0]


@dataclass(frozen=True)
class Estimate:
    """Seconds of work in all and of the longest run, and how many runs nothing is known about."""

    seconds: float
    longest: float
    unknown_runs: int

    def seconds_left(self, slots: int) -> float:
        """Return the time until the last run ends if so many are computed at once."""
        return max(self.seconds / slots, self.longest)


def estimate_run(
    key: RunKey, timings: Sequence[Timing], dataset: DatasetChoice | None = None
) -> float | None:
    """Return the seconds a run will take, or None if its model has never been timed.

    Runs of the same cell are the best guide; then those of the same model on the same data; then
    any of the same model, per training image if the dataset is given.
    """
    model = _model(key)
    same_model = [t for t in timings if t.model == model]
    same_data = [t for t in same_model if t.key.dataset_hash == key.dataset_hash]
    same_cell = [t for t in same_data if t.key.scenario is key.scenario]
    nearest = same_cell or same_data or same_model
    if not nearest:
        return None
    if same_cell or dataset is None:
        return statistics.fmean(t.run_seconds for t in nearest)
    images = dataset.count_train_images(key.scenario)
    return images * statistics.fmean(t.run_seconds / t.train_images for t in nearest)


def estimate_runs(
    keys: Iterable[RunKey], timings: Sequence[Timing], datasets: Iterable[DatasetChoice]
) -> Estimate:
    """Return the work that runs on these datasets need in all."""
    by_hash = {dataset.content_hash: dataset for dataset in datasets}
    cells: dict[tuple[str, str, str], float | None] = {}
    seconds: list[float | None] = []
    for key in keys:
        cell = (_model(key), key.dataset_hash, key.scenario.value)
        if cell not in cells:
            cells[cell] = estimate_run(key, timings, by_hash[key.dataset_hash])
        seconds.append(cells[cell])
    known = [one for one in seconds if one is not None]
    return Estimate(sum(known), max(known, default=0.0), len(seconds) - len(known))


def _model(key: RunKey) -> str:
    """Return model, options and protocol as one text: they decide what an epoch costs."""
    return canonical_json([key.model, dict(key.model_options), key.protocol.label])
