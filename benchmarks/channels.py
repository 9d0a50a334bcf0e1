"""What the scale channels of trained networks owe to their pooling, range and ratio.

Takes the weights that finished runs of `scale_channels` have kept, asks the shared network at
many sizes of every test image once, and combines these answers in other ways. Nothing is trained
again: what training itself owes to a choice is seen by runs with other options.

    python benchmarks/channels.py --results results/runs
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equiscale import Split, load_dataset, load_model
from equiscale.layers.channel_pool import CHANNEL_POOLS, ChannelPool, pool_channels
from equiscale.layers.scale_channels import FACTORS, resize_images, scale_factors
from equiscale.models.scale_channel_nets import ScaleChannelNet
from equiscale.results.record import RunRecord
from equiscale.results.store import RunStore

GRID = scale_factors(0.125, 1.42, per_octave=4)
BATCH = 256
THIRDS = ((17, 32), (33, 48), (49, 64))
RANGES = {
    "the model's": FACTORS,
    "0.25 to 1.41": scale_factors(0.25, 1.42),
    "0.5 to 1.41": scale_factors(0.5, 1.42),
    "0.35 to 1": scale_factors(0.35, 1.0),
    "1 only": (1.0,),
    "0.35 to 1.41, four per octave": scale_factors(0.35, 1.42, per_octave=4),
    "0.35 to 1.41, one per octave": scale_factors(0.35, 1.42, per_octave=1),
}


def ask_channels(model: ScaleChannelNet, images: Tensor) -> Tensor:
    """`[N, C, H, W] -> [N, len(GRID), K]`: what the shared network says at each size."""
    with torch.inference_mode():
        return torch.cat([_ask(model, part) for part in images.split(BATCH)])


def _ask(model: ScaleChannelNet, images: Tensor) -> Tensor:
    answers = []
    for factor in GRID:
        copy = resize_images(images, factor)
        maps = torch.relu(model.conv2(torch.relu(model.conv1(copy))))
        answers.append(model.head(maps.amax((2, 3))))
    return torch.stack(answers, dim=1)


def choose(logits: Tensor, factors: Iterable[float]) -> Tensor:
    """`[N, len(GRID), K] -> [N, len(factors), K]`: the channels of these factors."""
    index = [int(np.argmin(np.abs(np.log2(GRID) - np.log2(factor)))) for factor in factors]
    return logits[:, index]


def show(name: str, logits: Tensor, labels: Tensor, sizes: Tensor, record: RunRecord) -> None:
    """Print one row: accuracy on the scenario's test sizes, and on each third of all sizes."""
    hits = (logits.argmax(1) == labels).double()
    tested = torch.isin(sizes, torch.tensor(record.key.scenario.test_sizes))
    thirds = [hits[(sizes >= low) & (sizes <= high)].mean() for low, high in THIRDS]
    numbers = " | ".join(f"{100 * float(value):.1f}" for value in (hits[tested].mean(), *thirds))
    print(f"| {name} | {numbers} |")


def show_run(record: RunRecord, directory: Path) -> None:
    """Print the table of one run."""
    part = load_dataset(record.key.dataset).select(Split.TEST)
    model = load_model(directory / "weights.safetensors")
    assert isinstance(model, ScaleChannelNet)
    logits = ask_channels(model.eval(), part.images)
    print(f"\n**{record.key}**\n")
    print("| pooling and factors | test sizes | 17–32 | 33–48 | 49–64 |\n" + "| --- " * 5 + "|")
    variants: list[tuple[ChannelPool, str]] = [(pool, "the model's") for pool in CHANNEL_POOLS]
    variants += [("mixture", name) for name in RANGES if name != "the model's"]
    for pool, name in variants:
        pooled = pool_channels(choose(logits, RANGES[name]), pool)
        show(f"{pool}, {name}", pooled, part.labels, part.object_sizes, record)


def main() -> None:
    """Print one table per run of `scale_channels` with its usual options and kept weights."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=Path("results/runs"))
    store = RunStore(parser.parse_args().results)
    for record in store.load_all():
        if record.key.model == "scale_channels" and record.weights is not None:
            show_run(record, store.directory(record.key.run_id))


if __name__ == "__main__":
    main()
