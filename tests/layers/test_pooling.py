from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from equiscale.core.errors import OptionError, ShapeError
from equiscale.layers import GlobalMaxPool, ScalePool, SConv2d, scale_pool
from equiscale.layers.scaled.pooling import POOL_MODES, PoolMode

AREAS = (24, 8, 20, 1, 12)


def scores(maps: np.ndarray, mode: str) -> list[float]:
    """What the five maps `[S, H, W]` of one channel compete with."""
    if mode == "energy":
        return [sum(one.flat) for one in maps]
    if mode == "mean_energy":
        return [sum(one.flat) / area for one, area in zip(maps, AREAS, strict=True)]
    return [max(one.flat) for one in maps]


def pool_by_loops(stack: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """The definition, one channel at a time."""
    N, C, _, H, W = stack.shape
    values = np.empty((N, C) if mode == "global" else (N, C, H, W))
    indices = np.empty((N, C, H, W) if mode == "pixel" else (N, C), dtype=int)
    for n, c in np.ndindex(N, C):
        own = stack[n, c]
        if mode == "pixel":
            for y, x in np.ndindex(H, W):
                indices[n, c, y, x] = np.argmax(own[:, y, x])
                values[n, c, y, x] = own[indices[n, c, y, x], y, x]
        else:
            indices[n, c] = np.argmax(scores(own, mode))
            chosen = own[indices[n, c]]
            values[n, c] = chosen.max() if mode == "global" else chosen
    return values, indices


@pytest.mark.parametrize("mode", POOL_MODES)
def test_equals_loops(mode: PoolMode) -> None:
    stack = torch.randn(2, 3, 5, 4, 6, dtype=torch.float64)
    values, indices = scale_pool(stack, mode, return_indices=True, areas=AREAS)
    expected_values, expected_indices = pool_by_loops(stack.numpy(), mode)
    np.testing.assert_array_equal(values.numpy(), expected_values)
    np.testing.assert_array_equal(indices.numpy(), expected_indices)
    assert indices.dtype == torch.int64
    for found in ScalePool(mode, return_indices=True)(stack, AREAS):
        assert torch.equal(found, values if found.is_floating_point() else indices)


@pytest.mark.parametrize("mode", POOL_MODES)
@pytest.mark.parametrize("method", ["direct", "spectral"])
@pytest.mark.parametrize("stride", [1, 2])
def test_pooling_a_stack_is_what_the_layer_does(mode: Any, method: Any, stride: int) -> None:
    layer = SConv2d(2, 6, 3, stride, method=method)
    x = torch.randn(4, 2, 15, 17)
    pooled = ScalePool(mode)(layer(x), layer.geometry((15, 17)).areas())
    torch.testing.assert_close(pooled, layer(x, pool=mode))


def test_mean_energy_is_not_energy() -> None:
    """A frame of zeros costs the larger kernel its lead in the sum, not in the mean."""
    stack = torch.zeros(1, 1, 2, 3, 3)
    stack[0, 0, 0] = 1.0
    stack[0, 0, 1, 1, 1] = 5.0
    _, by_sum = scale_pool(stack, "energy", return_indices=True)
    _, by_mean = scale_pool(stack, "mean_energy", return_indices=True, areas=(9, 1))
    assert (by_sum.item(), by_mean.item()) == (0, 1)
    with pytest.raises(OptionError, match="mean_energy needs the areas"):
        ScalePool("mean_energy")(stack)
    with pytest.raises(ShapeError, match="one number per scale, 2, got 3"):
        scale_pool(stack, "mean_energy", areas=(9, 1, 1))


@pytest.mark.parametrize("mode", POOL_MODES)
def test_first_index_wins_a_tie(mode: PoolMode) -> None:
    _, indices = scale_pool(torch.ones(1, 2, 4, 3, 3), mode, True, areas=[9] * 4)
    assert (indices == 0).all()


def test_nan_propagates_as_in_max() -> None:
    stack = torch.zeros(1, 1, 3, 2, 2)
    stack[0, 0, 1, 0, 0] = torch.nan
    values, indices = scale_pool(stack, "pixel", return_indices=True)
    assert values[0, 0, 0, 0].isnan()
    assert indices[0, 0, 0, 0] == 1
    assert not values[0, 0, 1, 1].isnan()
    for mode in ("slice", "global"):
        _, chosen = scale_pool(stack, mode, return_indices=True)
        assert chosen.item() == 1


@pytest.mark.parametrize("mode", POOL_MODES)
def test_gradient(mode: PoolMode) -> None:
    generator = torch.Generator().manual_seed(0)
    stack = torch.randn(1, 2, 3, 3, 2, dtype=torch.float64, generator=generator)
    pool = partial(scale_pool, mode=mode, areas=(6, 4, 2))
    assert torch.autograd.gradcheck(pool, (stack.requires_grad_(),))


def test_wrong_input_is_named() -> None:
    with pytest.raises(ShapeError, match=r"\[N, C, S, H, W\].*\[2, 3, 4, 5\]"):
        scale_pool(torch.zeros(2, 3, 4, 5), "pixel")
    with pytest.raises(ShapeError, match="at least 1"):
        scale_pool(torch.zeros(2, 3, 0, 5, 5), "pixel")
    with pytest.raises(ShapeError, match="at least 1"):
        scale_pool(torch.zeros(2, 3, 4, 0, 5), "slice")
    with pytest.raises(OptionError, match="did you mean 'pixel'"):
        ScalePool("pixle")  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_global_max_pool_sends_the_gradient_to_the_first_maximum(
    order: torch.memory_format,
) -> None:
    x = torch.zeros(2, 3, 4, 5).contiguous(memory_format=order).requires_grad_()
    (gradient,) = torch.autograd.grad(GlobalMaxPool()(x).sum(), x)
    assert torch.equal(gradient[:, :, 0, 0], torch.ones(2, 3))
    assert gradient.count_nonzero() == 6
    assert gradient.stride() == x.stride()


def test_global_max_pool_needs_a_map() -> None:
    with pytest.raises(ShapeError, match="more axes"):
        GlobalMaxPool()(torch.zeros(2, 3))
