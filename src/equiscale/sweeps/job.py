"""The job: a key in, a record out."""

from __future__ import annotations

import contextlib
import errno
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equiscale.core.errors import OptionError
from equiscale.core.spec import Split
from equiscale.data.dataset import StirDataset, load_dataset
from equiscale.metrics.inference import device_of, evaluating
from equiscale.models import create_model
from equiscale.models.checkpoint import pack_model
from equiscale.runs.errors import RunsError
from equiscale.runs.key import RunKey
from equiscale.runs.lease import LEASE_SECONDS, Lease, LeaseLostError
from equiscale.runs.record import RunRecord
from equiscale.runs.store import Failure, RunState, RunStore
from equiscale.sweeps.environment import choose_device, describe_environment
from equiscale.sweeps.measurements import collect_measurements, measure_predictions
from equiscale.sweeps.tracking import create_trackers
from equiscale.training.checkpoint import CHECKPOINT_FILE, CHECKPOINT_SECONDS, Checkpointer
from equiscale.training.loop import (
    DivergedError,
    InterruptedRunError,
    LabelledImages,
    Progress,
    Trainer,
    seed_weights,
)

_DISK_PROBLEMS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}


class ModelDataError(OptionError):
    """A model cannot take the images or classes of a dataset."""


@dataclass(frozen=True)
class JobSettings:
    """Where and how a run is computed; nothing here is part of its key."""

    runs: str  # the runs directory
    sources: Mapping[str, str] = field(default_factory=dict)  # name or path by content hash
    device: str | None = None  # None takes the fastest
    threads: int | None = None  # None leaves those of torch as they are
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    keep_weights: bool = True
    track: tuple[str, ...] = ()  # names of trackers
    lease_seconds: float = LEASE_SECONDS

    @property
    def store(self) -> RunStore:
        """The runs directory as a store."""
        return RunStore(self.runs, self.lease_seconds)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobSettings:
        """Return the settings that `to_json` wrote."""
        return cls(**{**value, "track": tuple(value["track"])})


@dataclass(frozen=True)
class Watcher:
    """Callbacks of a run, after each epoch and before each step; a stopped run can be resumed."""

    on_epoch: Callable[[Progress], None] = lambda progress: None
    should_stop: Callable[[], bool] = lambda: False

    def show(self, progress: Progress) -> None:
        """Call `on_epoch`; an error there (a closed pipe) interrupts the run, and is no failure."""
        try:
            self.on_epoch(progress)
        except (Exception, SystemExit) as error:
            raise InterruptedRunError(f"the progress could not be shown: {error!r}") from error


def run_job(
    key: RunKey, store: RunStore, settings: JobSettings, watcher: Watcher | None = None
) -> RunState:
    """Compute a run unless another worker has it, and store its record or why it failed.

    Returns:
        DONE or FAILED; RUNNING if another worker has it.

    Raises:
        RunsError: The runs directory cannot be written; the run can be resumed.
        InterruptedRunError: The watcher stopped it; the run can be resumed.
    """
    lease = store.lease(key)
    if lease is None:
        return store.state(key.run_id)
    try:
        with lease.kept_alive():
            return _compute_or_fail(key, store, lease, settings, watcher or Watcher())
    except LeaseLostError:
        return store.state(key.run_id)
    except BaseException:
        lease.release()
        raise


def _compute_or_fail(
    key: RunKey, store: RunStore, lease: Lease, settings: JobSettings, watcher: Watcher
) -> RunState:
    try:
        with _disk_problems_explained(store):
            store.publish(compute_record(key, lease, settings, watcher), lease)
    except (LeaseLostError, InterruptedRunError, RunsError):
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # as `__set_name__` does in Python 3.11
            raise KeyboardInterrupt from error
        if watcher.should_stop():  # the error is a consequence of stopping
            raise InterruptedRunError("stopped") from error
        store.fail(_describe(key, error), lease)
        return RunState.FAILED
    return RunState.DONE


