"""From a request to a finished sweep: look names up, see what is missing, run it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from equiscale.core.errors import EquiscaleError, OptionError
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.data.catalog import CARDS
from equiscale.data.dataset import StirDataset, load_dataset
from equiscale.models import MODEL_GROUPS, list_models, model_card
from equiscale.runs.key import RunKey
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps.estimate import Estimate, MeasuredRuns, estimate_runs
from equiscale.sweeps.grid import (
    DEFAULT_LEARNING_RATE,
    DatasetChoice,
    ModelChoice,
    Sweep,
    SweepPlan,
    plan_runs,
)
from equiscale.sweeps.job import JobSettings, check_model
from equiscale.sweeps.launch import Launcher, Tick
from equiscale.sweeps.published import PUBLISHED, published_learning_rates
from equiscale.sweeps.sweep_file import ALL, SweepRequest

WAIT_SECONDS = 1.0
MAX_IDLE_ROUNDS = 3
_log = logging.getLogger(__name__)


class NoProgressError(EquiscaleError):
    """Several rounds of a sweep ended without a finished run."""


@dataclass(frozen=True)
class SweepStatus:
    """Where the runs of a sweep stand.

    Args:
        plan: The runs.
        states: State by run id.
        problems: What is wrong with records that cannot be used.
    """

    plan: SweepPlan
    states: dict[str, RunState]
    problems: tuple[str, ...] = ()

    def keys(self, *states: RunState) -> list[RunKey]:
        """Return the runs in any of these states, in order."""
        return [key for key in self.plan.keys if self.states[key.run_id] in states]

    def count(self, state: RunState) -> int:
        """Return how many runs are in a state."""
        return len(self.keys(state))


def resolve_sweep(request: SweepRequest) -> Sweep:
    """Look up every name of a request, and check that each model can take each dataset."""
    rates = request.learning_rates
    given = rates if isinstance(rates, tuple) else ()
    if not given and rates and rates != PUBLISHED:
        raise OptionError(f"learning_rates must be numbers or {PUBLISHED!r}, got {rates!r}")
    if request.select_learning_rate and rates:
        raise OptionError(
            "either give learning rates or have them selected: the selection always tries the "
            "two of the paper"
        )
    # Names and numbers are checked first: a dataset may have to be downloaded.
    models = find_choices(request)
    scenarios = find_scenarios(request.scenarios)
    protocol = TrainingProtocol.from_changes(request.training)
    datasets = {source: load_dataset(source) for source in find_sources(request.data)}
    sweep = Sweep(
        models=models,
        datasets=tuple(describe_dataset(source, data) for source, data in datasets.items()),
        scenarios=scenarios,
        seeds=request.seeds,
        learning_rates=given or (DEFAULT_LEARNING_RATE,),
        cell_rates=published_learning_rates() if rates == PUBLISHED else {},
        select_learning_rate=request.select_learning_rate,
        protocol=protocol,
    )
    check_sweep(sweep, list(datasets.values()))
    if not rates and not request.training:
        note_training(models)
    return sweep


def find_models(names: Sequence[str]) -> list[str]:
    """Return model names; `all` means every registered one, a group every one of the group."""
    found: list[str] = []
    for name in names:
        group = next((group for group in MODEL_GROUPS if group == name), None)
        several = list_models(group) if name == ALL or group else [name]
        if not several:
            raise OptionError(f"no model of the group {name!r} is registered")
        found += several
    return list(dict.fromkeys(found))


def find_choices(request: SweepRequest) -> tuple[ModelChoice, ...]:
    """Return every model of a request with each of its sets of options, all of them known."""
    names = find_models(request.models)
    choices = [choice for name in names for choice in request.variants(name)]
    for choice in choices:
        model_card(choice.name).check_options(choice.options)
    versions = {name: model_card(name).version for name in names}
    unused = set(request.options) - set(names)
    if unused:
        raise OptionError(f"options for {', '.join(sorted(unused))}, which the sweep does not run")
    return tuple(replace(choice, version=versions[choice.name]) for choice in choices)


def check_sweep(sweep: Sweep, datasets: Sequence[StirDataset]) -> None:
    """Raise unless every model of a sweep can take every dataset."""
    by_hash = {dataset.content_hash: dataset for dataset in datasets}
    for cell in replace(sweep, scenarios=sweep.scenarios[:1]).cells():
        check_model(cell, by_hash[cell.dataset_hash])
    for scenario in sweep.scenarios:
        for dataset in datasets:
            scenario.train_sizes(dataset.sizes)  # raises if the dataset lacks them


def find_scenarios(names: Sequence[str]) -> tuple[Scenario, ...]:
    """Return the scenarios of these names; `all` means the paper's four."""
    found = [s for name in names for s in (Scenario if name == ALL else [Scenario.named(name)])]
    return tuple(dict.fromkeys(found))


def find_sources(names: Sequence[str]) -> list[str]:
    """Return names or absolute paths of datasets; `all` means every published one."""
    published = [name for name in CARDS if CARDS[name].published]
    found = [source for name in names for source in (published if name == ALL else [name])]
    return list(dict.fromkeys(map(absolute_source, found)))


