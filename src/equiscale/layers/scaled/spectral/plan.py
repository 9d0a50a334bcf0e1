"""Constants of the spectral scaled convolution: they depend on sizes only, never on data.

All coordinates are centred. Kernel coordinates τ count from the kernel's middle, output
coordinates δ from the pixel at half the map's extent, and input coordinates t from what lies under
the middle of the kernel there. A correlation then pairs `t = δ + τ` at every kernel size, so that
all maps share one centre, and the map of a larger kernel is the inner block of that of a smaller.

Output coordinates are whole numbers and periods even, so that frequencies ω and π − ω have the same
cosines and opposite sines at even outputs, and the reverse at odd outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from equiscale.layers.scaled.geometry import Frame
from equiscale.layers.scaled.kernel_scaling import Interpolation, scaling_matrix

_CACHED_PLANS = 64
_NEGLIGIBLE = 1e-12
_WORTHWHILE = 1 / 8


@dataclass(frozen=True)
class AxisPlan:
    """One image axis, rows or columns.

    Attributes:
        analysis: `[2U, n]` cosines, then sines, that transform the input.
        waves: `[2, h + 1, U]` even (cosines) and odd part (sines) of the inverse transform, at
            distances |δ|.
        extents: Length of each map, one per kernel size.
        kernels: `[S, U, r]` transforms of the functions that span a kernel: cosines of the even
            functions, then sines of the odd ones. An interpolation that treats left and right
            differently has k of each.
        starts: First input pixel under the kernel at output 0, one per kernel size.
        num_frequencies: Number U of frequencies that a real sequence needs: half the period.
    """

    analysis: Tensor
    waves: Tensor
    extents: tuple[int, ...]
    kernels: Tensor
    starts: tuple[int, ...]
    num_frequencies: int

    def half(self, scale_index: int) -> int:
        """Number of distances |δ| in a map; the last one of an even extent is at δ < 0 only."""
        return self.extents[scale_index] // 2 + 1

    @property
    def aligned_starts(self) -> Tensor:
        """`[S]`: first input pixel under the kernel at pixel 0 of the aligned map."""
        extents = torch.tensor(self.extents)
        return torch.tensor(self.starts) - (extents[0] - extents) // 2

    @property
    def reach(self) -> Tensor:
        """`[extent]`: how many maps have each pixel of the largest map."""
        return _inner(self).sum(0)


@dataclass(frozen=True)
class Period:
    """Kernel sizes that the compiled library transforms with one period.

    Attributes:
        begin: Index of the first size.
        end: Index after the last size.
        rows: The vertical axis, for these sizes.
        columns: The horizontal axis, for these sizes.
    """

    begin: int
    end: int
    rows: AxisPlan
    columns: AxisPlan

    @cached_property
    def arrays(self) -> dict[str, Tensor]:
        """What the compiled library reads, as contiguous arrays under its names."""
        return {
            "row_analysis": self.rows.analysis.contiguous(),
            "column_analysis": self.columns.analysis.T.contiguous(),
            "row_waves": self.rows.waves.contiguous(),
            "column_waves": self.columns.waves.contiguous(),
            "row_kernels": self.rows.kernels.contiguous(),
            "column_kernels": self.columns.kernels.contiguous(),
        }


@dataclass(frozen=True)
class Plan:
    """Both axes and what they share.

    Attributes:
        rows: The vertical axis, for all kernel sizes.
        columns: The horizontal axis, for all kernel sizes.
        periods: The same for runs of kernel sizes, with shorter periods for smaller kernels.
        basis: `[(q, r), (k, k)]` matrix from a kernel's pixels to functions along both axes, with
            the sign of the product of their transforms.
        num_functions: Number r of functions along an axis.
        num_even: How many of them have a cosine transform: the first few. The others have a sine
            transform.
        resampling: `[S, k, K + 1]` the kernels' scaling matrices, padded by zeros.
        reached: `[S, H, W]` which pixels of the aligned maps lie inside the map of each kernel.
        stride: Step between the pixels that are kept, down and across.
        kernel_sizes: Sides of the rescaled kernels.
    """

    rows: AxisPlan
    columns: AxisPlan
    periods: tuple[Period, ...]
    basis: Tensor
    num_functions: int
    num_even: int
    resampling: Tensor
    reached: Tensor
    stride: tuple[int, int]
    kernel_sizes: tuple[int, ...]

    @property
    def num_scales(self) -> int:
        """Number S of kernel sizes."""
        return len(self.rows.extents)

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the input."""
        return self.rows.analysis.shape[1], self.columns.analysis.shape[1]

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of the aligned maps: those of the smallest kernel's."""
        return self.extents(0)

    def keep(self, maps: Tensor) -> Tensor:
        """`[…, H, W] -> […, H', W']`: every stride-th pixel of aligned maps."""
        if self.stride == (1, 1):  # not a view
            return maps
        down, across = self.stride
        return maps[..., ::down, ::across]

    def keep_adjoint(self, grad: Tensor) -> Tensor:
        """Transpose of `keep`."""
        if self.stride == (1, 1):
            return grad
        spread = grad.new_zeros(*grad.shape[:-2], *self.output_size)
        self.keep(spread).copy_(grad)
        return spread

    def extents(self, scale_index: int) -> tuple[int, int]:
        """Height and width of the map of a kernel."""
        return self.rows.extents[scale_index], self.columns.extents[scale_index]

    def halves(self, scale_index: int) -> tuple[int, int]:
        """Numbers of distances |δ| in the map of a kernel, down and across."""
        return self.rows.half(scale_index), self.columns.half(scale_index)

    @cached_property
    def extent_arrays(self) -> dict[str, Tensor]:
        """Where maps lie, as the compiled library reads it."""
        return {
            "row_extents": torch.tensor(self.rows.extents),
            "column_extents": torch.tensor(self.columns.extents),
            "row_reach": self.rows.reach,
            "column_reach": self.columns.reach,
        }

    @cached_property
    def windows(self) -> dict[str, Tensor]:
        """Where kernels lie on the input, as the compiled library reads it."""
        return {
            "row_starts": self.rows.aligned_starts,
            "column_starts": self.columns.aligned_starts,
            "kernel_sizes": torch.tensor(self.kernel_sizes),
            "resampling": self.resampling,
        }


