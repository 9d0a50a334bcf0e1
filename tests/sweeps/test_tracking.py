from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.sweeps.conftest import make_key, stop_after_two_epochs

from equiscale.runs.key import RunKey
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps import track_mlflow
from equiscale.sweeps.job import JobSettings, run_job

MakeSettings = Callable[..., JobSettings]


def run_in_two_sessions(key: RunKey, settings: JobSettings) -> RunStore:
    """Stop a run after two of its four epochs, then let it go on."""
    store = stop_after_two_epochs(key, settings)
    assert run_job(key, store, settings) is RunState.DONE
    return store


@pytest.mark.needs("tensorboard")
def test_tensorboard_shows_every_epoch_once(make_settings: MakeSettings) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    key, settings = make_key(), make_settings(track=("tensorboard",))
    store = run_in_two_sessions(key, settings)
    record = store.load(key.run_id)
    (directory,) = (store.root / "tracking" / "tensorboard").iterdir()
    events = EventAccumulator(str(directory)).Reload()
    losses = events.Scalars("loss/train")
    assert [event.step for event in losses] == [1, 2, 3, 4]
    assert [event.value for event in losses] == pytest.approx(record.history.train_loss)
    assert [event.value for event in events.Scalars("accuracy/test")] == pytest.approx(
        [record.test_accuracy]
    )
    assert len(events.Scalars("accuracy/test per object size")) == 48


@pytest.mark.needs("mlflow")
@pytest.mark.filterwarnings("ignore")  # mlflow's own
def test_mlflow_has_one_run_per_run(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    key, settings = make_key(), make_settings(track=("mlflow",))
    store = run_in_two_sessions(key, settings)
    client = track_mlflow._create_client(store.root / "tracking" / "mlflow")
    experiment = client.get_experiment_by_name("equiscale")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["seed"] == "1"
    assert run.data.metrics["test_accuracy"] == store.load(key.run_id).test_accuracy
    losses = client.get_metric_history(run.info.run_id, "train_loss")
    assert sorted(metric.step for metric in losses) == [1, 2, 3, 4]
