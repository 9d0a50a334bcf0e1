from __future__ import annotations

from typing import Any

import pytest
import torch

from equiscale.layers.scaled.spectral.analysis import Problem, make_problem
from equiscale.layers.scaled.spectral.cost import Task
from equiscale.layers.scaled.spectral.mixing import FrequencyMixing, RowMixing
from equiscale.layers.scaled.spectral.ops import Settings
from equiscale.layers.scaled.spectral.workspace import Workspace


def make_example(batch: int, channels: int, interpolation: Any) -> Problem:
    x = torch.randn(batch, channels, 13, 12, dtype=torch.float64)
    weight = torch.randn(9, channels, 3, 3, dtype=torch.float64)
    settings = Settings([3, 5, 7, 9, 11], [], False, interpolation, 1, "none")
    return make_problem(x, weight, settings.plan(x, weight), 1)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("interpolation", ["bicubic", "nearest"])
@pytest.mark.parametrize(("batch", "channels"), [(1, 4), (9, 1), (3, 2)])
def test_both_orders_of_the_sums_agree(batch: int, channels: int, interpolation: str) -> None:
    problem = make_example(batch, channels, interpolation)
    by_row = RowMixing(problem, Workspace(problem.spectrum))
    by_frequency = FrequencyMixing(problem, Workspace(problem.spectrum))
    for scale_index in range(problem.plan.num_scales):
        rows, expected = by_row.forward(scale_index), by_frequency.forward(scale_index)
        for own, other in zip(rows, expected, strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=1e-12)
        grads = [torch.randn_like(part) for part in rows]
        torch.testing.assert_close(
            by_row.backward(scale_index, grads[0], grads[1], None),
            by_frequency.backward(scale_index, grads[0], grads[1], None),
            rtol=0,
            atol=1e-11,
        )


def test_groups_are_mixed_by_frequency() -> None:
    task = Task((29, 29), batch=1, channels=1, out_channels=32, groups=16, functions=7)
    assert not task.rows_come_first(1)
