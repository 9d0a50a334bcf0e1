"""The scaled convolution beside a plain one: time and memory as ratios, on one thread and on all.

python perf/layer.py                        # everything, an hour
python perf/layer.py networks --threads 1   # one part, see `PARTS`
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from timing import (
    ROUNDS,
    keep_freed_memory,
    measure_ratios,
    peak_memory,
    repeated,
    thread_counts,
    write_results,
)
from torch import Tensor, nn

from equiscale import create_model
from equiscale.layers import SConv2d, convert
from equiscale.layers.scaled.native import SWITCH

Row = dict[str, Any]
SHORT_ROUNDS = 41  # of what takes milliseconds: a slow moment of the machine takes a second


def networks() -> list[Row]:
    """Training step and inference of whole networks, batch 16, 64×64 grey."""
    images, labels = torch.rand(16, 1, 64, 64), torch.arange(16)
    names = ("standard", "pixel_pool", "slice_pool", "energy_pool")
    padded = ("pixel_pool_full", "slice_pool_full")
    models = {name: create_model(name, in_channels=1, num_classes=36) for name in names + padded}
    steps = measure_ratios(
        {name: _training_step(model, images, labels) for name, model in models.items()},
        "standard",
        rounds=SHORT_ROUNDS,
    )
    compiled = {name: _inference(models[name], images) for name in names}
    single = {name: repeated(_inference(models[name], images[:1]), 10) for name in names[:3]}
    plain = {name: _without_compiled_code(compiled[name]) for name in ("pixel_pool", "slice_pool")}
    passes = measure_ratios(
        compiled | {f"{name} plain": run for name, run in plain.items()},
        "standard",
        rounds=SHORT_ROUNDS,
    )
    found = {
        "training step": steps,
        "inference": {name: passes[name] for name in compiled},
        "inference of one image": measure_ratios(single, "standard", rounds=SHORT_ROUNDS),
        "inference without compiled code": {name: passes[f"{name} plain"] for name in plain},
    }
    return [
        {"what": what, "model": name, "ratio": ratio}
        for what, ratios in found.items()
        for name, ratio in ratios.items()
    ]


def _without_compiled_code(run: Callable[[], None]) -> Callable[[], None]:
    def plain() -> None:
        os.environ[SWITCH] = "0"
        try:
            run()
        finally:
            del os.environ[SWITCH]

    return plain


def _training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def _inference(model: nn.Module, *inputs: Tensor) -> Callable[[], None]:
    """Return a contender that takes the inputs in turn."""
    turns = itertools.cycle(inputs)

    @torch.no_grad()
    def infer() -> None:
        model(next(turns))

    return infer


def layer() -> list[Row]:
    """One layer 16→32 at 64×64 with a dense gradient, and the unpooled stack against direct."""
    x = torch.rand(16, 16, 64, 64, requires_grad=True)
    contenders = {"Conv2d": _there_and_back(nn.Conv2d(16, 32, 7), x)}
    for pool in ("pixel", "slice", "energy"):
        contenders[pool] = _there_and_back(SConv2d(16, 32, 7, pool=pool), x)  # type: ignore[arg-type]
    dense = measure_ratios(contenders, "Conv2d")
    few = x[:2].detach().requires_grad_()
    stack = measure_ratios(
        {
            method: _there_and_back(SConv2d(16, 32, 7, method=method), few)  # type: ignore[arg-type]
            for method in ("direct", "spectral")
        },
        "direct",
    )
    rows = [
        {"what": "forward and backward, 64×64", "model": n, "ratio": r} for n, r in dense.items()
    ]
    rows += [
        {"what": "unpooled stack, to direct's", "model": n, "ratio": r} for n, r in stack.items()
    ]
    return rows


def _there_and_back(module: nn.Module, x: Tensor) -> Callable[[], None]:
    with torch.no_grad():
        grad = torch.randn_like(module(x))

    def run() -> None:
        module(x).backward(grad)

    return run


class _Block(nn.Module):
    """Two convolutions and a shortcut, as in ResNet-18."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.shortcut = nn.Conv2d(in_channels, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        plain = x.shape == y.shape
        return F.relu(y + (x if plain else self.shortcut(x)))


