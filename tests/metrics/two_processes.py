"""Accumulate the metrics over one process's share of the batches and print them as JSON.

Usage: two_processes.py BASE RANK FILE, where BASE is `plain` or `torchmetrics` and FILE is where
the processes meet.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist


def accumulate(rank: int = 0, processes: int = 1) -> dict[str, float]:
    from equiscale.metrics import AccuracyByBucket, EquivarianceError, UsableRange

    accuracy, usable, error = AccuracyByBucket((30, 50)), UsableRange(64, 0.8), EquivarianceError()
    generator = torch.Generator().manual_seed(0)
    for step in range(5):  # an odd number: the processes have different shares
        labels = torch.randint(3, (40,), generator=generator)
        object_sizes = torch.randint(17, 65, (40,), generator=generator)
        noise = torch.randn(40, 3, generator=generator) * object_sizes[:, None] / 40
        logits = torch.nn.functional.one_hot(labels, 3) + noise
        maps = torch.rand(4, 2, 6, 6, generator=generator)
        maps[0] *= step % 2  # some are 0/0
        if step % processes == rank:
            accuracy.update(logits, labels, object_sizes)
            usable.update(logits, labels, object_sizes)
            error.update(maps, maps.square())
    values = {**accuracy.compute(), **usable.compute(), **error.compute()}
    return {name: float(value) for name, value in values.items()}


def main(base: str, rank: str, file: str) -> None:
    import equiscale.training.loop  # noqa: F401

    assert "torchmetrics" not in sys.modules, "imported before one of its metrics is used"
    if base == "plain":
        sys.modules["torchmetrics"] = None  # type: ignore[assignment]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=2)
    values = accumulate(int(rank), 2)
    assert (sys.modules.get("torchmetrics") is not None) == (base == "torchmetrics")
    print(json.dumps(values))


if __name__ == "__main__":
    main(*sys.argv[1:])
