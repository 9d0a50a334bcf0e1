"""Which way to compute a scaled convolution, and which is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.core.registry import unknown_name_message
from equiscale.layers.scaled.geometry import Geometry
from equiscale.layers.scaled.spectral.cost import Task

Method = Literal["auto", "direct", "spectral"]
METHODS: tuple[Method, ...] = get_args(Method)
Shape = Sequence[int]


def check_method(method: str) -> None:
    """Raise `OptionError` unless `method` names a way to compute."""
    if method not in METHODS:
        raise OptionError(unknown_name_message("method", method, METHODS))


@dataclass(frozen=True)
class Work:
    """What a method has to do for given shapes.

    Attributes:
        num_scales: Number of kernel sizes.
        multiply_adds: Multiply-adds, in millions, those of inefficient operations counted more.
        elements: Pixels of all maps that are written and pooled, in millions.
    """

    num_scales: int
    multiply_adds: float
    elements: float


@dataclass(frozen=True)
class _Cost:
    """Milliseconds of a forward and backward pass, as `perf/calibrate_auto.py` fits them."""

    constant: float
    per_scale: float
    per_multiply_add: float
    per_element: float

    def estimate(self, work: Work) -> float:
        return (
            self.constant
            + self.per_scale * work.num_scales
            + self.per_multiply_add * work.multiply_adds
            + self.per_element * work.elements
        )


_DIRECT = _Cost(constant=0.209, per_scale=0.863, per_multiply_add=0.098, per_element=11.3)
_SPECTRAL = _Cost(constant=2.35, per_scale=0.794, per_multiply_add=0.194, per_element=6.93)

# Convolutions with larger kernels than this run at a rate that falls with their size.
_EFFICIENT_KERNEL_SIZE = 7


def choose_method(x: Tensor, weight: Tensor, geometry: Geometry) -> Literal["direct", "spectral"]:
    """Return the method that is estimated to be faster for these shapes.

    The estimate is linear in what each method has to do. Its constants were measured on one CPU
    thread; between the two methods, only their quotients matter. Exported programs always use the
    direct method, whose operations every runtime knows.
    """
    if torch.compiler.is_exporting():
        return "direct"
    if torch.compiler.is_compiling():  # the compiler itself remembers
        return _faster_method(x.shape, weight.shape, geometry)
    return _remembered_method(x.shape, weight.shape, geometry)


def _faster_method(
    input_shape: Shape, weight_shape: Shape, geometry: Geometry
) -> Literal["direct", "spectral"]:
    direct = _DIRECT.estimate(direct_work(input_shape, weight_shape, geometry))
    spectral = _SPECTRAL.estimate(spectral_work(input_shape, weight_shape, geometry))
    return "spectral" if spectral < direct else "direct"


# A tiny convolution takes hardly longer than to choose how.
_remembered_method = lru_cache(maxsize=1024)(_faster_method)


def direct_work(input_shape: Shape, weight_shape: Shape, geometry: Geometry) -> Work:
    """One convolution per kernel size, and a stack of framed maps.

    Channels are counted as if there were no groups: with them a convolution is hardly faster.
    """
    down, across = geometry.stride
    products = 0.0
    for size in geometry.kernel_sizes:
        height, width = _extents(geometry, size)
        inefficiency = max(1.0, size / _EFFICIENT_KERNEL_SIZE)
        products += inefficiency * size**2 * -(-height // down) * -(-width // across)
    maps, num_scales = input_shape[0] * weight_shape[0], len(geometry.kernel_sizes)
    height, width = geometry.output_size
    return Work(
        num_scales,
        maps * input_shape[1] * products / 1e6,
        maps * num_scales * height * width / 1e6,
    )


def spectral_work(input_shape: Shape, weight_shape: Shape, geometry: Geometry) -> Work:
    """Kernel spectra, products and inverse transforms, and the maps without their frames."""
    height, width = geometry.input_size
    added = _period(geometry)
    frequencies = (height + added + 1) // 2, (width + added + 1) // 2
    extents = [_extents(geometry, size) for size in geometry.kernel_sizes]
    task = Task(
        frequencies,
        batch=input_shape[0],
        channels=weight_shape[1],
        out_channels=weight_shape[0],
        groups=input_shape[1] // weight_shape[1],
        functions=weight_shape[2],
    )
    pixels = sum(height * width for height, width in extents)
    maps = input_shape[0] * weight_shape[0]
    return Work(len(extents), task.forward(extents).effective / 1e6, maps * pixels / 1e6)


def _period(geometry: Geometry) -> int:
    """How much longer than the input the transforms are."""
    largest = geometry.kernel_sizes[-1]
    if geometry.padding == "valid":
        return 0
    return largest // 2 if geometry.padding_mode == "zeros" else largest - 1


def _extents(geometry: Geometry, kernel_size: int) -> tuple[int, int]:
    """Height and width of a map at stride 1, without its frame of zeros."""
    height, width = geometry.full_size
    frame = 2 * geometry.margin(kernel_size)
    return height - frame, width - frame
