"""Publish a record in child processes that are killed at the first, second, … file operation.

Run by test_store.py. After every death the store must be usable, and the run must either be done
with an intact record or be missing; the next worker must be able to finish it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.runs.conftest import make_record

from equiscale.runs.store import Failure, RunState, RunStore

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.utime", "os.chmod")


def die_at(count: int) -> None:
    seen = 0

    def hook(event: str, _: tuple[object, ...]) -> None:
        nonlocal seen
        if event in EVENTS:
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def finish(root: Path, mode: str) -> None:
    store, record = RunStore(root), make_record()
    lease = store.lease(record.key)
    if lease is None:
        return
    if mode == "publish":
        store.publish(record, lease)
    else:
        store.fail(Failure(record.key, "error", "bad luck"), lease)


def run_child(root: Path, mode: str, count: int) -> bool:
    """Return whether the child was killed."""
    if (child := os.fork()) == 0:
        die_at(count)
        finish(root, mode)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def check(root: Path, ended: RunState) -> None:
    store, record = RunStore(root), make_record()
    state = store.state(record.key.run_id)
    assert state in (RunState.MISSING, ended), state
    assert store.states([record.key.run_id])[record.key.run_id] is state
    if state is RunState.DONE:
        assert store.load(record.key.run_id).to_files() == record.to_files()
    assert not store.quarantined()


def main(directory: Path) -> None:
    for mode, ended in (("publish", RunState.DONE), ("fail", RunState.FAILED)):
        deaths = 0
        while run_child(directory / f"{mode}{deaths}", mode, deaths + 1):
            deaths += 1
            root = directory / f"{mode}{deaths - 1}"
            check(root, ended)
            finish(root, mode)
            assert RunStore(root).state(make_record().key.run_id) is ended
            check(root, ended)
        sys.stdout.write(f"{mode} {deaths}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
