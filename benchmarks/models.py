"""Time, memory and operations of every registered model, as ratios to `standard`.

    python benchmarks/models.py --rounds 10

All models are timed in turn in every round, and each time is divided by that of `standard` in the
same round, so that whatever else the machine does falls on all of them. Medians are printed.
Peak memory is what one training step allocates at most above what was there before, counted by
torch's own profiler. Operations are multiplications and additions of convolutions and matrix
products as torch counts them for the forward pass; what the fast scaled convolution or a custom
operator does inside is not seen by that counter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from equiscale.models import create_model, list_models

TARGETS = {
    "spatial_transform": 1.5,
    "ensemble": 2.5,
    "hermite": 5.0,
    "disco": 5.0,
    "kanazawa": 8.0,
    "xu": 9.0,
    "pixel_pool": 4.0,
    "slice_pool": 3.5,
}
"""Largest ratio of a training step at batch 16 on 64×64 grey that the project aims for."""


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Forward, cross-entropy, backward."""
    model.train()
    model.zero_grad(set_to_none=True)
    F.cross_entropy(model(images), labels).backward()


def inference(model: nn.Module, images: Tensor) -> None:
    """Forward without gradients."""
    model.eval()
    with torch.inference_mode():
        model(images)


def interleaved(jobs: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return seconds per job and round; every round runs all jobs, one unmeasured goes first."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for index in range(rounds + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if index:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(seconds: dict[str, list[float]], name: str) -> float:
    """Return the median over rounds of a job's time over that of `standard`."""
    pairs = zip(seconds[name], seconds["standard"], strict=True)
    return statistics.median(mine / standard for mine, standard in pairs)


def peak_memory(job: Callable[[], None]) -> int:
    """Return the most bytes that were allocated at once during a job."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        job()
    current = peak = 0
    events = trace.profiler.kineto_results.events()
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return peak


def count_operations(model: nn.Module, images: Tensor) -> int:
    """Return the operations of one forward pass."""
    model.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    return counter.get_total_flops()


def main() -> None:
    """Measure and print a table, and write it as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="*", default=list_models())
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    names = list(dict.fromkeys(["standard", *arguments.models]))

    torch.manual_seed(0)
    images = torch.rand(arguments.batch, arguments.channels, arguments.size, arguments.size)
    labels = torch.randint(36, (arguments.batch,))
    options = {"spatial_transform": {"image_size": arguments.size}}
    models = {
        name: create_model(
            name, in_channels=arguments.channels, num_classes=36, **options.get(name, {})
        )
        for name in names
    }
    steps = {n: (lambda m=m: training_step(m, images, labels)) for n, m in models.items()}
    passes = {n: (lambda m=m: inference(m, images)) for n, m in models.items()}
    step_seconds = interleaved(steps, arguments.rounds)
    pass_seconds = interleaved(passes, arguments.rounds)
    peaks = {name: peak_memory(step) for name, step in steps.items()}
    operations = {name: count_operations(model, images) for name, model in models.items()}

    rows = [
        {
            "model": name,
            "training_step_ratio": round(median_ratio(step_seconds, name), 2),
            "target": TARGETS.get(name),
            "inference_ratio": round(median_ratio(pass_seconds, name), 2),
            "peak_memory_mb": round(peaks[name] / 1e6, 1),
            "forward_gflop": round(operations[name] / 1e9, 2),
        }
        for name in names
    ]
    print("| model | training step | target | inference | peak memory, MB | forward, GFLOP |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print("| " + " | ".join("" if v is None else f"{v}" for v in row.values()) + " |")
    print(
        f"\nstandard: {1e3 * statistics.median(step_seconds['standard']):.1f} ms per step, "
        f"{1e3 * statistics.median(pass_seconds['standard']):.1f} ms per forward pass; "
        f"batch {arguments.batch}, {arguments.channels}×{arguments.size}×{arguments.size}, "
        f"{torch.get_num_threads()} thread(s), {arguments.rounds} rounds"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
