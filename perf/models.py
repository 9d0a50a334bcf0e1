"""Time, memory and operations of every registered model, as ratios to `standard`.

    python perf/models.py --threads 2

On one thread, as the workers of a sweep run them, or on `--threads`; see `timing.py`
for how it is timed.
Peak memory is what one training step allocates at most above what was there before, counted by
torch's own profiler. Operations are the multiplications and additions of convolutions and matrix
products that a forward pass executes (`equiscale.metrics.cost`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from timing import keep_freed_memory, measure_ratios, repeated, write_results
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from equiscale.metrics.cost import count_operations
from equiscale.models import create_model, list_models

TARGETS = {
    "spatial_transform": 1.5,
    "ensemble": 2.5,
    "hermite": 5.0,
    "disco": 5.0,
    "kanazawa": 8.0,
    "xu": 9.0,
    "pixel_pool": 2.2,
    "slice_pool": 1.8,
    "pixel_pool_full": 5.0,
    "slice_pool_full": 5.0,
    "conv3d": 20.0,
}
"""Largest ratio of a training step at batch 16 on 64×64 grey that the project aims for."""

DRAWING = ("scale_channels", "gaussian_derivative", "ensemble_dropout")
"""Models that draw anew in each training step what they compute."""

DRAWS = 20
"""Steps that make up one measurement of these: their mean is asked for, not a lucky draw."""


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


def operations(model: nn.Module, images: Tensor) -> int:
    """Return the operations that one forward pass executes."""
    batch, shape = len(images), images.shape[1:]
    return batch * count_operations(model, shape, batch).executed


def main() -> None:
    """Measure, print and write to `perf/figures/models.json`, or `models_threads.json`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="*", default=list_models())
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    images = torch.rand(arguments.batch, arguments.channels, arguments.size, arguments.size)
    labels = torch.randint(36, (arguments.batch,))
    models = {
        name: create_model(name, in_channels=arguments.channels, num_classes=36, **options)
        for name in dict.fromkeys(["standard", *arguments.models])
        for options in [{"image_size": arguments.size} if name == "spatial_transform" else {}]
    }
    rows = measure(models, images, labels, arguments.rounds)
    for row in rows:
        print(*(f"{key}={value}" for key, value in row.items()))
    write_results("models" if arguments.threads == 1 else "models_threads", rows)


def measure(
    models: dict[str, nn.Module], images: Tensor, labels: Tensor, rounds: int
) -> list[dict[str, object]]:
    """Return one row per model."""
    steps = {n: partial(training_step, m, images, labels) for n, m in models.items()}
    passes = {n: partial(inference, m, images) for n, m in models.items()}
    several = {n: repeated(steps[n], DRAWS) for n in models if n in DRAWING}
    step_ratios = measure_ratios(steps | several, "standard", rounds)
    step_ratios |= {n: step_ratios[n] / DRAWS for n in several}
    pass_ratios = measure_ratios(passes, "standard", rounds)
    return [
        {
            "model": name,
            "training_step_ratio": round(step_ratios[name], 2),
            "target": TARGETS.get(name),
            "inference_ratio": round(pass_ratios[name], 2),
            "peak_memory_mb": round(peak_memory(steps[name]) / 1e6, 1),
            "forward_gflop": round(operations(model, images) / 1e9, 2),
        }
        for name, model in models.items()
    ]


if __name__ == "__main__":
    main()
