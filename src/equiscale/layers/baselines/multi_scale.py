"""Multi-scale convolutions of earlier work: kernels resized (Xu), inputs resized (Kanazawa)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.options import check_numbers
from equiscale.layers.baselines.frugal_conv import frugal_conv2d

XU_KERNEL_SIZES = (3, 5, 7, 9, 11)
KANAZAWA_EXPONENTS = (-2, -1, 0, 1, 2, 3, 4)
KANAZAWA_FACTOR = 1.26

_NOWHERE = -2.0  # a position that is near no pixel


def corner_aligned_matrix(size: int, new_size: int) -> Tensor:
    """Return the `[new_size, size]` matrix, in float64, of bilinear resizing with aligned corners.

    Examples:
        >>> corner_aligned_matrix(2, 3)
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000],
                [0.0000, 1.0000]], dtype=torch.float64)
    """
    step = _step(size, new_size)
    return _linear_weights([row * step for row in range(new_size)], 0, size)


def _linear_weights(positions: Sequence[float], first: int, stop: int) -> Tensor:
    """Return `[len(positions), stop - first]`: bilinear weights of pixels first…stop − 1."""
    pixels = torch.arange(first, stop, dtype=torch.float64)
    distances = (torch.tensor(positions, dtype=torch.float64)[:, None] - pixels).abs()
    return (1 - distances).clamp_min(0)


def _step(size: int, new_size: int) -> float:
    return (size - 1) / (new_size - 1) if new_size > 1 else 0.0


def first_maximum(maps: Iterable[Tensor]) -> Tensor:
    """`[*], [*], … -> [*]`: element-wise maximum; the first wins a tie and NaN propagates."""
    iterator = iter(maps)
    largest = next(iterator)
    for other in iterator:
        largest = torch.where((other > largest) | other.isnan(), other, largest)
    return largest


class _MaximumOverScales(nn.Module):
    """A layer of which the strongest response over several scales counts."""

    def _responses(self, x: Tensor) -> Iterable[Tensor]:
        raise NotImplementedError

    def scale_indices(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, O, H', W']`: index of the scale that holds the maximum."""
        return torch.stack(list(self._responses(x)), dim=-1).max(dim=-1).indices


# --- Xu et al. 2014 -------------------------------------------------------------------------------


def xu_kernel(weight: Tensor, kernel_size: int) -> Tensor:
    """`[O, C, k, k] -> [O, C, K, K]`: the reference kernel at another size.

    Bilinear with aligned corners for smaller, nearest for larger kernels; every k×k filter keeps
    its L1 norm. A filter whose resized version is all zero stays zero.
    """
    size = weight.shape[-1]
    if kernel_size == size:
        return weight
    make = corner_aligned_matrix if kernel_size < size else _nearest_matrix
    matrix = make(size, kernel_size).to(weight)
    resized = matrix @ weight @ matrix.T
    norm = weight.abs().sum(dim=(2, 3), keepdim=True)
    resized_norm = resized.abs().sum(dim=(2, 3), keepdim=True)
    return resized * (norm / resized_norm.clamp_min(torch.finfo(weight.dtype).tiny))


def _nearest_matrix(size: int, new_size: int) -> Tensor:
    """Return the `[new_size, size]` matrix, in float64, of nearest resizing as torch does it."""
    nearest = torch.arange(new_size) * size // new_size
    return (nearest[:, None] == torch.arange(size)).double()


