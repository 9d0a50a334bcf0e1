"""Cost of the spectral method, and which order of its sums is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from equiscale.layers.scaled.spectral.plan import Plan

# Narrower matrices are not multiplied faster.
_NARROWEST = 16


@dataclass(frozen=True)
class Work:
    """Work of a step.

    Attributes:
        multiply_adds: Number of multiply-adds.
        effective: The same in terms of time: slow operations and overhead count more. The factors
            were measured on one CPU thread over maps of 1 to 61 rows, 1 to 16 channels and batches
            of 1 and 16.
    """

    multiply_adds: int
    effective: int

    def __add__(self, other: Work) -> Work:
        """Return the work of both."""
        return Work(self.multiply_adds + other.multiply_adds, self.effective + other.effective)


@dataclass(frozen=True)
class Task:
    """Sizes of a spectral convolution.

    Attributes:
        frequencies: Numbers U of row and V of column frequencies.
        batch: Number N of samples.
        channels: Number C/G of input channels of a group.
        out_channels: Number O of output channels.
        groups: Number G of groups.
        functions: Number r of functions that span a kernel along an axis.
    """

    frequencies: tuple[int, int]
    batch: int
    channels: int
    out_channels: int
    groups: int
    functions: int

    def by_frequency(self, h: int) -> Work:
        """Work of `FrequencyMixing` for maps of 2h rows."""
        U, V = self.frequencies
        N, C, O, r = self.batch, self.channels, self.out_channels, self.functions
        spectra, products, rows = 4 * r * C * O, 8 * N * C * O, 4 * h * N * O
        effective = 9 * r * C * O + products + 40 * C * O + rows + 48 * N * O
        return Work(U * V * (spectra + products + rows), U * V * effective)

    def by_row(self, h: int) -> Work:
        """Work of `RowMixing` for maps of 2h rows."""
        U, V = self.frequencies
        inputs, products = (
            self.batch * self.channels,
            self.batch * self.channels * self.out_channels,
        )
        step = 4 * self.functions * h * V
        kernels = self.functions**2 * V * self.channels * self.out_channels
        effective = step * ((U + 8) * max(inputs, _NARROWEST) + 2 * products) + 20 * kernels
        return Work(step * (U * inputs + 2 * products), effective)

    def rows_come_first(self, h: int) -> bool:
        """Whether `RowMixing` is faster for maps of 2h rows; it takes a single group."""
        return self.groups == 1 and self.by_row(h).effective < self.by_frequency(h).effective

    def forward(self, extents: Sequence[tuple[int, int]]) -> Work:
        """Work of all kernel sizes, given height and width of their maps."""
        total = Work(0, 0)
        for height, width in extents:
            h = (height + 1) // 2
            mixing = self.by_row(h) if self.rows_come_first(h) else self.by_frequency(h)
            columns = height * width * self.frequencies[1] * self.batch * self.out_channels
            total += mixing + Work(columns, columns)
        return total


def forward_cost(plan: Plan, x: Tensor, weight: Tensor) -> int:
    """Multiply-adds of a forward pass."""
    task = Task(
        (plan.rows.num_frequencies, plan.columns.num_frequencies),
        batch=x.shape[0],
        channels=weight.shape[1],
        out_channels=weight.shape[0],
        groups=x.shape[1] // weight.shape[1],
        functions=plan.num_functions,
    )
    extents = [plan.extents(scale_index) for scale_index in range(plan.num_scales)]
    return task.forward(extents).multiply_adds


def dense_backward_cost(plan: Plan, x: Tensor, weight: Tensor, input_wanted: bool) -> int:
    """Multiply-adds of the transposed steps; the gradient of the input doubles them."""
    return forward_cost(plan, x, weight) * (2 if input_wanted else 1)


def sparse_backward_cost(x: Tensor, weight: Tensor, places: int, input_wanted: bool) -> int:
    """Multiply-adds of visiting so many pixels."""
    channels, base = weight.shape[1:3]
    height, width = x.shape[2:]
    return places * channels * base * width * (height + base) * (2 if input_wanted else 1)