def compute_record(key: RunKey, lease: Lease, settings: JobSettings, watcher: Watcher) -> RunRecord:
    """Train, test and measure a run, from its last checkpoint if there is one."""
    started = time.perf_counter()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = choose_device(settings.device)
    dataset = load_run_dataset(key, settings.sources)
    trainer = Trainer(
        build_run_model(key, dataset).to(device), key.protocol, key.learning_rate, key.seed
    )
    checkpointer = Checkpointer(lease.directory / CHECKPOINT_FILE, settings.checkpoint_seconds)
    checkpointer.restore(trainer)
    started -= sum(trainer.timings.epoch_seconds)
    with contextlib.ExitStack() as stack:
        trackers = create_trackers(settings.track, key, Path(settings.runs))
        for tracker in trackers:
            stack.callback(tracker.close)

        def on_epoch(progress: Progress) -> None:
            _report(lease, progress)
            checkpointer.save_if_due(trainer)
            for tracker in trackers:
                tracker.log_epoch(progress)
            watcher.show(progress)

        train, valid = (
            LabelledImages.load(dataset, split, key.scenario, device)
            for split in (Split.TRAIN, Split.VALID)
        )
        trainer.train(train, valid, on_epoch, watcher.should_stop)
        record = _evaluate(key, trainer, dataset, settings)
        surroundings = {"run_seconds": time.perf_counter() - started, "sessions": lease.number}
        record = replace(record, timings={**record.timings, **surroundings})
        for tracker in trackers:
            tracker.log_record(record)
    return record


def load_run_dataset(key: RunKey, sources: Mapping[str, str]) -> StirDataset:
    """Load the dataset of a run and make sure that it is the one its key means."""
    dataset = _load_dataset(sources.get(key.dataset_hash, key.dataset))
    if dataset.content_hash != key.dataset_hash:
        raise OptionError(
            f"the dataset {key.dataset!r} here has the content hash "
            f"{dataset.content_hash[:12]}…, but this run is about {key.dataset_hash[:12]}…; "
            "use the same file on every machine"
        )
    return dataset


def build_run_model(key: RunKey, dataset: StirDataset) -> nn.Module:
    """Build the model of a run with the weights that its seed draws."""
    with torch.random.fork_rng(devices=[]):
        seed_weights(key.seed)
        return create_model(
            key.model,
            in_channels=dataset.channels,
            num_classes=dataset.num_classes,
            **key.model_options,
        )


def check_model(key: RunKey, dataset: StirDataset) -> None:
    """Raise `ModelDataError` unless the model of a run turns the dataset's images into logits."""
    model = build_run_model(key, dataset)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelDataError(f"model {key.model!r} has no parameters that could be trained")
    blank = torch.zeros(1, dataset.channels, dataset.canvas, dataset.canvas)
    expected = [1, dataset.num_classes]
    try:
        with evaluating(model), torch.inference_mode():
            found = list(model(blank).shape)
    except Exception as error:
        raise ModelDataError(
            f"model {key.model!r} cannot take the images of {dataset.name!r} "
            f"{list(blank.shape)}: {error}"
        ) from error
    if found != expected:
        raise ModelDataError(
            f"model {key.model!r} returns {found} for one image of {dataset.name!r}, which has "
            f"{dataset.num_classes} classes: expected {expected}"
        )


@lru_cache(maxsize=1)
def _load_dataset(source: str) -> StirDataset:
    return load_dataset(source)


def _evaluate(
    key: RunKey, trainer: Trainer, dataset: StirDataset, settings: JobSettings
) -> RunRecord:
    """Test and measure the best weights, which the model has now."""
    started = time.perf_counter()
    predictions = measure_predictions(trainer.model, dataset)
    test_seconds = time.perf_counter() - started
    epochs = {name: list(seconds) for name, seconds in vars(trainer.timings).items()}
    return RunRecord(
        key=key,
        history=trainer.history,
        predictions=predictions,
        measurements=collect_measurements(trainer.model, dataset, key),
        timings={**epochs, "test_seconds": test_seconds},
        environment=describe_environment(device_of(trainer.model)),
        weights=pack_model(trainer.model, dataset.class_names) if settings.keep_weights else None,
    )


def _report(lease: Lease, progress: Progress) -> None:
    """Report the progress of the run; raise if another worker has taken it over."""
    lease.check()
    lease.report(
        epoch=progress.epoch,
        max_epochs=progress.max_epochs,
        epochs_left=progress.epochs_left,
        valid_accuracy=progress.history.valid_accuracy[-1],
        epoch_seconds=progress.timings.epoch_seconds[-1],
    )


def _describe(key: RunKey, error: BaseException) -> Failure:
    return Failure(
        key=key,
        kind="diverged" if isinstance(error, DivergedError) else "error",
        reason=f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
        environment=describe_environment(torch.device("cpu")),
    )


@contextlib.contextmanager
def _disk_problems_explained(store: RunStore) -> Iterator[None]:
    """Turn a full or read-only disk into a `RunsError`: the run has not failed."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_PROBLEMS:
            raise
        raise RunsError.from_os_error(store.root, error) from error
