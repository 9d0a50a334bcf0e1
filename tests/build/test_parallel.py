from __future__ import annotations

import math
import os

import pytest

from equiscale.build.parallel import WorkerDiedError, map_in_order, no_progress


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_progress_counts_to_the_end(workers: int) -> None:
    seen: list[tuple[int, int]] = []
    tasks = list(range(20))
    results = map_in_order(math.factorial, tasks, workers, lambda *state: seen.append(state))
    assert list(results) == [math.factorial(task) for task in tasks]
    assert seen == [(done, 20) for done in range(21)]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_task_reaches_the_caller(workers: int) -> None:
    results = map_in_order(math.sqrt, [4.0, -1.0, 9.0], workers, no_progress)
    assert next(results) == 2.0
    with pytest.raises(ValueError, match=r"nonnegative|domain"):
        next(results)


def test_a_killed_worker_is_reported() -> None:
    with pytest.raises(WorkerDiedError, match="fewer workers"):
        list(map_in_order(os._exit, [1, 1], 2, no_progress))
