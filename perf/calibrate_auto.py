"""Measure and fit the constants of `method="auto"` (`src/equiscale/layers/scaled/method.py`).

    python perf/calibrate_auto.py

Times both methods, forward and backward, over a grid of layers and fits

    milliseconds = constant + per_scale · S + per_multiply_add · millions + per_element · millions

to each. Prints the constants, and how much slower the choice they make is than the better method.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from timing import write_results

from equiscale.layers import SConv2d
from equiscale.layers.scaled.method import direct_work, spectral_work

Shape = tuple[int, int, int, int]
FACTORS = np.geomspace(0.7, 1.5, 33)


def grid() -> list[tuple[dict[str, Any], Shape]]:
    """Return layers and inputs, from tiny to a few hundred milliseconds."""
    cases: list[tuple[dict[str, Any], Shape]] = []
    for n, k, (c, o), batch in itertools.product(
        (8, 12, 16, 24, 32), (3, 7), ((1, 16), (3, 16), (16, 32)), (1, 8)
    ):
        options = {"in_channels": c, "out_channels": o, "kernel_size": k}
        cases.append((options, (batch, c, n, n)))
    for n, sizes, padding, (c, o) in itertools.product(
        (16, 32, 64), ((3,), (3, 5), (3, 5, 7), (3, 7, 15)), ("valid", "same"), ((3, 16), (16, 32))
    ):
        options = {"in_channels": c, "out_channels": o, "kernel_size": sizes[0]}
        cases.append((options | {"kernel_sizes": sizes, "padding": padding}, (2, c, n, n)))
    for n, k, groups, batch in itertools.product((12, 16, 24, 32), (3, 7), (2, 4, 16), (1, 8)):
        options = {"in_channels": 16, "out_channels": 32, "kernel_size": k, "groups": groups}
        cases.append((options, (batch, 16, n, n)))
    for n, c, o, k, stride in (
        *((56, 3, 64, 7, 2), (28, 64, 64, 3, 1), (28, 64, 128, 3, 2), (14, 128, 128, 3, 1)),
        *((14, 128, 256, 3, 2), (7, 256, 256, 3, 1), (24, 16, 32, 5, 2), (24, 3, 16, 3, 2)),
    ):
        options = {"in_channels": c, "out_channels": o, "kernel_size": k, "stride": stride}
        cases.append((options | {"padding": k // 2, "num_scales": 4}, (4, c, n, n)))
    return cases


def fastest(layer: SConv2d, x: torch.Tensor, rounds: int = 7) -> float:
    """Return the least milliseconds of a forward and a backward pass, of this thread alone."""
    with torch.no_grad():
        grad = torch.randn_like(layer(x))
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        layer(x).backward(grad)
        times.append(time.thread_time() - start)
    return 1e3 * min(times)


def fit(features: np.ndarray, times: np.ndarray, closeness: np.ndarray) -> np.ndarray:
    """Return non-negative constants of least relative error, ignoring outliers.

    Cases in which both methods take about as long count most, because only there it matters.
    """
    weights = closeness / times
    for _ in range(20):
        constants, _ = nnls(features * weights[:, None], times * weights)
        error = np.abs(np.log((features @ constants + 1e-9) / times))
        weights = closeness / times / np.maximum(error, 0.1)
    return constants


def loss(
    measured: dict[str, np.ndarray], estimates: dict[str, np.ndarray], factor: float
) -> np.ndarray:
    """Return how much slower the choice is, if the direct method counts so much more."""
    spectral = estimates["spectral"] < factor * estimates["direct"]
    chosen = np.where(spectral, measured["spectral"], measured["direct"])
    return chosen / np.minimum(measured["spectral"], measured["direct"])


def main() -> None:
    """Measure, fit and report."""
    torch.set_num_threads(1)
    features: dict[str, list[tuple[float, ...]]] = {"direct": [], "spectral": []}
    times: dict[str, list[float]] = {"direct": [], "spectral": []}
    for options, shape in grid():
        x = torch.rand(shape, requires_grad=True)
        layers = {m: SConv2d(**options, pool="pixel", method=m) for m in ("direct", "spectral")}  # type: ignore[arg-type]
        geometry = layers["direct"].geometry((shape[2], shape[3]))
        weight = layers["direct"].weight
        work = {
            "direct": direct_work(shape, weight.shape, geometry),
            "spectral": spectral_work(shape, weight.shape, geometry),
        }
        for method, layer in layers.items():
            own = work[method]
            features[method].append((1.0, own.num_scales, own.multiply_adds, own.elements))
            times[method].append(fastest(layer, x))
    measured = {m: np.array(times[m]) for m in times}
    closeness = np.exp(-np.abs(np.log(measured["direct"] / measured["spectral"])))
    constants = {m: fit(np.array(features[m]), measured[m], closeness) for m in features}
    estimates = {m: np.array(features[m]) @ constants[m] for m in features}
    # Where the estimates err on one side, a common factor mends most of it.
    factor = min(FACTORS, key=lambda f: loss(measured, estimates, f).mean())
    constants["direct"] *= factor
    lost = loss(measured, estimates, factor)
    for method, values in constants.items():
        print(
            method, "constant, per scale, per multiply-add, per element:", values.round(3).tolist()
        )
    print(f"slower than the better method: worst {lost.max():.2f}, mean {lost.mean():.3f}")
    print("worst cases:")
    for index in np.argsort(lost)[:-8:-1]:
        row = [f"{measured[m][index]:.2f}" for m in measured]
        print(f"  {lost[index]:.2f}", grid()[index], "direct, spectral ms:", *row)
    write_results("auto", {m: values.tolist() for m, values in constants.items()})


if __name__ == "__main__":
    main()
