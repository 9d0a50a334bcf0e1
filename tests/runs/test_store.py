from __future__ import annotations

import contextlib
import errno
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from unittest.mock import Mock

import pytest
from tests.processes import run_python
from tests.runs.conftest import make_key, make_record

from equiscale.core.files import atomic_write
from equiscale.runs import store as store_module
from equiscale.runs.errors import CorruptRecordError, NewerRecordError, RunsError
from equiscale.runs.key import RunKey
from equiscale.runs.lease import Lease
from equiscale.runs.record import RunRecord
from equiscale.runs.store import Failure, RunState, RunStore


def take(store: RunStore, key: RunKey) -> Lease:
    lease = store.lease(key)
    assert lease is not None
    return lease


def publish(store: RunStore, record: RunRecord) -> str:
    store.publish(record, take(store, record.key))
    return record.key.run_id


def test_a_run_from_missing_to_done(tmp_path: Path) -> None:
    store, record = RunStore(tmp_path), make_record()
    run_id = record.key.run_id
    assert store.state(run_id) is RunState.MISSING
    lease = take(store, record.key)
    assert store.state(run_id) is RunState.RUNNING
    assert store.lease(record.key) is None
    store.publish(record, lease)
    assert store.state(run_id) is RunState.DONE
    assert store.lease(record.key) is None
    assert store.load(run_id).science_hash == record.science_hash
    assert store.key(run_id) == record.key
    assert not store.working_directory(run_id).exists()
    assert store.states([run_id, "other"]) == {run_id: RunState.DONE, "other": RunState.MISSING}


def test_a_failed_run_keeps_its_reason_and_is_no_result(tmp_path: Path) -> None:
    store, key = RunStore(tmp_path), make_key()
    lease = take(store, key)
    failure = Failure(key, "diverged", "the loss is nan", "Traceback …")
    store.fail(failure, lease)
    assert store.state(key.run_id) is RunState.FAILED
    assert store.failure(key.run_id) == failure
    assert store.lease(key) is None
    assert list(store.load_all()) == []
    assert store.forget_failures([key.run_id, "other"]) == 1
    assert store.lease(key) is not None


