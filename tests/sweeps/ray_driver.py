"""A sweep of two runs on Ray nodes that do not see the runs directory; one of them fails."""

from __future__ import annotations

import sys
from pathlib import Path

import ray

from equiscale import load_dataset
from equiscale.core.protocol import TrainingProtocol
from equiscale.core.spec import Scenario
from equiscale.runs.store import RunStore
from equiscale.sweeps import launch_ray
from equiscale.sweeps.grid import ModelChoice, Sweep
from equiscale.sweeps.job import JobSettings
from equiscale.sweeps.request import describe_dataset, run_sweep


def main(source: str, results: str) -> None:
    launch_ray._look = lambda node, path: ray.put(False)
    data = describe_dataset(source, load_dataset(Path(source)))
    models = tuple(ModelChoice(f"tiny_models:{name}") for name in ("TinyNet", "Raising"))
    protocol = TrainingProtocol(max_epochs=1)
    sweep = Sweep(models, (data,), (Scenario.MID_TO_REST,), (1,), protocol=protocol)
    settings = JobSettings(results, {data.content_hash: source}, device="cpu")
    run_sweep(sweep, RunStore(results), launch_ray.RayLauncher(), settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
