"""PyTorch operations on a GPU: few kernel launches, and none that waits for the device.

There is no GPU here. Tensors on the meta device have shapes but no values, so that any operation
whose shape or control flow depends on values fails. `perf/gpu.py` counts the operations that would
launch a kernel.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu import Work, layer

from equiscale.layers import scaled_conv2d
from equiscale.layers.scaled.native import SWITCH
from equiscale.layers.scaled.spectral import pooling

MOST_LAUNCHES = 800
"""Of a training step of `pixel_pool` or `slice_pool`, batch 16, 64×64 grey."""


@pytest.mark.parametrize("pool", ["pixel", "slice"])
def test_a_training_step_takes_few_launches_and_never_waits(pool: str) -> None:
    steps = layer(1, 16, 64, pool), layer(16, 32, 58, "global")
    with Work() as work:
        for step in steps:
            step()
    assert 100 < len(work.launches) <= MOST_LAUNCHES


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
