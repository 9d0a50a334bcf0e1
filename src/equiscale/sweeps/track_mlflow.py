"""Curves and final figures in MLflow: on the server of `MLFLOW_TRACKING_URI`, or in files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from equiscale.core.files import canonical_json
from equiscale.runs.key import RunKey
from equiscale.runs.record import RunRecord
from equiscale.sweeps.tracking import register_tracker
from equiscale.training.loop import Progress

EXPERIMENT = "equiscale"
_TAG = "equiscale.run_id"


@register_tracker("mlflow", requires=("mlflow", "track"))
class MlflowTracker:
    """One MLflow run per run; a resumed run continues its own."""

    def __init__(self, key: RunKey, root: Path) -> None:
        self._client = _create_client(root)
        experiment = _find_or_create_experiment(self._client)
        found = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{key.run_id}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._create_run(experiment, key)
        self._status = "KILLED"

    def log_epoch(self, progress: Progress) -> None:
        """Show the epoch that has just ended."""
        history = progress.history
        self._log("train_loss", history.train_loss[-1], progress.epoch)
        self._log("valid_accuracy", history.valid_accuracy[-1], progress.epoch)

    def log_record(self, record: RunRecord) -> None:
        """Show the accuracy on the test sizes, and at each object size as a curve."""
        self._log("test_accuracy", record.test_accuracy, record.history.best_epoch)
        for size, accuracy in record.predictions.accuracy_per_size().items():
            self._log("test_accuracy_per_object_size", accuracy, size)
        self._status = "FINISHED"

    def close(self) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._run, self._status)

    def _create_run(self, experiment: str, key: RunKey) -> str:
        run = self._client.create_run(experiment, run_name=str(key), tags={_TAG: key.run_id})
        identifier: str = run.info.run_id
        for name, value in key.to_json().items():
            text = value if isinstance(value, str) else canonical_json(value)
            self._client.log_param(identifier, name, text)
        return identifier

    def _log(self, name: str, value: float, step: int) -> None:
        self._client.log_metric(self._run, name, value, step=step)


def _create_client(root: Path) -> Any:  # noqa: ANN401 - mlflow is not typed here
    from mlflow import MlflowClient

    server = os.environ.get("MLFLOW_TRACKING_URI")
    if server:
        return MlflowClient(server)
    # Files suit many processes at once better than the SQLite file that MLflow prefers.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    root.mkdir(parents=True, exist_ok=True)
    return MlflowClient(root.resolve().as_uri())


def _find_or_create_experiment(client: Any) -> str:  # noqa: ANN401
    from mlflow.exceptions import MlflowException

    if (found := client.get_experiment_by_name(EXPERIMENT)) is None:
        try:
            created: str = client.create_experiment(EXPERIMENT)
            return created
        except MlflowException:  # another worker was faster
            found = client.get_experiment_by_name(EXPERIMENT)
    identifier: str = found.experiment_id
    return identifier
