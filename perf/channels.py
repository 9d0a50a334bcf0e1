"""What the scale channels of trained networks owe to their pooling, range and ratio.

Takes the weights that finished runs of `scale_channels` have kept, asks the shared network at
many sizes of every test image once, and combines these answers in other ways. Nothing is trained
again: what training itself owes to a choice is seen by runs with other options. And it asks each
channel alone, at a few sizes of the object.

    python perf/channels.py --runs study/runs [pooling] [alone]

`make study` then brings the figures to `docs/scale-channels.md`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import write_results
from torch import Tensor

from equiscale import Split, load_dataset, load_model
from equiscale.layers.channels import (
    FACTORS,
    VIEW_POOLS,
    ViewPool,
    pool_views,
    resize_images,
    scale_factors,
)
from equiscale.models.families.scale_channels import ScaleChannelNet
from equiscale.runs.record import RunRecord
from equiscale.runs.store import RunStore

Row = dict[str, Any]
GRID = scale_factors(0.125, 1.42, per_octave=4)
BATCH = 256
SIZES = (18, 24, 32, 40, 48, 56, 64)
USUAL = "the model's"
WIDE = "0.18 to 1.41"
RANGES = {
    USUAL: FACTORS,
    WIDE: scale_factors(0.176, 1.42),
    "0.25 to 1.41": scale_factors(0.25, 1.42),
    "0.5 to 1.41": scale_factors(0.5, 1.42),
    "0.35 to 1": scale_factors(0.35, 1.0),
    "1 only": (1.0,),
    "0.35 to 1.41, four per octave": scale_factors(0.35, 1.42, per_octave=4),
    "0.35 to 1.41, one per octave": FACTORS[::2],
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


def measure_run(record: RunRecord, directory: Path) -> Iterator[Row]:
    """Yield the accuracy of one run on its unseen sizes, per pooling and factors."""
    tested = record.key.scenario.test_sizes(record.predictions.sizes)
    part = load_dataset(record.key.dataset).select(Split.TEST, tested)
    model = load_model(directory / "weights.safetensors")
    assert isinstance(model, ScaleChannelNet)
    logits = ask_channels(model.eval(), part.images)
    variants: list[tuple[ViewPool, str]] = [(pool, USUAL) for pool in VIEW_POOLS]
    variants += [("mixture", name) for name in RANGES if name != USUAL]
    variants += [("vote", WIDE)]
    for pool, name in variants:
        pooled = pool_views(choose(logits, RANGES[name]), pool)
        yield {
            "dataset": record.key.dataset,
            "scenario": record.key.scenario.value,
            "seed": record.key.seed,
            "label": f"{pool}, {name}",
            "accuracy": float((pooled.argmax(1) == part.labels).double().mean()),
        }


def measure_alone(record: RunRecord, directory: Path) -> Iterator[Row]:
    """Yield what each channel of one run says by itself, at a few sizes of the object."""
    model = load_model(directory / "weights.safetensors")
    assert isinstance(model, ScaleChannelNet)
    dataset = load_dataset(record.key.dataset)
    for size in SIZES:
        part = dataset.select(Split.TEST, [size])
        logits = choose(ask_channels(model.eval(), part.images), FACTORS)
        right = logits.argmax(2) == part.labels[:, None]
        sure = logits.softmax(2).amax(2)
        mixture = pool_views(logits, "mixture").argmax(1)
        yield {
            "dataset": record.key.dataset,
            "scenario": record.key.scenario.value,
            "seed": record.key.seed,
            "label": f"{size} px",
            "size": size,
            "accuracy": float((mixture == part.labels).double().mean()),
            "factors": list(FACTORS),
            "alone": right.double().mean(0).tolist(),
            "certainty_when_wrong": [
                None if own.all() else float(sure[~own, channel].mean())
                for channel, own in enumerate(right.unbind(1))
            ],
            "errors": _most_frequent(mixture, part.labels),
        }


def _most_frequent(predicted: Tensor, labels: Tensor, count: int = 3) -> list[list[int]]:
    """Return label, prediction and number of the most frequent errors."""
    wrong = predicted != labels
    pairs, counts = torch.stack([labels, predicted], 1)[wrong].unique(dim=0, return_counts=True)
    order = counts.argsort(descending=True)[:count]
    return torch.cat([pairs[order], counts[order, None]], 1).tolist()


def kept_runs(store: RunStore) -> Iterator[RunRecord]:
    """Yield the runs of `scale_channels` as it is whose weights were kept."""
    for record in store.load_all():
        key = record.key
        if key.model == "scale_channels" and not key.model_options and record.weights is not None:
            yield record


PARTS = {
    "pooling": ("channels", ("emoji", "mnist"), measure_run),
    "alone": ("channels_alone", ("mnist",), measure_alone),
}
"""Name of the file, datasets, what is measured on each run."""


def main() -> None:
    """Write one row per run and way of combining its channels, and per run and size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; both")
    parser.add_argument("--runs", type=Path, default=Path("study/runs"))
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    store = RunStore(arguments.runs)
    records = sorted(kept_runs(store), key=lambda record: str(record.key))
    for part in arguments.parts or PARTS:
        name, datasets, measure = PARTS[part]
        rows: list[Row] = []
        for record in (record for record in records if record.key.dataset in datasets):
            print(record.key, flush=True)
            for row in measure(record, store.directory(record.key.run_id)):
                print(f"  {row['label']}: {100 * row['accuracy']:.1f}", flush=True)
                rows.append(row)
        print(f"written to {write_results(name, rows)}")


if __name__ == "__main__":
    main()
