"""Runs as Ray tasks, on a cluster that exists or on one started here."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from equiscale.core.cores import available_cores
from equiscale.core.errors import OptionError
from equiscale.core.files import atomic_write
from equiscale.core.options import check_positive
from equiscale.data.catalog import locate_dataset
from equiscale.runs.errors import RunsError
from equiscale.runs.key import RunKey
from equiscale.runs.lease import Lease
from equiscale.runs.record import RunRecord
from equiscale.runs.store import Failure, RunState, RunStore
from equiscale.sweeps.job import JobSettings, run_job
from equiscale.sweeps.launch import MAX_DEATHS, POLL_SECONDS, LaunchError, Tick, register_launcher

CONNECT_SECONDS = 10.0


def _ray() -> Any:  # noqa: ANN401 - Ray's types are its own
    """Return the package, which takes seconds to import and need not be there."""
    import ray

    return ray


@register_launcher("ray", requires=("ray", "ray"))
@dataclass
class RayLauncher:
    """Ray tasks with CPU and GPU resources.

    Connects to the cluster of `address` or `RAY_ADDRESS`, or starts one on this machine. If every
    node sees the runs directory, workers write there, with checkpoints. Otherwise they compute in a
    temporary directory and send the record back. Tasks of a node that dies run again elsewhere.
    """

    threads: int = 1  # CPUs of each run
    per_gpu: int = 1  # runs that share a GPU, where the cluster has any
    address: str | None = None

    def __post_init__(self) -> None:
        check_positive(threads=self.threads, per_gpu=self.per_gpu)
        if not isinstance(self.address, str | None):
            raise OptionError(f"address must be a text as 'HOST:6379', got {self.address!r}")

    @property
    def slots(self) -> int:
        """How many runs the cluster can compute at once."""
        self._connect()
        resources = _ray().cluster_resources()
        gpus = int(resources.get("GPU", 0))
        return gpus * self.per_gpu or max(1, int(resources.get("CPU", 1)) // self.threads)

    def run(self, keys: Sequence[RunKey], settings: JobSettings, tick: Tick) -> None:
        """Compute runs on the cluster."""
        self._connect()
        settings = replace(settings, threads=self.threads)
        with _token(settings.store) as token:
            if all(_ray().get([_look(node, token) for node in _live_nodes()])):
                tasks = _Tasks(self._remote(_compute), settings)
            else:
                tasks = _TasksSentBack(self._remote(_compute_and_send), settings, self.slots)
            with contextlib.closing(tasks):
                tasks.run(keys, tick)

    def _connect(self) -> None:
        ray = _ray()
        if ray.is_initialized():
            return
        address = self.address or os.environ.get("RAY_ADDRESS")
        local = {} if address else {"num_cpus": available_cores(), "include_dashboard": False}
        try:
            _check_reachable(address)
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
        except (OSError, ray.exceptions.RayError) as error:
            raise LaunchError(_explain(address, error)) from error

    def _remote(self, function: Any) -> Any:  # noqa: ANN401 - Ray's types are its own
        ray = _ray()
        gpus = {"num_gpus": 1 / self.per_gpu} if ray.cluster_resources().get("GPU") else {}
        return ray.remote(num_cpus=self.threads, max_retries=MAX_DEATHS - 1, **gpus)(function)


@dataclass
class _Tasks:
    """Tasks whose workers write to the runs directory themselves."""

    function: Any
    settings: JobSettings
    limit: int = 10_000
    pending: dict[Any, RunKey] = field(default_factory=dict)

    def run(self, keys: Sequence[RunKey], tick: Tick) -> None:
        """Compute runs, at most `limit` of them under way."""
        waiting = list(reversed(keys))
        while waiting or self.pending:
            while waiting and len(self.pending) < self.limit:
                self.submit(waiting.pop())
            if self.pending:
                ready, _ = _ray().wait(list(self.pending), timeout=POLL_SECONDS)
                for future in ready:
                    self._settle(future, self.pending.pop(future))
            tick()

    def submit(self, key: RunKey) -> None:
        """Start a run."""
        future = self.function.remote(key.to_json(), self.settings.to_json())
        self.pending[future] = key

    def close(self) -> None:
        """Stop what is still under way."""
        for future in self.pending:
            _ray().cancel(future, force=True)

    def accept(self, key: RunKey, result: Any) -> None:  # noqa: ANN401 - depends on the task
        """Take what a task returned; here it has stored everything already."""

    def give_up(self, key: RunKey, failure: Failure) -> None:
        """Note that a run failed for good."""
        if lease := self.settings.store.lease(key):
            self.settings.store.fail(failure, lease)

    def _settle(self, future: Any, key: RunKey) -> None:  # noqa: ANN401
        ray = _ray()
        try:
            self.accept(key, ray.get(future))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RunsError):
                raise RunsError(str(error.cause)) from error
            self.give_up(key, Failure(key, "error", str(error.cause), str(error)))
        except ray.exceptions.RayError as error:
            reason = f"{MAX_DEATHS} workers died during this run ({type(error).__name__})"
            self.give_up(key, Failure(key, "died", reason, str(error)))


@dataclass
class _TasksSentBack(_Tasks):
    """Tasks that send their record back; this process holds their leases meanwhile."""

    leases: dict[str, tuple[Lease, contextlib.ExitStack]] = field(default_factory=dict)
    datasets: dict[str, Any] = field(default_factory=dict)
    session: str = field(default_factory=lambda: uuid.uuid4().hex)

    def submit(self, key: RunKey) -> None:
        """Lease and start a run, unless someone else has it."""
        lease = self.settings.store.lease(key)
        if lease is None:
            return
        alive = contextlib.ExitStack()
        alive.enter_context(lease.kept_alive())
        self.leases[key.run_id] = (lease, alive)
        arguments = (key.to_json(), self.settings.to_json(), self._dataset(key), self.session)
        self.pending[self.function.remote(*arguments)] = key

    def accept(self, key: RunKey, result: Mapping[str, bytes] | Failure) -> None:
        """Store what a task sent back."""
        if isinstance(result, Failure):
            self.give_up(key, result)
            return
        with self._ended(key) as lease:
            self.settings.store.publish(RunRecord.from_files(result), lease)

    def give_up(self, key: RunKey, failure: Failure) -> None:
        """Note that a run failed for good."""
        with self._ended(key) as lease:
            self.settings.store.fail(failure, lease)

    def close(self) -> None:
        """Stop what is still under way and let others have it."""
        super().close()
        for lease, alive in self.leases.values():
            alive.close()
            lease.release()

    def _dataset(self, key: RunKey) -> Any:  # noqa: ANN401 - a reference into Ray's object store
        if key.dataset_hash not in self.datasets:
            path = locate_dataset(self.settings.sources.get(key.dataset_hash, key.dataset))
            self.datasets[key.dataset_hash] = _ray().put(path.read_bytes())
        return self.datasets[key.dataset_hash]

    @contextlib.contextmanager
    def _ended(self, key: RunKey) -> Iterator[Lease]:
        lease, alive = self.leases.pop(key.run_id)
        with alive:
            yield lease


def _compute(key: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Compute a run into the runs directory."""
    where = JobSettings.from_json(settings)
    return run_job(RunKey.from_json(key), where.store, where).value


