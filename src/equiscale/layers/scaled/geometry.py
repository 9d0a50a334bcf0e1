"""Which kernels a scaled convolution applies to an input, and where each map lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.registry import unknown_name_message

Padding = Literal["valid", "same"]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
PADDINGS: tuple[Padding, ...] = get_args(Padding)
PADDING_MODES: tuple[PaddingMode, ...] = get_args(PaddingMode)


@dataclass(frozen=True)
class Geometry:
    """Sizes of one scaled convolution; everything but the numbers that are convolved.

    Attributes:
        input_size: Height and width of the input, before any padding.
        base_size: Side k of the learned kernel.
        kernel_sizes: Side of each rescaled kernel, increasing, all odd or all even.
        stride: Step between the pixels that are kept, down and across.
        padding: `"valid"` or `"same"`.
        padding_mode: What lies beyond the border with `"same"`.
    """

    input_size: tuple[int, int]
    base_size: int
    kernel_sizes: tuple[int, ...]
    stride: tuple[int, int]
    padding: Padding
    padding_mode: PaddingMode

    @property
    def full_size(self) -> tuple[int, int]:
        """Height and width of the aligned maps at stride 1."""
        lost = self.kernel_sizes[0] - 1 if self.padding == "valid" else 0
        return self.input_size[0] - lost, self.input_size[1] - lost

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of the maps that are returned."""
        (height, width), (down, across) = self.full_size, self.stride
        return -(-height // down), -(-width // across)

    def margin(self, kernel_size: int) -> int:
        """Width of the frame of zeros around the map of a kernel, at stride 1."""
        return (kernel_size - self.kernel_sizes[0]) // 2 if self.padding == "valid" else 0

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
    input_size: tuple[int, int],
    base_size: int,
    kernel_sizes: Sequence[int] | None,
    stride: tuple[int, int],
    padding: Padding,
    padding_mode: PaddingMode,
) -> Geometry:
    """Choose the kernel sizes for an input and check that they fit it."""
    check_padding(padding, padding_mode)
    check_stride(stride)
    if kernel_sizes is None:
        sizes = fitting_kernel_sizes(base_size, min(input_size))
        if not sizes and padding == "same":
            sizes = (base_size,)
    else:
        check_kernel_sizes(kernel_sizes)
        sizes = tuple(kernel_sizes)
    largest = sizes[-1] if sizes else base_size
    _check_fit(input_size, largest, padding, padding_mode)
    return Geometry(input_size, base_size, sizes, stride, padding, padding_mode)


def check_padding(padding: str, padding_mode: str) -> None:
    """Raise `OptionError` unless the padding and its mode exist and go together."""
    if padding not in PADDINGS:
        raise OptionError(unknown_name_message("padding", padding, PADDINGS))
    if padding_mode not in PADDING_MODES:
        raise OptionError(unknown_name_message("padding_mode", padding_mode, PADDING_MODES))
    if padding == "valid" and padding_mode != "zeros":
        raise OptionError(
            f"padding_mode={padding_mode!r} has no effect with padding='valid'; use padding='same'"
        )


def check_stride(stride: tuple[int, int]) -> None:
    """Raise `OptionError` unless both steps are positive."""
    if min(stride) < 1:
        raise OptionError(f"stride must be at least 1, got {stride}")


def check_kernel_sizes(kernel_sizes: Sequence[int]) -> None:
    """Raise `OptionError` unless the sizes are positive, increasing and of one parity."""
    sizes = list(kernel_sizes)
    if not sizes:
        raise OptionError("kernel_sizes is empty; give at least one size, or None for all that fit")
    if sizes[0] < 1 or any(b <= a for a, b in pairwise(sizes)):
        raise OptionError(f"kernel_sizes must be positive and strictly increasing, got {sizes}")
    if len({size % 2 for size in sizes}) > 1:
        raise OptionError(
            f"kernel_sizes must be all odd or all even, so that the maps share one centre, "
            f"got {sizes}"
        )


def _check_fit(
    input_size: tuple[int, int], largest: int, padding: Padding, padding_mode: PaddingMode
) -> None:
    height, width = input_size
    extent, reach = min(input_size), largest // 2
    if padding == "valid" and largest > extent:
        raise ShapeError(
            f"a {largest}×{largest} kernel does not fit a {height}×{width} input; "
            f"enlarge the input, use kernel_sizes up to {extent}, or padding='same'"
        )
    most = {"reflect": extent - 1, "circular": extent}.get(padding_mode)
    if padding == "same" and most is not None and reach > most:
        raise ShapeError(
            f"padding_mode={padding_mode!r} can extend a {height}×{width} input by {most} pixels, "
            f"but a {largest}×{largest} kernel needs {reach}; use kernel_sizes up to "
            f"{2 * most + 1} or another padding_mode"
        )
