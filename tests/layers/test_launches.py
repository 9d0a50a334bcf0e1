"""PyTorch operations on a GPU: few kernel launches, and none that waits for the device.

There is no GPU here. Tensors on the meta device have shapes but no values, so that any operation
whose shape or control flow depends on values fails. A dispatch mode counts the operations that
would launch a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from equiscale.layers import scaled_conv2d
from equiscale.layers.scaled.native import SWITCH
from equiscale.layers.scaled.spectral import pooling
from equiscale.layers.scaled.spectral.operators import Settings
from equiscale.layers.scaled.spectral.sparse import peak_places, sparse_backward
from equiscale.layers.scaled.spectral.transforms import Problem

MOST_LAUNCHES = 800
"""Of a training step of `pixel_pool` or `slice_pool`, batch 16, 64×64 grey."""


class Launches(TorchDispatchMode):
    """Counts operations that compute something; views and allocations launch nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not _is_view(func) and "empty" not in func.__name__:
            self.count += 1
        return func(*args, **(kwargs or {}))


def _is_view(func: Any) -> bool:
    returned = [value.alias_info for value in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returned)


def layer(channels: int, outputs: int, size: int, pool: str) -> Callable[[], None]:
    """Return forward and backward passes of a layer on the meta device."""
    x = torch.empty(16, channels, size, size, device="meta")
    weight, bias = torch.empty(outputs, channels, 7, 7, device="meta"), x.new_empty(outputs)
    settings = Settings(list(range(7, size + 1, 2)), [], False, "bicubic", 1, pool)
    plan = settings.plan(x, weight)

    def run() -> None:
        problem = Problem.make(x, weight, plan, 1)
        values, choice = pooling.pool_maps(problem, bias, pool)
        grad, wanted = torch.empty_like(values), channels > 1
        if pool == "global":
            sparse_backward(x, weight, peak_places(grad, choice, plan, 1), plan, wanted)
        else:
            kind = "pixel" if pool == "pixel" else "chosen"
            pooling.maps_backward(problem, grad, choice, kind, wanted)

    return run


@pytest.mark.parametrize("pool", ["pixel", "slice"])
def test_a_training_step_takes_few_launches_and_never_waits(pool: str) -> None:
    steps = layer(1, 16, 64, pool), layer(16, 32, 58, "global")
    with Launches() as launches:
        for step in steps:
            step()
    assert 100 < launches.count <= MOST_LAUNCHES


@pytest.mark.parametrize("pool", [None, "pixel", "slice", "energy", "mean_energy", "global"])
def test_values_do_not_depend_on_how_many_sizes_are_computed_at_once(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    generator = torch.Generator().manual_seed(1)
    x, weight = (
        torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in ((3, 4, 13, 12), (6, 2, 3, 3))
    )
    found = []
    for budget in (1, 1 << 40):
        monkeypatch.setitem(pooling._CHUNK, "cpu", budget)
        output = scaled_conv2d(x, weight, groups=2, pool=pool, method="spectral")
        found.append([output, *torch.autograd.grad(output.square().sum(), (x, weight))])
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)
