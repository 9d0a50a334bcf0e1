"""Which runs a sweep consists of, and the paper's choice of the learning rate. Pure data."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from equiscale.core.errors import OptionError
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import OBJECT_SIZES, Scenario
from equiscale.runs.key import RunKey

DEFAULT_LEARNING_RATE = 1e-3
TRIAL_LEARNING_RATES = (1e-3, 1e-2)
TRIAL_SEEDS = 5


@dataclass(frozen=True)
class ModelChoice:
    """A model of a sweep: its name, the options that were given, and its version."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1


@dataclass(frozen=True)
class DatasetChoice:
    """A dataset of a sweep.

    Args:
        source: Name or path with which a worker loads it.
        name: Its name in records.
        content_hash: Its identity.
        num_objects: Objects per split and object size, for estimates of time.
        sizes: Its object sizes.
    """

    source: str
    name: str
    content_hash: str
    num_objects: int
    sizes: tuple[int, ...] = OBJECT_SIZES

    def count_train_images(self, scenario: Scenario) -> int:
        """Return the size of a scenario's training set."""
        return self.num_objects * len(scenario.train_sizes(self.sizes))


@dataclass(frozen=True)
class Sweep:
    """A grid of runs.

    Args:
        models: Models with their options.
        datasets: Datasets.
        scenarios: Scenarios.
        seeds: Seeds of every cell.
        learning_rates: Every cell is run with each of them, unless `select_learning_rate`.
        cell_rates: Learning rate by dataset, scenario and model, for cells that have one of
            their own.
        select_learning_rate: Try the rates on the first five seeds, keep the better one for the
            rest, as the paper does.
        protocol: How the models are trained.
    """

    models: tuple[ModelChoice, ...]
    datasets: tuple[DatasetChoice, ...]
    scenarios: tuple[Scenario, ...] = tuple(Scenario)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    learning_rates: tuple[float, ...] = (DEFAULT_LEARNING_RATE,)
    cell_rates: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    select_learning_rate: bool = False
    protocol: TrainingProtocol = field(default_factory=TrainingProtocol)

    def __post_init__(self) -> None:
        for name in ("models", "datasets", "scenarios", "seeds", "learning_rates"):
            if not getattr(self, name):
                raise OptionError(f"a sweep needs at least one of its {name.replace('_', ' ')}")

    def rates_of(self, cell: RunKey) -> tuple[float, ...]:
        """Return the learning rates of a cell."""
        own = self.cell_rates.get((cell.dataset, cell.scenario.value, cell.model))
        return self.learning_rates if own is None else (own,)

    def cells(self) -> Iterator[RunKey]:
        """Yield one key per model, dataset and scenario, with the first seed and rate."""
        for dataset in self.datasets:
            for scenario in self.scenarios:
                for model in self.models:
                    yield RunKey(
                        model=model.name,
                        model_options=model.options,
                        dataset=dataset.name,
                        dataset_hash=dataset.content_hash,
                        scenario=scenario,
                        seed=self.seeds[0],
                        learning_rate=self.learning_rates[0],
                        protocol=self.protocol,
                        model_version=model.version,
                    )


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep as far as they are known.

    Args:
        keys: Runs, the first seed of every cell before the second.
        chosen: Learning rate by cell (see `cell_name`), where it had to be chosen and is known.
        undecided: Runs that follow when their cell's learning rate is chosen; the rate in these
            keys is only a placeholder.
    """

    keys: tuple[RunKey, ...]
    chosen: Mapping[str, float] = field(default_factory=dict)
    undecided: tuple[RunKey, ...] = ()


def cell_name(key: RunKey) -> str:
    """Return what all seeds and learning rates of a cell have in common."""
    return replace(key, seed=0, learning_rate=1.0).run_id


def choose_learning_rate(accuracies: Mapping[float, Sequence[float]]) -> float:
    """Return the rate with the highest median validation accuracy; ties go to the smaller.

    Args:
        accuracies: Best validation accuracies of the trial runs by learning rate.

    Examples:
        >>> choose_learning_rate({1e-3: [0.5, 0.6, 0.9], 1e-2: [0.7, 0.6, 0.1]})
        0.001
    """
    return min(accuracies, key=lambda rate: (-statistics.median(accuracies[rate]), rate))


def plan_runs(sweep: Sweep, accuracies: Mapping[str, float]) -> SweepPlan:
    """Return the runs of a sweep, given what is known of finished ones.

    Args:
        sweep: The grid.
        accuracies: Best validation accuracy by run id; a run that diverged counts as 0.
    """
    if not sweep.select_learning_rate:
        keys = [
            replace(cell, seed=seed, learning_rate=rate)
            for cell in sweep.cells()
            for seed in sweep.seeds
            for rate in sweep.rates_of(cell)
        ]
        return SweepPlan(_in_order(keys))
    plans = [_plan_cell(cell, sweep.seeds, accuracies) for cell in sweep.cells()]
    return SweepPlan(
        keys=_in_order([key for plan in plans for key in plan.keys]),
        chosen={cell: rate for plan in plans for cell, rate in plan.chosen.items()},
        undecided=tuple(key for plan in plans for key in plan.undecided),
    )


def _plan_cell(cell: RunKey, seeds: Sequence[int], accuracies: Mapping[str, float]) -> SweepPlan:
    trials = {
        rate: [replace(cell, seed=seed, learning_rate=rate) for seed in seeds[:TRIAL_SEEDS]]
        for rate in TRIAL_LEARNING_RATES
    }
    keys = [key for trial in trials.values() for key in trial]
    rest = [replace(cell, seed=seed) for seed in seeds[TRIAL_SEEDS:]]
    if any(key.run_id not in accuracies for key in keys):
        return SweepPlan(tuple(keys), undecided=tuple(rest))
    rate = choose_learning_rate(
        {rate: [accuracies[key.run_id] for key in trial] for rate, trial in trials.items()}
    )
    keys += [replace(key, learning_rate=rate) for key in rest]
    return SweepPlan(tuple(keys), chosen={cell_name(cell): rate})


def _in_order(keys: Sequence[RunKey]) -> tuple[RunKey, ...]:
    """Return each key once, sorted by seed, so that a stopped sweep has covered every cell."""
    return tuple(sorted(dict.fromkeys(keys), key=lambda key: key.seed))