def _compute_and_send(
    key: Mapping[str, Any], settings: Mapping[str, Any], dataset: bytes, session: str
) -> dict[str, bytes] | Failure:
    """Compute a run in a directory of this node, and return its record's files.

    A second try on this node finds the checkpoint of the first. Tasks of other drivers, which may
    still live, have directories of their own, with names that nobody can guess.
    """
    run = RunKey.from_json(key)
    where = JobSettings.from_json(settings)
    own = Path(tempfile.gettempdir()) / f"equiscale-{session}"
    own.mkdir(mode=0o700, exist_ok=True)
    root = own / run.run_id
    source = root / f"{run.dataset}.npz"
    with atomic_write(source) as file:
        file.write(dataset)
    sources = {run.dataset_hash: str(source)}
    where = replace(where, runs=str(root / "runs"), sources=sources)
    done = run_job(run, where.store, where) is RunState.DONE
    store, run_id = where.store, run.run_id
    sent = store.load(run_id).to_files() if done else store.failure(run_id)
    shutil.rmtree(root)
    with contextlib.suppress(OSError):  # other runs of this session are still there
        own.rmdir()
    return sent


def _check_reachable(address: str | None) -> None:
    """Raise `OSError` if nobody answers; Ray itself would try for ten minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def _explain(address: str | None, error: BaseException) -> str:
    """Say why there is no cluster, and what to do if it asked for a token."""
    # Ray says no more than that it failed; what went wrong is in the error before.
    reason = str(error.__cause__ or error).splitlines()[0]
    advice = "set RAY_AUTH_MODE=token" if "AuthToken" in reason else "is it running?"
    return f"cannot connect to the Ray cluster at {address or 'this machine'}: {reason}; {advice}"


def _sees(path: str) -> bool:
    return Path(path).exists()


def _look(node: str, path: str) -> Any:  # noqa: ANN401 - a future
    """Ask a node whether it sees a file."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return _ray().remote(_sees).options(num_cpus=0, scheduling_strategy=there).remote(path)


def _live_nodes() -> list[str]:
    return [node["NodeID"] for node in _ray().nodes() if node["Alive"]]


@contextlib.contextmanager
def _token(store: RunStore) -> Iterator[str]:
    """Yield the path of a file that only those see who share the runs directory."""
    path = store.root.resolve() / f".shared-{uuid.uuid4().hex}"
    with atomic_write(path) as file:
        file.write(b"seen by all nodes?")
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)