def absolute_source(source: str) -> str:
    """Return the path of a dataset file such that it means the same from anywhere."""
    path = Path(source).expanduser()
    return str(path.resolve()) if path.suffix == ".npz" or len(path.parts) > 1 else source


def describe_dataset(source: str, dataset: StirDataset) -> DatasetChoice:
    """Return what a sweep has to know about a dataset."""
    objects = dataset.num_classes * dataset.num_instances
    return DatasetChoice(source, dataset.name, dataset.content_hash, objects, dataset.sizes)


def inspect_sweep(sweep: Sweep, store: RunStore) -> SweepStatus:
    """Return where a sweep stands, with every finished record of it checked."""
    problems: list[str] = []
    plan = plan_runs(sweep, {})
    accuracies = _check_records(plan, store, problems)
    if sweep.select_learning_rate:
        plan = plan_runs(sweep, accuracies | _diverged(plan, store))
        _check_records(plan, store, problems)
    return SweepStatus(plan, _states(plan, store), tuple(dict.fromkeys(problems)))


def note_training(models: Iterable[ModelChoice]) -> None:
    """Log which models are meant to be trained in another way than by the paper's protocol."""
    for card in map(model_card, dict.fromkeys(choice.name for choice in models)):
        if card.training:
            _log.warning("%s is meant to be trained with %s", card.name, card.training)


def note_reused(keys: Iterable[RunKey]) -> None:
    """Log that finished runs of a user's own models are reused: their code is not in the key."""
    for model, count in Counter(key.model for key in keys if ":" in key.model).items():
        _log.warning(
            "reusing finished runs of %s: %d; to compute them anew after a change of its code, "
            "raise its attribute `version`",
            model,
            count,
        )


def estimate_sweep(sweep: Sweep, status: SweepStatus, measured: MeasuredRuns) -> Estimate:
    """Return the work that is left, from all measured runs of the store."""
    left = [*status.keys(RunState.MISSING, RunState.RUNNING), *status.plan.undecided]
    return estimate_runs(left, measured.timings(), sweep.datasets)


def run_sweep(
    sweep: Sweep,
    store: RunStore,
    launcher: Launcher,
    settings: JobSettings,
    on_change: Callable[[SweepStatus], None] = lambda status: None,
) -> SweepStatus:
    """Finish every run of a sweep, and wait for those that other sweeps compute.

    A second call starts nothing. While runs are computed, `on_change` is called about once per
    second.
    """
    idle_rounds = 0
    status = inspect_sweep(sweep, store)
    note_reused(status.keys(RunState.DONE))
    store.remove_leftovers()
    while True:
        on_change(status)
        missing = status.keys(RunState.MISSING)
        ticker = _Ticker(status, store, on_change)
        if missing:
            store.check_writable()
            launcher.run(missing, settings, ticker)
            idle_rounds = 0 if _has_changed(status, store) else idle_rounds + 1
            if idle_rounds == MAX_IDLE_ROUNDS:
                raise NoProgressError(
                    f"none of {len(missing)} runs ended in {MAX_IDLE_ROUNDS} rounds"
                )
        elif status.count(RunState.RUNNING):
            _wait_for_change(status, store, ticker)
        else:
            return status
        status = inspect_sweep(sweep, store)


class _Ticker:
    """Reads the states of a sweep's runs at intervals, long enough to cost little."""

    def __init__(
        self, status: SweepStatus, store: RunStore, on_change: Callable[[SweepStatus], None]
    ) -> None:
        self.status, self.store, self.on_change = status, store, on_change
        self._next = 0.0

    def __call__(self) -> None:
        started = time.monotonic()
        if started < self._next:
            return
        self.on_change(replace(self.status, states=_states(self.status.plan, self.store)))
        ended = time.monotonic()
        self._next = ended + max(WAIT_SECONDS, 50 * (ended - started))


def _states(plan: SweepPlan, store: RunStore) -> dict[str, RunState]:
    return store.states(key.run_id for key in plan.keys)


def _check_records(plan: SweepPlan, store: RunStore, problems: list[str]) -> dict[str, float]:
    """Check a plan's finished records, and return their validation accuracies by run id."""
    records = store.load_all((key.run_id for key in plan.keys), problems)
    return {record.key.run_id: record.valid_accuracy for record in records}


def _diverged(plan: SweepPlan, store: RunStore) -> dict[str, float]:
    """Return a validation accuracy of 0 for every run that diverged, by run id."""
    failed = {key.run_id for key in plan.keys} & set(store.run_ids(RunState.FAILED))
    return {run_id: 0.0 for run_id in failed if store.failure(run_id).kind == "diverged"}


def _has_changed(status: SweepStatus, store: RunStore) -> bool:
    return _states(status.plan, store) != status.states


def _wait_for_change(status: SweepStatus, store: RunStore, tick: Tick) -> None:
    """Wait for a run that someone else computes to end, or its worker to die."""
    while not _has_changed(status, store):
        tick()
        time.sleep(WAIT_SECONDS)
