"""How many multiply-adds the spectral method takes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from equiscale.layers.scaled.spectral.plan import Plan

Pair = tuple[int, int]

_SPARSE_PRICE = 4  # small products run at a lower rate, and need memory for every pixel


def spectral_multiply_adds(
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    frequencies: Sequence[Pair],
    extents: Sequence[Pair],
    stride: Pair,
) -> int:
    """Return the multiply-adds of a forward pass.

    Args:
        input_shape: `[N, C, H, W]`.
        weight_shape: `[O, C/G, k, k]`.
        frequencies: Numbers U of row and V of column frequencies for each kernel size.
        extents: Height and width of the map of each kernel size.
        stride: If it is even, only even or only odd pixels are computed.
    """
    (N, _, H, W), (O, C, k, _) = input_shape, weight_shape
    total = sum(2 * V * N * input_shape[1] * H * (W + 2 * U) for U, V in set(frequencies))
    for (U, V), size in zip(frequencies, extents, strict=True):
        h, w = ((n // 2 + 1) // (2 - s % 2) for n, s in zip(size, stride, strict=True))
        total += U * V * C * O * (2 * k + 6 * N) + h * V * (U + w) * N * O
    return total


def forward_cost(plan: Plan, x: Tensor, weight: Tensor) -> int:
    """Multiply-adds of a forward pass."""
    frequencies = [
        (period.rows.num_frequencies, period.columns.num_frequencies)
        for period in plan.periods
        for _ in range(period.begin, period.end)
    ]
    extents = [plan.extents(scale_index) for scale_index in range(plan.num_scales)]
    return spectral_multiply_adds(x.shape, weight.shape, frequencies, extents, plan.stride)


def dense_backward_cost(plan: Plan, x: Tensor, weight: Tensor, input_wanted: bool) -> int:
    """Multiply-adds of the transposed steps; those of the input's gradient come on top."""
    return forward_cost(plan, x, weight) * (2 if input_wanted else 1)


def sparse_backward_cost(x: Tensor, weight: Tensor, places: int, input_wanted: bool) -> int:
    """Multiply-adds of visiting so many pixels, in terms of those of a dense pass."""
    channels, base = weight.shape[1:3]
    height, width = x.shape[2:]
    each = channels * base * width * (height + base) * (2 if input_wanted else 1)
    return _SPARSE_PRICE * places * each