class XuConv2d(_MaximumOverScales):
    """`[N, C, H, W]` or `[N, C, S, H, W] -> [N, O, S, H, W]`: one column per kernel size.

    The columns share one reference kernel and do not mix: column s of the output depends on column
    s of the input, or on the one image that all columns start from. 'Same' padding with zeros, no
    bias. With `pool=True` the result is the maximum over the columns, `[N, O, H, W]`.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Side k of the reference kernel.
        kernel_sizes: Side of the kernel in each column, all odd.
        pool: Return the maximum over the columns.

    Examples:
        >>> XuConv2d(1, 16, 7)(torch.zeros(2, 1, 20, 20)).shape
        torch.Size([2, 16, 5, 20, 20])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        kernel_sizes: Sequence[int] = XU_KERNEL_SIZES,
        pool: bool = False,
    ) -> None:
        super().__init__()
        check_numbers("kernel_sizes", kernel_sizes)
        if any(not isinstance(size, int) or size < 1 or size % 2 == 0 for size in kernel_sizes):
            raise OptionError(
                f"kernel_sizes must be odd and positive, so that columns keep the input's size, "
                f"got {list(kernel_sizes)}"
            )
        self.kernel_sizes = tuple(kernel_sizes)
        self.pool = pool
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight as `torch.nn.Conv2d` does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` or `[N, C, S, H, W] -> [N, O, S, H, W]`, or `[N, O, H, W]` if pooled."""
        maps = self._responses(x)
        return first_maximum(maps) if self.pool else torch.stack(list(maps), dim=2)

    def _responses(self, x: Tensor) -> Iterable[Tensor]:
        columns = column_inputs(x, len(self.kernel_sizes))
        for column, size in zip(columns, self.kernel_sizes, strict=True):
            yield frugal_conv2d(column, xu_kernel(self.weight, size), padding=size // 2)


def column_inputs(x: Tensor, num_columns: int) -> Sequence[Tensor]:
    """`[N, C, H, W]` or `[N, C, S, H, W] -> S × [N, C, H, W]`: the input of each column."""
    if x.ndim == 4:
        return (x,) * num_columns
    if x.ndim != 5 or x.shape[2] != num_columns:
        raise ShapeError(
            f"expected images [N, C, H, W] or {num_columns} columns [N, C, {num_columns}, H, W], "
            f"got {list(x.shape)}"
        )
    return x.unbind(2)


# --- Kanazawa et al. 2014 -------------------------------------------------------------------------


@dataclass(frozen=True)
class CanvasResizing:
    """Resizing one axis on a fixed canvas: bilinear with aligned corners, then crop or pad.

    The axis becomes `⌊size · factor⌋` pixels long, which are centrally cropped, or padded with
    zeros (the odd pixel at the end), to the old size.

    Attributes:
        size: Pixels along the axis, before and after.
        factor: Above 1 enlarges.
    """

    size: int
    factor: float

    def __post_init__(self) -> None:
        if self.new_size < 1:
            raise ShapeError(
                f"{self.size} pixels resized by {self.factor:.3g} leave none; enlarge the input "
                f"or use exponents nearer to 0"
            )

    @property
    def new_size(self) -> int:
        """Pixels before the crop or the padding."""
        return math.floor(self.size * self.factor)

    @property
    def _before(self) -> int:
        return (self.size - self.new_size) // 2  # rounds down when it is a crop, too

    def used(self) -> tuple[int, int]:
        """Return the first and the last old pixel that the result depends on."""
        step = _step(self.size, self.new_size)
        first, last = max(0, -self._before), min(self.new_size, self.size - self._before) - 1
        return math.floor(first * step), min(math.ceil(last * step), self.size - 1)

    def matrix(self, rows: slice = slice(None), columns: slice = slice(None)) -> Tensor:
        """Return the `[size, size]` matrix, in float64, or some rows and columns of it.

        Examples:
            >>> CanvasResizing(4, 0.5).matrix()
            tensor([[0., 0., 0., 0.],
                    [1., 0., 0., 0.],
                    [0., 0., 0., 1.],
                    [0., 0., 0., 0.]], dtype=torch.float64)
        """
        step, before = _step(self.size, self.new_size), self._before
        positions = [
            (row - before) * step if 0 <= row - before < self.new_size else _NOWHERE
            for row in range(*rows.indices(self.size))
        ]
        first, stop, _ = columns.indices(self.size)
        return _linear_weights(positions, first, stop)


class KanazawaConv2d(_MaximumOverScales):
    """`[N, C, H, W] -> [N, O, H', W']`: one kernel on the input at several sizes, and the maximum.

    For every exponent e the input is resized by `factor^e` on its canvas (see
    `CanvasResizing`), convolved (valid), the response is resized back by `factor^-e` on
    its own canvas, and the maximum over e is taken. Resizing, cropping and padding are one matrix
    per axis, and responses that the last crop removes are not computed.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Side k of the kernel.
        exponents: e of each size; the paper's are −2…4, its release used −2…3.
        factor: Ratio between neighbouring sizes.

    Examples:
        >>> KanazawaConv2d(1, 16, 7)(torch.zeros(2, 1, 20, 20)).shape
        torch.Size([2, 16, 14, 14])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        exponents: Sequence[float] = KANAZAWA_EXPONENTS,
        factor: float = KANAZAWA_FACTOR,
    ) -> None:
        super().__init__()
        check_numbers("exponents", exponents)
        if factor <= 0:
            raise OptionError(f"factor must be positive, got {factor}")
        self.exponents = tuple(exponents)
        self.factor = factor
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        self.bias = nn.Parameter(torch.empty(out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias as `torch.nn.Conv2d` does."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        bound = 1 / math.sqrt(self.weight[0].numel())
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W] -> [N, O, H', W']`."""
        return first_maximum(self._responses(x))

    def _responses(self, x: Tensor) -> Iterable[Tensor]:
        for exponent in self.exponents:
            if exponent == 0:
                yield frugal_conv2d(x, self.weight, self.bias)
            else:
                yield self._response(x, self.factor**exponent)

    def _response(self, x: Tensor, factor: float) -> Tensor:
        height, width = x.shape[2:]
        down, up = self._axis_matrices(height, factor, x)
        left, right = self._axis_matrices(width, factor, x) if width != height else (down, up)
        response = frugal_conv2d(down @ (x @ left.T), self.weight, self.bias)
        return up @ (response @ right.T)

    def _axis_matrices(self, size: int, factor: float, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the matrices before and after the convolution, without unused responses."""
        kernel_size = self.weight.shape[-1]
        behind = CanvasResizing(size - kernel_size + 1, 1 / factor)
        first, last = behind.used()
        before = CanvasResizing(size, factor).matrix(rows=slice(first, last + kernel_size))
        return before.to(like), behind.matrix(columns=slice(first, last + 1)).to(like)
