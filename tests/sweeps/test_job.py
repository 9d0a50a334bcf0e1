from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.sweeps.conftest import make_key, stop_after_two_epochs

from equiscale.core.errors import OptionError
from equiscale.core.registry import Registry
from equiscale.models.checkpoint import load_model
from equiscale.runs.errors import RunsError
from equiscale.runs.key import RunKey
from equiscale.runs.record import Measurement, RunRecord
from equiscale.runs.store import RunState, RunStore
from equiscale.sweeps import launch_ray
from equiscale.sweeps.job import JobSettings, Watcher, build_run_model, load_run_dataset, run_job
from equiscale.training.loop import InterruptedRunError, Trainer

MakeSettings = Callable[..., JobSettings]


def run(key: RunKey, settings: JobSettings) -> RunRecord:
    store = RunStore(settings.runs)
    assert run_job(key, store, settings) is RunState.DONE
    return store.load(key.run_id)


def test_a_key_becomes_a_record(make_settings: MakeSettings) -> None:
    record = run(make_key(), make_settings())
    assert record.key == make_key()
    assert len(record.history) == 4
    assert record.history.train_loss[-1] < record.history.train_loss[0]
    assert len(record.predictions.predicted) == 48 * 36
    assert list(record.predictions.accuracy_per_size()) == list(range(17, 65))
    assert len(record.timings["epoch_seconds"]) == 4
    assert record.environment["torch"] == torch.__version__
    text = str(record.to_files()["record.json"])
    assert platform.node() not in text
    assert str(Path.home()) not in text.replace('"/"', "")
    directory = RunStore(make_settings().runs).directory(record.key.run_id)
    model = load_model(directory / "weights.safetensors", allow_import=True)
    dataset = load_run_dataset(record.key, make_settings().sources)
    assert model.class_names == dataset.class_names
    with torch.inference_mode():
        predicted = model(dataset.select("test").images[:64]).argmax(1)
    assert predicted.tolist() == record.predictions.predicted[:64].tolist()


def test_same_key_same_record(make_settings: MakeSettings, tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = run(make_key(), make_settings())
    torch.manual_seed(2)
    again = run(make_key(), make_settings(runs=str(tmp_path / "again")))
    assert again.science_hash == first.science_hash
    other = run(make_key(seed=2), make_settings())
    assert other.science_hash != first.science_hash


def test_learning_rates_of_one_seed_start_from_the_same_weights(
    make_settings: MakeSettings,
) -> None:
    dataset = load_run_dataset(make_key(), make_settings().sources)
    one, other = (build_run_model(make_key(learning_rate=lr), dataset) for lr in (1e-3, 1e-2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_run_goes_on_from_its_checkpoint(make_settings: MakeSettings) -> None:
    key, settings = make_key(), make_settings()
    store = stop_after_two_epochs(key, settings)
    assert store.state(key.run_id) is RunState.MISSING
    epochs: list[int] = []
    run_job(key, store, settings, Watcher(lambda p: epochs.append(p.epoch)))
    assert epochs == [3, 4]
    record = store.load(key.run_id)
    assert record.timings["sessions"] == 2
    assert record.science_hash == run(key, make_settings(runs=f"{settings.runs}-2")).science_hash


def test_a_run_that_another_worker_has_is_left_to_it(make_settings: MakeSettings) -> None:
    key, settings = make_key(), make_settings()
    store = RunStore(settings.runs)
    lease = store.lease(key)
    assert lease is not None
    assert run_job(key, store, settings) is RunState.RUNNING
    lease.release()
    assert run_job(key, store, settings) is RunState.DONE


def test_a_closed_pipe_of_the_display_is_not_a_failure_of_the_run(
    make_settings: MakeSettings,
) -> None:
    def fail(_: object) -> None:
        raise BrokenPipeError

    settings = make_settings()
    store = RunStore(settings.runs)
    with pytest.raises(InterruptedRunError, match="could not be shown"):
        run_job(make_key(), store, settings, Watcher(on_epoch=fail))
    assert store.state(make_key().run_id) is RunState.MISSING


def test_ctrl_c_is_not_a_failure_of_the_run_even_if_python_makes_it_an_error(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: Python 3.11 does so while the body of a class is executed, as in an import."""
    error = RuntimeError("Error calling __set_name__")
    error.__cause__ = KeyboardInterrupt()
    monkeypatch.setattr(Trainer, "train", Mock(side_effect=error))
    settings = make_settings()
    with pytest.raises(KeyboardInterrupt):
        run_job(make_key(), settings.store, settings)
    assert settings.store.state(make_key().run_id) is RunState.MISSING


def test_measurements_land_in_the_record(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurements: Registry[Any] = Registry("measurement")
    monkeypatch.setattr("equiscale.sweeps.measurements.MEASUREMENTS", measurements)
    measurements.add("data", lambda model, dataset: Measurement({"classes": dataset.num_classes}))
    measurements.add("not_applicable", lambda model, dataset: None)
    record = run(make_key(), make_settings())
    assert {name: m.values for name, m in record.measurements.items()} == {"data": {"classes": 36}}


def test_another_dataset_of_the_same_name_is_refused(make_settings: MakeSettings) -> None:
    key = make_key(dataset_hash="00" * 32)
    sources = {"00" * 32: next(iter(make_settings().sources.values()))}
    with pytest.raises(OptionError, match="use the same file on every machine"):
        load_run_dataset(key, sources)


def test_a_full_disk_stops_the_run_but_is_not_its_fault(
    make_settings: MakeSettings, mount_disk: Callable[[str], Path], tmp_path: Path
) -> None:
    small_disk = mount_disk("160k")
    settings = make_settings(runs=str(small_disk / "runs"))
    store, key = RunStore(settings.runs), make_key()
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 100_000)
    with pytest.raises(RunsError, match="No space left"):
        run_job(key, store, settings)
    assert store.state(key.run_id) is RunState.MISSING
    ballast.unlink()
    shutil.rmtree(store.root / "active")
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    record = run(key, settings)
    assert record.science_hash == run(key, make_settings()).science_hash


def test_a_node_without_the_runs_directory_keeps_drivers_apart(
    make_settings: MakeSettings, emoji_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a task of an earlier driver that still lived made the next one's fail."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    key, data = make_key(), emoji_file.read_bytes()
    earlier = RunStore(tmp_path / "equiscale-earlier" / key.run_id / "runs")
    assert earlier.lease(key) is not None
    arguments = key.to_json(), make_settings().to_json(), data
    sent = launch_ray._compute_and_send(*arguments, "later")
    assert isinstance(sent, dict)
    assert RunRecord.from_files(sent).key == key
    assert [path.name for path in tmp_path.glob("equiscale-*")] == ["equiscale-earlier"]