def test_a_corrupt_record_is_quarantined_and_reported(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    bad, good = publish(store, make_record(seed=1)), publish(store, make_record(seed=2))
    path = store.directory(bad) / "arrays.npz"
    path.write_bytes(path.read_bytes()[:-1])
    problems: list[str] = []
    assert [record.key.run_id for record in store.load_all(problems=problems)] == [good]
    (problem,) = problems
    assert "checksum of arrays.npz" in problem
    assert problem.endswith(f"moved to {tmp_path / 'quarantine' / bad}.1")
    assert (tmp_path / "quarantine" / f"{bad}.1" / "arrays.npz").exists()
    assert store.state(bad) is RunState.MISSING
    publish(store, make_record(seed=1))
    (store.directory(bad) / "record.json").write_text("{}")
    with pytest.raises(CorruptRecordError, match=f"{bad}.2"):
        store.load(bad)


def test_an_intact_record_is_reported_and_left_where_it_is(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    newer, moved, good = (publish(store, make_record(seed=seed)) for seed in (1, 2, 3))
    path = store.directory(newer) / "record.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    store.directory(moved).rename(store.directory("0" * 16))
    problems: list[str] = []
    assert [record.key.run_id for record in store.load_all(problems=problems)] == [good]
    assert sorted("newer version" in problem for problem in problems) == [False, True]
    assert f"holds the run {moved}" in "".join(problems)
    assert {newer, "0" * 16} < set(store.run_ids(RunState.DONE))
    assert not store.quarantined()
    with pytest.raises(NewerRecordError):
        store.load(newer)


@pytest.mark.parametrize(
    ("owner", "step"), [(store_module, "read_record"), (Path, "rename")], ids=["read", "rename"]
)
def test_a_slow_reader_does_not_quarantine_the_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, step: str
) -> None:
    """Regression: the slower reader found its name taken, and removed the good successor."""
    store, record = RunStore(tmp_path), make_record()
    run_id = publish(store, record)
    (store.directory(run_id) / "record.json").write_text("{")
    original = getattr(owner, step)

    def act_late(*arguments: object) -> object:
        """Another reader quarantines the record, and a worker computes it anew, meanwhile."""
        monkeypatch.undo()
        with pytest.raises(CorruptRecordError):
            store.load(run_id)
        publish(store, record)
        if step == "read_record":
            raise CorruptRecordError("as it was read")
        return original(*arguments)

    monkeypatch.setattr(owner, step, act_late)
    with pytest.raises(CorruptRecordError):
        store.load(run_id)
    assert store.load(run_id).to_files() == record.to_files()
    assert store.quarantined() == [f"{run_id}.1"]


def test_a_corrupt_record_of_a_read_only_archive_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(tmp_path)
    bad, good = publish(store, make_record(seed=1)), publish(store, make_record(seed=2))
    (store.directory(bad) / "arrays.npz").write_bytes(b"")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "rename", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    problems: list[str] = []
    assert [record.key.run_id for record in store.load_all(problems=problems)] == [good]
    assert "cannot be moved" in problems[0]


def test_a_record_that_another_process_quarantines_meanwhile_is_passed_over(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    ids = sorted(publish(store, make_record(seed=seed)) for seed in (1, 2, 3))
    records = store.load_all(problems=[])
    assert next(records).key.run_id == ids[0]
    (tmp_path / "quarantine").mkdir()
    store.directory(ids[1]).rename(tmp_path / "quarantine" / f"{ids[1]}.1")
    assert [record.key.run_id for record in records] == [ids[2]]


def test_files_that_a_file_manager_left_are_ignored(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run_id = publish(store, make_record())
    (store.directory(run_id) / ".thumbnails").mkdir()
    (store.directory(run_id) / ".DS_Store").touch()
    assert store.load(run_id).key.run_id == run_id
    (tmp_path / "failed").mkdir()
    for name in ("active/desktop.ini", "active/" + "0" * 16, "failed/README", "done/README"):
        (tmp_path / name).touch()
    found = {state: store.run_ids(state) for state in RunState}
    assert found == {
        RunState.DONE: [run_id],
        RunState.RUNNING: [],
        RunState.FAILED: [],
        RunState.MISSING: ["0" * 16],
    }


@pytest.mark.parametrize("text", ["{", "[" * 10**5 + "]" * 10**5, "3", "{}"])
def test_damaged_notes_are_named_and_hide_nothing(tmp_path: Path, text: str) -> None:
    store, key = RunStore(tmp_path), make_key()
    lease = take(store, key)
    for name in ("key.json", "progress.json"):
        (lease.directory / name).write_text(text)
    assert store.key(key.run_id) is None
    assert store.progress(key.run_id) == {}
    store.fail(Failure(key, "error", "why"), lease)
    (path,) = (tmp_path / "failed").iterdir()
    path.write_text(text)
    with pytest.raises(RunsError, match="remove the file, and the run counts as missing"):
        store.failure(key.run_id)


def test_a_lease_is_released_if_the_key_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, key = RunStore(tmp_path), make_key()
    for error in (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()):
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "write_json", Mock(side_effect=error))
            with pytest.raises((RunsError, KeyboardInterrupt)):
                store.lease(key)
        assert store.state(key.run_id) is RunState.MISSING
    assert store.lease(key) is not None


def test_two_owners_may_publish_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, record = RunStore(tmp_path), make_record()
    first = take(store, record.key)

    @contextlib.contextmanager
    def write_slowly(path: Path) -> Iterator[IO[bytes]]:
        with atomic_write(path) as file:
            yield file
            monkeypatch.undo()
            first.release()
            publish(store, record)  # and removes the files of the first

    monkeypatch.setattr(store_module, "atomic_write", write_slowly)
    store.publish(record, first)
    assert store.load(record.key.run_id).to_files() == record.to_files()


def test_leftovers_of_ended_runs_are_removed(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    ended = store.working_directory(publish(store, make_record(seed=1)))
    ended.mkdir()
    (ended / "checkpoint").touch()
    other = take(store, make_record(seed=2).key)
    other.release()
    store.remove_leftovers()
    assert list((tmp_path / "active").iterdir()) == [other.directory]


@pytest.mark.needs("posix")
def test_killed_at_every_file_operation(tmp_path: Path) -> None:
    printed = run_python("-m", "tests.runs.crash_publish", tmp_path)
    published, failed = (int(line.split()[1]) for line in printed.splitlines())
    assert published > 20
    assert failed > 8


def test_a_full_disk_costs_nothing_that_is_finished(mount_disk: Callable[[str], Path]) -> None:
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
