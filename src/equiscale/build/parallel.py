"""Run independent pieces of a build on several processes, with the same result as on one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from equiscale.core.errors import EquiscaleError, OptionError

Progress = Callable[[int, int], None]
"""Called as `progress(done, total)`, first with 0 done."""

T = TypeVar("T")
R = TypeVar("R")


class WorkerDiedError(EquiscaleError, RuntimeError):
    """A process of a build was killed from outside."""


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


def map_in_order(
    function: Callable[[T], R], tasks: Sequence[T], workers: int, progress: Progress
) -> Iterator[R]:
    """Yield `function(task)` for every task, in the order of the tasks.

    Args:
        function: A function of a module (it is sent to the processes by name).
        tasks: Its arguments.
        workers: Number of processes; 1 stays in this one.
        progress: Told after every result.
    """
    if workers < 1:
        raise OptionError(f"{workers} workers: at least 1 is needed")
    progress(0, len(tasks))
    results = map(function, tasks) if workers == 1 else _map_on_pool(function, tasks, workers)
    for done, result in enumerate(results, start=1):
        progress(done, len(tasks))
        yield result


def _map_on_pool(function: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[R]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, max(len(tasks), 1)), mp_context=context, initializer=_follow_parent
    )
    try:
        waiting = iter(tasks)
        futures: deque[Future[R]] = deque()
        while True:
            with _interrupts_held():  # submitting starts processes
                ahead = islice(waiting, 4 * workers - len(futures))  # results not yet used
                futures.extend(pool.submit(function, task) for task in ahead)
            if not futures:
                break
            yield futures.popleft().result()
    except BrokenProcessPool as error:
        raise WorkerDiedError(
            "a worker process was killed, perhaps for lack of memory; try fewer workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _follow_parent() -> None:
    """End this worker when its parent is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start processes that never see Ctrl-C: only this one acts on it, and stops them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
