from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from equiscale.runs.errors import CorruptRecordError, NewerRecordError, RunsError
from equiscale.runs.key import RunKey
from equiscale.runs.record import RunRecord
from equiscale.runs.store import Failure, RunState, RunStore

MakeKey = Callable[..., RunKey]
MakeRecord = Callable[..., RunRecord]


def publish(store: RunStore, record: RunRecord) -> str:
    lease = store.lease(record.key)
    assert lease is not None
    store.publish(record, lease)
    return record.key.run_id


def test_a_run_from_missing_to_done(make_record: MakeRecord, tmp_path: Path) -> None:
    store, record = RunStore(tmp_path), make_record()
    run_id = record.key.run_id
    assert store.state(run_id) is RunState.MISSING
    lease = store.lease(record.key)
    assert lease is not None
    assert store.state(run_id) is RunState.RUNNING
    assert store.lease(record.key) is None
    store.publish(record, lease)
    assert store.state(run_id) is RunState.DONE
    assert store.lease(record.key) is None
    assert store.load(run_id).science_hash == record.science_hash
    assert store.key(run_id) == record.key
    assert not store.working_directory(run_id).exists()
    assert store.states([run_id, "other"]) == {run_id: RunState.DONE, "other": RunState.MISSING}


def test_a_failed_run_keeps_its_reason_and_is_no_result(make_key: MakeKey, tmp_path: Path) -> None:
    store, key = RunStore(tmp_path), make_key()
    lease = store.lease(key)
    assert lease is not None
    failure = Failure(key, "diverged", "the loss is nan", "Traceback …")
    store.fail(failure, lease)
    assert store.state(key.run_id) is RunState.FAILED
    assert store.failure(key.run_id) == failure
    assert store.lease(key) is None
    assert list(store.load_all()) == []
    assert store.forget_failures([key.run_id, "other"]) == 1
    assert store.lease(key) is not None


def test_the_second_of_two_equal_records_changes_nothing(
    make_record: MakeRecord, tmp_path: Path
) -> None:
    store, record = RunStore(tmp_path), make_record()
    lease = store.lease(record.key)
    assert lease is not None
    store.publish(record, lease)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("done/*/*")}
    lease.directory.mkdir(parents=True)
    (lease.directory / "lease-1").touch()
    store.publish(record, lease)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("done/*/*")} == before


def test_a_corrupt_record_is_quarantined_and_reported(
    make_record: MakeRecord, tmp_path: Path
) -> None:
    store = RunStore(tmp_path)
    bad, good = publish(store, make_record(seed=1)), publish(store, make_record(seed=2))
    path = store.directory(bad) / "arrays.npz"
    path.write_bytes(path.read_bytes()[:-1])
    problems: list[str] = []
    assert [record.key.run_id for record in store.load_all(problems=problems)] == [good]
    assert len(problems) == 1
    assert "checksum of arrays.npz" in problems[0]
    assert str(tmp_path / "quarantine" / f"{bad}.1") in problems[0]
    assert (tmp_path / "quarantine" / f"{bad}.1" / "arrays.npz").exists()
    assert store.state(bad) is RunState.MISSING
    publish(store, make_record(seed=1))
    (store.directory(bad) / "record.json").write_text("{}")
    with pytest.raises(CorruptRecordError, match=f"{bad}.2"):
        store.load(bad)


def test_a_record_in_the_wrong_place_is_not_used(make_record: MakeRecord, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run_id = publish(store, make_record())
    store.directory(run_id).rename(store.directory("0" * 16))
    with pytest.raises(CorruptRecordError, match=f"holds the run {run_id}"):
        store.load("0" * 16)


def test_a_record_that_another_process_quarantines_meanwhile_is_passed_over(
    make_record: MakeRecord, tmp_path: Path
) -> None:
    store = RunStore(tmp_path)
    ids = sorted(publish(store, make_record(seed=seed)) for seed in (1, 2, 3))
    records = store.load_all(problems=[])
    assert next(records).key.run_id == ids[0]
    (tmp_path / "quarantine").mkdir()
    store.directory(ids[1]).rename(tmp_path / "quarantine" / f"{ids[1]}.1")
    assert [record.key.run_id for record in records] == [ids[2]]


def test_a_directory_that_a_file_manager_left_in_a_record_does_no_harm(
    make_record: MakeRecord, tmp_path: Path
) -> None:
    store = RunStore(tmp_path)
    run_id = publish(store, make_record())
    (store.directory(run_id) / ".thumbnails").mkdir()
    (store.directory(run_id) / ".DS_Store").touch()
    assert store.load(run_id).key.run_id == run_id


def test_a_damaged_note_of_a_failure_is_named(make_key: MakeKey, tmp_path: Path) -> None:
    store, key = RunStore(tmp_path), make_key()
    lease = store.lease(key)
    assert lease is not None
    store.fail(Failure(key, "error", "why"), lease)
    (path,) = (tmp_path / "failed").iterdir()
    path.write_text("{")
    with pytest.raises(RunsError, match="remove the file, and the run counts as missing"):
        store.failure(key.run_id)


def test_a_newer_record_stays_where_it_is(make_record: MakeRecord, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run_id = publish(store, make_record())
    path = store.directory(run_id) / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(NewerRecordError):
        list(store.load_all(problems=[]))
    assert store.state(run_id) is RunState.DONE


def test_killed_at_every_file_operation(tmp_path: Path) -> None:
    script = Path(__file__).with_name("crash_publish.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    published, failed = (int(line.split()[1]) for line in done.stdout.splitlines())
    assert published > 20
    assert failed > 8


def test_a_full_disk_costs_nothing_that_is_finished(
    make_record: MakeRecord, mount_disk: Callable[[str], Path]
) -> None:
    store = RunStore(mount_disk("64k") / "runs")
    finished: list[str] = []

    def fill() -> None:
        finished.extend(publish(store, make_record(seed=seed)) for seed in range(100))

    with pytest.raises(RunsError, match=r"No space left on device.* free some space"):
        fill()
    assert len(finished) >= 2
    assert store.run_ids(RunState.DONE) == sorted(finished)
    assert len(list(store.load_all())) == len(finished)
    shutil.rmtree(store.directory(finished[0]))
    shutil.rmtree(store.directory(finished[1]))
    publish(store, make_record(seed=1000))


def test_a_directory_that_cannot_be_made(make_key: MakeKey, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = RunStore(tmp_path / "file" / "runs")
    with pytest.raises(RunsError, match="cannot use the runs directory"):
        store.check_writable()
    with pytest.raises(RunsError):
        store.lease(make_key())
    assert (tmp_path / "file").read_text() == "in the way"