def _resnet18() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    before = 64
    for channels in (64, 128, 256, 512):
        layers += [_Block(before, channels, channels // before), _Block(channels, channels, 1)]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def resnet() -> list[Row]:
    """Training step of ResNet-18 at 224×224, batch 8, before and after `convert`."""
    images, labels = torch.rand(8, 3, 224, 224), torch.arange(8)
    plain = _resnet18()
    networks = {"plain": plain, "converted": convert(plain, num_scales=4)}
    steps = {name: _training_step(model, images, labels) for name, model in networks.items()}
    found = measure_ratios(steps, "plain")
    what = "training step of ResNet-18, 224×224"
    return [{"what": what, "model": name, "ratio": ratio} for name, ratio in found.items()]


def threads() -> list[Row]:
    """Layer 16→32 at 64×64, forward and backward, over the number of threads."""
    x = torch.rand(16, 16, 64, 64, requires_grad=True)
    layers = {"Conv2d": nn.Conv2d(16, 32, 7), "pixel": SConv2d(16, 32, 7, pool="pixel")}
    runs = {name: _there_and_back(module, x) for name, module in layers.items()}
    counts = sorted({1, os.cpu_count() or 1, *(2**i for i in range(8) if 2**i < os.cpu_count())})  # type: ignore[operator]
    seconds: dict[tuple[str, int], list[float]] = {(n, c): [] for n in runs for c in counts}
    for _ in range(SHORT_ROUNDS):
        for (name, count), found in seconds.items():
            torch.set_num_threads(count)
            start = time.perf_counter()
            runs[name]()
            found.append(time.perf_counter() - start)
    return [
        {
            "model": name,
            "num_threads": count,
            "to one thread": median(found) / median(seconds[name, 1]),
            "to Conv2d": median(found) / median(seconds["Conv2d", count]),
        }
        for (name, count), found in seconds.items()
    ]


def sizes() -> list[Row]:
    """Forward pass of one layer 16→32 with pixel pooling over the side n of the input."""
    rows: list[Row] = []
    batch = 16
    for n in (16, 32, 48, 64, 96, 128, 160, 224):
        # Conv2d's time depends on where in memory its input is, by up to a third.
        inputs = [torch.rand(batch, 16, n, n) for _ in range(ROUNDS)]
        contenders = {"Conv2d": _inference(nn.Conv2d(16, 32, 7), *inputs)}
        methods = ("direct", "spectral", "auto") if n <= 64 else ("spectral",)
        for method in methods:
            scaled = SConv2d(16, 32, 7, pool="pixel", method=method)  # type: ignore[arg-type]
            contenders[method] = _inference(scaled, *inputs)
        # Beyond 64 the definition takes minutes, and auto takes the spectral method for certain.
        found = measure_ratios(contenders, "Conv2d")
        found.setdefault("auto", found["spectral"])
        rows += [{"n": n, "batch": batch, "method": m, "ratio": r} for m, r in found.items()]
    return rows


SHAPES: list[tuple[dict[str, Any], tuple[int, int, int, int]]] = [
    ({"in_channels": 3, "out_channels": 16, "kernel_size": 7}, (16, 3, 64, 64)),
    ({"in_channels": 1, "out_channels": 16, "kernel_size": 7}, (16, 1, 64, 64)),
    ({"in_channels": 16, "out_channels": 32, "kernel_size": 7}, (1, 16, 64, 64)),
    ({"in_channels": 16, "out_channels": 32, "kernel_size": 7}, (128, 16, 32, 32)),
    ({"in_channels": 3, "out_channels": 8, "kernel_size": 3}, (4, 3, 12, 12)),
    ({"in_channels": 8, "out_channels": 8, "kernel_size": 7}, (8, 8, 9, 9)),
    ({"in_channels": 16, "out_channels": 16, "kernel_size": 3}, (4, 16, 64, 64)),
    (
        {"in_channels": 16, "out_channels": 16, "kernel_size": 3, "kernel_sizes": (3, 5)},
        (4, 16, 64, 64),
    ),
    (
        {"in_channels": 16, "out_channels": 16, "kernel_size": 5, "kernel_sizes": (5, 9, 17, 33)},
        (4, 16, 64, 64),
    ),
    (
        {
            "in_channels": 16,
            "out_channels": 16,
            "kernel_size": 3,
            "kernel_sizes": (3, 5, 7),
            "padding": "same",
        },
        (4, 16, 32, 32),
    ),
    (
        {
            "in_channels": 32,
            "out_channels": 32,
            "kernel_size": 3,
            "kernel_sizes": (3, 7, 15),
            "groups": 32,
        },
        (4, 32, 32, 32),
    ),
    ({"in_channels": 8, "out_channels": 16, "kernel_size": 5, "stride": 2}, (4, 8, 40, 40)),
    (
        {"in_channels": 64, "out_channels": 64, "kernel_size": 3, "kernel_sizes": (3,)},
        (4, 64, 32, 32),
    ),
]


SMALL = 10_000
SMALL_REPEATS = 20
"""Inputs of fewer numbers than this are convolved so often in a turn: a single call takes a
millisecond, and then whoever runs after its like finds the processor's caches filled."""


def shapes() -> list[Row]:
    """Auto beside both methods over many shapes, forward and backward, pixel pooling."""
    rows: list[Row] = []
    for options, shape in SHAPES:
        x = torch.rand(shape, requires_grad=True)
        repeats, rounds = (SMALL_REPEATS, SHORT_ROUNDS) if x.numel() < SMALL else (1, 7)
        contenders = {
            method: repeated(
                _there_and_back(SConv2d(**options, pool="pixel", method=method), x),  # type: ignore[arg-type]
                repeats,
            )
            for method in ("direct", "spectral", "auto")
        }
        found = measure_ratios(contenders, "direct", rounds=rounds)
        best = min(found["direct"], found["spectral"])
        rows.append(
            {"layer": options, "input": list(shape), **found, "auto/best": found["auto"] / best}
        )
    return rows


_STEP = """
import torch.nn.functional as F
from equiscale import create_model
model = create_model({name!r}, in_channels=1, num_classes=36)
optimizer = torch.optim.Adam(model.parameters())
images, labels = torch.rand(16, 1, 64, 64), torch.arange(16)
for _ in range(3):
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
"""


def memory() -> list[Row]:
    """Peak memory of a training step above that of `standard`, in MB."""
    peaks = {
        name: peak_memory(_STEP.format(name=name))
        for name in ("standard", "pixel_pool", "slice_pool")
    }
    return [
        {
            "what": "peak memory above standard's (MB)",
            "model": name,
            "megabytes": peak - peaks["standard"],
        }
        for name, peak in peaks.items()
    ]


ON_ALL_THREADS = {"networks": networks, "layer": layer, "resnet": resnet, "sizes": sizes}
PARTS = ON_ALL_THREADS | {"shapes": shapes, "memory": memory, "threads": threads}
"""The first few are measured at each number of threads, the others have one of their own."""


def main() -> None:
    """Measure the parts that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--threads", type=int, nargs="*", default=thread_counts())
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    for name in arguments.parts or list(PARTS):
        rows = []
        for count in arguments.threads if name in ON_ALL_THREADS else [1]:
            torch.set_num_threads(count)
            rows += [{"threads": count, **row} for row in PARTS[name]()]
        for row in rows:
            print(
                name,
                *(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()),
            )
        write_results(f"layer_{name}", rows)


if __name__ == "__main__":
    main()