@lru_cache(maxsize=_CACHED_PLANS)
def make_plan(
    frame: Frame,
    base_size: int,
    kernel_sizes: tuple[int, ...],
    interpolation: Interpolation,
    dtype: torch.dtype,
    device: torch.device,
) -> Plan:
    """Return the constants of a scaled convolution, computed in float64 and then rounded.

    Args:
        frame: Sizes of the input and of the maps.
        base_size: Side k of the learned kernel.
        kernel_sizes: Sides of the rescaled kernels.
        interpolation: How kernels are rescaled.
        dtype: Of the constants.
        device: Of the constants.
    """
    matrices = [scaling_matrix(base_size, size, interpolation) for size in kernel_sizes]
    combinations, num_even = _symmetric_combinations(matrices)
    functions = [matrix @ combinations for matrix in matrices]

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(device=device, dtype=dtype)

    def plan_period(begin: int, end: int) -> Period:
        rows, columns = (
            _axis_plan(frame, axis, functions[begin:end], num_even, cast) for axis in (0, 1)
        )
        return Period(begin, end, rows, columns)

    runs = _runs_of_periods(frame, kernel_sizes)
    whole = plan_period(0, len(kernel_sizes))
    rows, columns = whole.rows, whole.columns
    return Plan(
        rows,
        columns,
        tuple(plan_period(*run) for run in runs) if len(runs) > 1 else (whole,),
        basis=cast(_basis_of_kernels(combinations, num_even)),
        num_functions=combinations.shape[1],
        num_even=num_even,
        resampling=cast(_pad_stack(matrices)),
        reached=(_inner(rows)[:, :, None] & _inner(columns)[:, None]).to(device),
        stride=frame.stride,
        kernel_sizes=kernel_sizes,
    )


