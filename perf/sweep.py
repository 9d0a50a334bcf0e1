"""Two single-threaded workers against one with two threads, on two cores.

Runs real sweeps of two runs with worker processes and compares epochs per second, validation
included. Not counted: starting the processes, the first epoch of a run, which warms up, and the
last, in which the other worker may be done already. Both ways alternate, so that what else the
machine does meets both. A few classes of emoji are enough: the work per image is the same.

    python perf/sweep.py [--models standard,pixel_pool] [--classes 4] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from equiscale import Scenario, load_dataset
from equiscale.core.protocol import TrainingProtocol
from equiscale.data.schema import StirArrays, write_arrays
from equiscale.runs.store import RunStore
from equiscale.sweeps.grid import DatasetChoice, ModelChoice, Sweep
from equiscale.sweeps.job import JobSettings
from equiscale.sweeps.launch_local import LocalLauncher
from equiscale.sweeps.request import describe_dataset, run_sweep

EPOCHS = 5


def write_part(path: Path, classes: int) -> DatasetChoice:
    """Write the first classes of emoji as a dataset of their own."""
    whole = load_dataset("emoji").arrays
    part = StirArrays.assemble(
        whole.images[:, :, :classes],
        whole.positions[:, :, :classes],
        whole.class_names[:classes],
        whole.metadata,
    )
    write_arrays(path, part)
    return describe_dataset(str(path), load_dataset(path))


def measure(model: str, data: DatasetChoice, results: Path, workers: int, threads: int) -> float:
    """Return epochs per second of all workers together."""
    sweep = Sweep(
        models=(ModelChoice(model),),
        datasets=(data,),
        scenarios=(Scenario.MID_TO_REST,),
        seeds=(1, 2),
        protocol=TrainingProtocol(max_epochs=EPOCHS, patience=EPOCHS),
    )
    settings = JobSettings(str(results), {data.content_hash: data.source}, device="cpu")
    store = RunStore(results)
    run_sweep(sweep, store, LocalLauncher(workers, threads), settings)
    epochs = [record.timings["epoch_seconds"][1:-1] for record in store.load_all()]
    return workers / statistics.median(seconds for run in epochs for seconds in run)


def compare(model: str, data: DatasetChoice, root: Path, rounds: int) -> tuple[float, float]:
    """Return the median epochs per second of two workers, and of one with two threads."""
    several, one = [], []
    for number in range(rounds):
        place = root / model / str(number)
        several.append(measure(model, data, place / "several", workers=2, threads=1))
        one.append(measure(model, data, place / "one", workers=1, threads=2))
    return statistics.median(several), statistics.median(one)


def main() -> None:
    """Print one row per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="standard,pixel_pool")
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| model | 2 workers × 1 thread | 1 worker × 2 threads | ratio |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        data = write_part(root / "part.npz", options.classes)
        for model in options.models.split(","):
            several, one = compare(model, data, root, options.rounds)
            print(f"| {model} | {several:.3f}/s | {one:.3f}/s | {several / one:.2f} |", flush=True)


if __name__ == "__main__":
    main()
