"""How much arithmetic the spectral method takes, in multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from equiscale.layers.spectral.plan import Plan


def multiply_adds(
    frequencies: tuple[int, int],
    extents: Sequence[tuple[int, int]],
    batch: int,
    weight_shape: Sequence[int],
) -> int:
    """Multiply-adds of all kernel spectra, products and inverse transforms.

    Args:
        frequencies: Numbers of row and of column frequencies.
        extents: Height and width of the map of each kernel size.
        batch: Number of samples.
        weight_shape: `[O, C / groups, k, k]`.
    """
    rows, columns = frequencies
    out_channels, channels, base = weight_shape[:3]
    spectra = 4 * rows * columns * channels * base
    products = 8 * rows * columns * channels * batch
    inverse = sum(height * columns * (2 * rows + width) for height, width in extents)
    return out_channels * (len(extents) * (spectra + products) + batch * inverse)


def forward_cost(plan: Plan, x: Tensor, weight: Tensor) -> int:
    """Multiply-adds of a forward pass."""
    frequencies = plan.rows.num_frequencies, plan.columns.num_frequencies
    extents = [plan.extents(scale_index) for scale_index in range(plan.num_scales)]
    return multiply_adds(frequencies, extents, x.shape[0], weight.shape)


def dense_backward_cost(plan: Plan, x: Tensor, weight: Tensor, input_wanted: bool) -> int:
    """Multiply-adds of the transposed steps; those of the input's gradient come on top."""
    return forward_cost(plan, x, weight) * (2 if input_wanted else 1)


def sparse_backward_cost(x: Tensor, weight: Tensor, places: int, input_wanted: bool) -> int:
    """Multiply-adds of visiting so many pixels."""
    channels, base = weight.shape[1:3]
    height, width = x.shape[2:]
    return places * channels * base * width * (height + base) * (2 if input_wanted else 1)
