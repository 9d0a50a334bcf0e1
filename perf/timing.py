"""Timing for noisy machines: contenders take turns, and only ratios are reported.

Each round runs every contender once, so that a slow moment hits all of them; a ratio is the median
over the rounds of the quotient within a round. On one thread, seconds are those of this thread,
which other work on the machine does not lengthen unless it takes the caches. On several threads
they are the clock's, so that the machine must be quiet.

`keep_freed_memory` gives all contenders the memory of a sweep's worker: otherwise a large result
costs page faults whenever glibc has given the last one back, which varies by a third.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import torch

from equiscale.layers.scaled.native import load_library

ROUNDS = 11
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of malloc.h


def keep_freed_memory() -> None:
    """Make glibc keep what is freed, as the local launcher does for its workers (decision 0305)."""
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)  # never


def time_interleaved(
    contenders: Mapping[str, Callable[[], object]], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Return the seconds of every contender in every round, after one round to warm up."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


def ratios(seconds: Mapping[str, list[float]], baseline: str) -> dict[str, float]:
    """Return each contender's time as a multiple of the baseline's."""
    reference = seconds[baseline]
    return {
        name: median(own / base for own, base in zip(values, reference, strict=True))
        for name, values in seconds.items()
    }


def measure_ratios(
    contenders: Mapping[str, Callable[[], object]], baseline: str, rounds: int = ROUNDS
) -> dict[str, float]:
    """Time the contenders in turns and return their ratios to the baseline."""
    return ratios(time_interleaved(contenders, rounds), baseline)


def repeated(job: Callable[[], object], times: int) -> Callable[[], None]:
    """Return a contender that does the job several times."""

    def run() -> None:
        for _ in range(times):
            job()

    return run


def peak_memory(code: str) -> float:
    """Return the peak resident memory, in MB, of a fresh process that runs `code` (Linux)."""
    # Not ru_maxrss: a child starts with its parent's.
    report = "\nprint(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    command = [sys.executable, "-c", f"import torch\ntorch.set_num_threads(1)\n{code}{report}"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(result.stdout.split()[-1]) / 1024


def environment() -> dict[str, str]:
    """Return what the figures depend on."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "compiled": str(load_library() is not None),
    }


def thread_counts() -> list[int]:
    """Return 1 and the number of threads that torch would use."""
    return sorted({1, torch.get_num_threads()})


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def write_results(name: str, rows: object) -> Path:
    """Write figures beside the environment they were measured in."""
    path = Path(__file__).parent / "figures" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")
    return path
