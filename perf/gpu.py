"""Calculate, not measure, a training step of `pixel_pool` on an A100.

    python perf/gpu.py

Runs both layers on the meta device and adds up, over the operations that would launch a kernel, the
longest of: a launch, moving the bytes of its tensors, and its multiplications and additions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from timing import write_results
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from equiscale.layers.scaled.spectral import pooling
from equiscale.layers.scaled.spectral.operators import Settings
from equiscale.layers.scaled.spectral.sparse import peak_places, sparse_backward
from equiscale.layers.scaled.spectral.transforms import Problem

BYTES_PER_SECOND, OPERATIONS_PER_SECOND = 1.555e12, 19.5e12
"""Of an A100 with 40 GB, from its data sheet; float32 without tensor cores."""

LAUNCH = {"eager": 10e-6, "CUDA graph": 2e-6}
"""Assumed seconds from one launch to the next."""

STEPS, BATCH = 36, 16
"""Of an epoch of emoji."""


class Work(TorchDispatchMode):
    """Bytes and operations of everything that launches a kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: list[tuple[int, int]] = []

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's signature
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - torch's signature
        result = func(*args, **(kwargs or {}))
        aliases = [value.alias_info for value in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        if not is_view and "empty" not in func.__name__:
            tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=result) if count else 0
            self.launches.append((sum(t.numel() * t.element_size() for t in tensors), flops))
        return result


def layer(channels: int, outputs: int, size: int, pool: str) -> Callable[[], None]:
    """Return forward and backward passes of a layer on the meta device."""
    x = torch.empty(BATCH, channels, size, size, device="meta")
    weight, bias = torch.empty(outputs, channels, 7, 7, device="meta"), x.new_empty(outputs)
    settings = Settings(list(range(7, size + 1, 2)), [1, 1], [], False, "bicubic", 1, pool)
    plan = settings.plan(x, weight)

    def run() -> None:
        problem = Problem.make(x, weight, plan, 1)
        values, choice = pooling.pool_maps(problem, bias, pool)
        grad = torch.empty_like(values)
        if pool == "global":
            sparse_backward(x, weight, peak_places(grad, choice, plan, 1), plan, channels > 1)
        else:
            kind = "pixel" if pool == "pixel" else "chosen"
            pooling.maps_backward(problem, grad, choice, kind, channels > 1)

    return run


def main() -> None:
    """Calculate, print and write `perf/figures/gpu.json`."""
    steps = layer(1, 16, 64, "pixel"), layer(16, 32, 58, "global")
    with Work() as work:
        for step in steps:
            step()
    moved, flops = (sum(values) for values in zip(*work.launches, strict=True))
    row: dict[str, object] = {
        "launches": len(work.launches),
        "gigabytes": round(moved / 1e9, 2),
        "gflop": round(flops / 1e9, 2),
    }
    for how, launch in LAUNCH.items():
        seconds = sum(
            max(launch, b / BYTES_PER_SECOND, f / OPERATIONS_PER_SECOND) for b, f in work.launches
        )
        row[f"seconds of an epoch, {how}"] = round(STEPS * seconds, 3)
    print(row)
    write_results("gpu", [row])


if __name__ == "__main__":
    main()
