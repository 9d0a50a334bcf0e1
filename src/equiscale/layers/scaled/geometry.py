"""Sizes of a scaled convolution: which kernels it applies, and where each map lies."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.registry import unknown_name_message

Padding = Literal["valid", "same"]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
PADDINGS: tuple[Padding, ...] = get_args(Padding)
PADDING_MODES: tuple[PaddingMode, ...] = get_args(PaddingMode)
Pair = tuple[int, int]
Sides = tuple[int, int, int, int]
"""Pixels added on the left, right, top and bottom, as `torch.nn.functional.pad` takes them."""


@dataclass(frozen=True)
class Frame:
    """Sizes that the spectral method works with, after any explicit padding of the input.

    Attributes:
        input_size: Height and width of the input.
        output_size: Height and width of every map, cut around its centre; None keeps the whole
            valid map, which shrinks as the kernel grows.
        zero_extended: The input continues as zeros beyond its border.
        stride: Step between the pixels that are kept, down and across.
    """

    input_size: Pair
    output_size: Pair | None
    zero_extended: bool
    stride: Pair = (1, 1)

    def extent(self, axis: int, kernel_size: int) -> int:
        """Length of the map of a kernel."""
        if self.output_size is None:
            return self.input_size[axis] - kernel_size + 1
        return self.output_size[axis]

    def period(self, axis: int, largest: int) -> int:
        """Length of a transform without wrap-around, for the largest kernel: a multiple of 4."""
        needed = self.input_size[axis] + (largest // 2 if self.zero_extended else 0)
        return needed + -needed % 4

    def centre(self, axis: int, largest: int) -> float:
        """Where the centre of a kernel lies on the input for the central pixel of its map."""
        # With zeros beyond the border, an even kernel reaches one pixel further to the right.
        middle = (self.input_size[axis] - (largest % 2 if self.zero_extended else 1)) / 2
        return middle if self.extent(axis, largest) % 2 else middle + 0.5


@dataclass(frozen=True)
class Geometry:
    """Sizes of one scaled convolution.

    Attributes:
        input_size: Height and width of the input, before any padding.
        base_size: Side k of the learned kernel.
        kernel_sizes: Side of each rescaled kernel, increasing, all odd or all even.
        stride: Step between the pixels that are kept, down and across.
        padding: `(0, 0)`: kernels lie inside the input, and the maps of larger kernels are framed
            with zeros. `"same"` or other pixels (down, across): the padding grows with the kernel.
        padding_mode: What lies beyond the border.
    """

    input_size: Pair
    base_size: int
    kernel_sizes: tuple[int, ...]
    stride: Pair
    padding: Pair | Literal["same"]
    padding_mode: PaddingMode

    @property
    def is_valid(self) -> bool:
        """Whether all kernels lie inside the input."""
        return self.padding == (0, 0)

    @property
    def full_size(self) -> Pair:
        """Height and width of the aligned maps at stride 1."""
        (height, width), smallest = self.input_size, self.kernel_sizes[0]
        left, right, top, bottom = self.extension(smallest)
        return height + top + bottom - smallest + 1, width + left + right - smallest + 1

    @property
    def output_size(self) -> Pair:
        """Height and width of the maps that are returned."""
        (height, width), (down, across) = self.full_size, self.stride
        return -(-height // down), -(-width // across)

    @property
    def frame(self) -> Frame:
        """Sizes of the same convolution for the spectral method."""
        if self.is_valid:
            return Frame(self.input_size, None, False, self.stride)
        if self.padding == "same" and self.padding_mode == "zeros":
            return Frame(self.input_size, self.full_size, True, self.stride)
        (height, width) = self.input_size
        left, right, top, bottom = self.extension(self.kernel_sizes[-1])
        extended = height + top + bottom, width + left + right
        return Frame(extended, self.full_size, False, self.stride)

    def extension(self, kernel_size: int) -> Sides:
        """Return how far the input is extended for a kernel; negative numbers crop it."""
        if self.is_valid:
            return 0, 0, 0, 0
        before, after = (kernel_size - 1) // 2, kernel_size // 2
        if self.padding == "same":
            return before, after, before, after
        down, across = self.padding
        before, after = before - (self.base_size - 1) // 2, after - self.base_size // 2
        return before + across, after + across, before + down, after + down

    def margin(self, kernel_size: int) -> int:
        """Width of the frame of zeros around the map of a kernel, at stride 1."""
        return (kernel_size - self.kernel_sizes[0]) // 2 if self.is_valid else 0

    def extents(self, kernel_size: int) -> Pair:
        """Height and width of the map of a kernel at stride 1, without its frame of zeros."""
        (height, width), frame = self.full_size, 2 * self.margin(kernel_size)
        return height - frame, width - frame

    def areas(self) -> tuple[int, ...]:
        """Return the number of pixels of each returned map that lie inside its frame."""
        (height, width), (down, across) = self.full_size, self.stride
        areas = []
        for kernel_size in self.kernel_sizes:
            margin = self.margin(kernel_size)
            rows = (height - 1 - margin) // down - (margin + down - 1) // down + 1
            columns = (width - 1 - margin) // across - (margin + across - 1) // across + 1
            areas.append(max(0, rows) * max(0, columns))
        return tuple(areas)


def fitting_kernel_sizes(base_size: int, extent: int) -> tuple[int, ...]:
    """Return k, k + 2, … up to the extent of the input: the paper's kernel sizes.

    Examples:
        >>> fitting_kernel_sizes(7, 12)
        (7, 9, 11)
    """
    return tuple(range(base_size, extent + 1, 2))


def resolve_geometry(
    input_size: Pair,
    base_size: int,
    kernel_sizes: Sequence[int] | None,
    stride: int | Pair,
    padding: Padding | int | Pair,
    padding_mode: PaddingMode,
) -> Geometry:
    """Choose the kernel sizes for an input and check that they fit it."""
    stride, padding = check_stride(stride), check_padding(padding, padding_mode)
    if padding == "valid":
        padding = (0, 0)
    if base_size % 2 and padding != (0, 0) and padding == (base_size // 2, base_size // 2):
        padding = "same"
    sizes = check_kernel_sizes(kernel_sizes)
    if sizes is None:
        sizes = fitting_kernel_sizes(base_size, min(input_size)) or (base_size,)
    geometry = Geometry(input_size, base_size, sizes, stride, padding, padding_mode)
    _check_fit(geometry)
    return geometry


def check_pair(name: str, value: object, least: int) -> Pair:
    """Return two integers from one or two, or raise `OptionError` if one is below `least`."""
    numbers = (value, value) if isinstance(value, int) else value
    if (
        not isinstance(numbers, Sequence)
        or len(numbers) != 2
        or not all(isinstance(number, int) for number in numbers)
    ):
        raise OptionError(f"{name} must be an integer or a pair of integers, got {value!r}")
    if min(numbers) < least:
        raise OptionError(f"{name} must be at least {least}, got {value!r}")
    return numbers[0], numbers[1]


def check_stride(stride: object) -> Pair:
    """Return the steps down and across, or raise `OptionError`."""
    return check_pair("stride", stride, least=1)


def check_padding(padding: object, padding_mode: str) -> Padding | Pair:
    """Return `"valid"`, `"same"` or pixels down and across, or raise `OptionError`."""
    if padding_mode not in PADDING_MODES:
        raise OptionError(unknown_name_message("padding_mode", padding_mode, PADDING_MODES))
    if not isinstance(padding, str):
        return check_pair("padding", padding, least=0)
    for name in PADDINGS:
        if padding == name:
            return name
    raise OptionError(unknown_name_message("padding", padding, PADDINGS))


def check_kernel_sizes(kernel_sizes: Iterable[int] | None) -> tuple[int, ...] | None:
    """Return the sizes, or raise `OptionError` unless they increase and are of one parity."""
    if kernel_sizes is None:
        return None
    try:
        sizes = tuple(map(operator.index, kernel_sizes))
    except TypeError:
        raise OptionError(
            f"kernel_sizes must be None or a sequence of integers, got {kernel_sizes!r}"
        ) from None
    if not sizes:
        raise OptionError("kernel_sizes is empty; give at least one size, or None for all that fit")
    if sizes[0] < 1 or any(b <= a for a, b in pairwise(sizes)):
        raise OptionError(
            f"kernel_sizes must be positive and strictly increasing, got {list(sizes)}"
        )
    if len({size % 2 for size in sizes}) > 1:
        raise OptionError(
            "kernel_sizes must be all odd or all even, so that the maps share one centre, "
            f"got {list(sizes)}"
        )
    return sizes


def _check_fit(geometry: Geometry) -> None:
    (height, width), extent = geometry.input_size, min(geometry.input_size)
    largest = geometry.kernel_sizes[-1]
    kernel, image = f"{largest}×{largest} kernel", f"{height}×{width} input"
    if min(geometry.extents(largest)) < 1:
        raise ShapeError(
            f"a {kernel} does not fit a {image}; enlarge the input, use kernel_sizes up to "
            f"{extent}, or padding='same'"
        )
    reach = max(geometry.extension(largest))
    most = {"reflect": extent - 1, "circular": extent}.get(geometry.padding_mode, reach)
    if reach > most:
        raise ShapeError(
            f"padding_mode={geometry.padding_mode!r} can extend a {image} by {most} pixels, but a "
            f"{kernel} needs {reach}; use kernel_sizes up to {largest - 2 * (reach - most)} or "
            "another padding_mode"
        )