def _runs_of_periods(frame: Frame, kernel_sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Cut the kernel sizes where a shorter period saves an eighth of the work.

    Only a padded input has one: otherwise, the period is the length of the input.
    """
    work = [frame.period(0, size) * frame.period(1, size) for size in kernel_sizes]
    runs, end = [], len(work)
    for index in reversed(range(len(work))):
        if index == 0 or work[index - 1] <= (1 - _WORTHWHILE) * work[end - 1]:
            runs.append((index, end))
            end = index
    return runs[::-1]


def _axis_plan(
    frame: Frame,
    axis: int,
    functions: Sequence[Tensor],
    num_even: int,
    cast: Callable[[Tensor], Tensor],
) -> AxisPlan:
    sizes = [function.shape[0] for function in functions]
    length, period = frame.input_size[axis], frame.period(axis, sizes[-1])
    centre = frame.centre(axis, sizes[-1])
    extents = [frame.extent(axis, size) for size in sizes]
    omega = _frequencies(period)
    inputs = torch.outer(omega, torch.arange(length, dtype=torch.float64) - centre)
    outputs = torch.outer(torch.arange(extents[0] // 2 + 2, dtype=torch.float64), omega)
    # A frequency counts for its mirror image, too. Those of rows, ±u, are both computed.
    weight = (1.0 if axis == 0 else 2.0) / period
    return AxisPlan(
        analysis=cast(torch.cat([inputs.cos(), inputs.sin()])),
        waves=cast(torch.stack([outputs.cos(), outputs.sin()]) * weight),
        extents=tuple(extents),
        kernels=cast(torch.stack([_transform(f, omega, num_even) for f in functions])),
        starts=tuple(
            round(centre - (size - 1) / 2) - extent // 2
            for size, extent in zip(sizes, extents, strict=True)
        ),
        num_frequencies=len(omega),
    )


def _symmetric_combinations(matrices: Sequence[Tensor]) -> tuple[Tensor, int]:
    """Return `[k, r]` combinations of a kernel's pixels along an axis, and how many are even.

    Bicubic, bilinear and area resampling commute with a reflection, so that even and odd
    combinations of kernel pixels stay even and odd. Nearest resampling does not: there every
    pixel counts as an even and as an odd one, as it needs both transforms.
    """
    size = matrices[0].shape[1]
    identity = torch.eye(size, dtype=torch.float64)
    if any((matrix.flip(0, 1) - matrix).abs().max() > _NEGLIGIBLE for matrix in matrices):
        return torch.cat([identity, identity], 1), size
    half = size // 2
    mirrored = identity.flip(1)
    evens = (identity + mirrored)[:, :half] / math.sqrt(2)
    odds = (identity - mirrored)[:, :half] / math.sqrt(2)
    middle = identity[:, half : size - half]
    return torch.cat([evens, middle, odds], dim=1), size - half


def _basis_of_kernels(combinations: Tensor, num_even: int) -> Tensor:
    """`[k, r] -> [(q, r), (k, k)]`: q along the columns' axis, r along the rows'."""
    is_odd = torch.arange(combinations.shape[1]) >= num_even
    sign = 1.0 - 2.0 * (is_odd[:, None] & ~is_odd)
    products = torch.einsum("jq,ir,qr->qrij", combinations, combinations, sign.double())
    return products.flatten(2).flatten(0, 1)


def _transform(function: Tensor, omega: Tensor, num_even: int) -> Tensor:
    """Return `[U, r]`: cosine and sine transforms of the columns of `[K, r]`."""
    size = function.shape[0]
    phase = torch.outer(omega, torch.arange(size, dtype=torch.float64) - (size - 1) / 2)
    even, odd = function[:, :num_even], function[:, num_even:]
    return torch.cat([phase.cos() @ even, phase.sin() @ odd], 1)


def _frequencies(period: int) -> Tensor:
    """Return the frequencies ω ≥ 0 of a transform of even length, half a step off zero.

    With half steps what wraps around changes its sign, which concerns no valid output. In return
    no frequency is its own mirror image: period/2 of them are enough, not one more.
    """
    return 2 * math.pi * (torch.arange(period // 2, dtype=torch.float64) + 0.5) / period


def _inner(axis: AxisPlan) -> Tensor:
    """Return `[S, extent]`: which pixels of the largest map each map has."""
    size, extents = axis.extents[0], torch.tensor(axis.extents)[:, None]
    first, position = (size - extents) // 2, torch.arange(size)
    return (position >= first) & (position < first + extents)


def _pad_stack(matrices: Sequence[Tensor]) -> Tensor:
    """`S × [K, k] -> [S, k, K + 1]`, with at least one column of zeros at the end."""
    largest = matrices[-1].shape[0]
    stacked = torch.zeros(len(matrices), matrices[0].shape[1], largest + 1, dtype=torch.float64)
    for row, matrix in zip(stacked, matrices, strict=True):
        row[:, : matrix.shape[0]] = matrix.T
    return stacked
