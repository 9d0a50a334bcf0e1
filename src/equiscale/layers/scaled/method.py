"""The methods of a scaled convolution, and which of them is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.core.registry import unknown_name_message
from equiscale.layers.scaled.geometry import Geometry
from equiscale.layers.scaled.spectral.cost import spectral_multiply_adds

Method = Literal["auto", "direct", "spectral"]
METHODS: tuple[Method, ...] = get_args(Method)
Shape = Sequence[int]


def check_method(method: str) -> None:
    """Raise `OptionError` unless `method` names a method."""
    if method not in METHODS:
        raise OptionError(unknown_name_message("method", method, METHODS))


@dataclass(frozen=True)
class Work:
    """Work of a method for given shapes.

    Attributes:
        num_scales: Number of kernel sizes.
        multiply_adds: Multiply-adds, in millions; slow operations count more.
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


_DIRECT = _Cost(constant=0.117, per_scale=0.510, per_multiply_add=0.048, per_element=12.6)
_SPECTRAL = _Cost(constant=0.841, per_scale=0.011, per_multiply_add=0.178, per_element=4.54)

# Convolutions with larger kernels than this run at a rate that falls with their size.
_EFFICIENT_KERNEL_SIZE = 7


def choose_method(
    x: Tensor, weight: Tensor, geometry: Geometry, bias: Tensor | None = None
) -> Literal["direct", "spectral"]:
    """Return the method that is estimated to be faster for these shapes.

    The estimate is linear in the work of each method. Its constants were measured on one CPU
    thread; only their ratio between the two methods matters. Exported programs use the direct
    method, because every runtime knows its operations; so do `torch.func` transforms, which the
    spectral method does not support.
    """
    if torch.compiler.is_exporting() or is_transformed(
        x, weight, *([] if bias is None else [bias])
    ):
        return "direct"
    if torch.compiler.is_compiling():  # the compiler caches the result itself
        return _faster_method(x.shape, weight.shape, geometry)
    return _cached_method(x.shape, weight.shape, geometry)


def is_transformed(*tensors: Tensor) -> bool:
    """Whether a `torch.func` transform or forward-mode differentiation is active."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active():
        return True
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def _faster_method(
    input_shape: Shape, weight_shape: Shape, geometry: Geometry
) -> Literal["direct", "spectral"]:
    direct = _DIRECT.estimate(direct_work(input_shape, weight_shape, geometry))
    spectral = _SPECTRAL.estimate(spectral_work(input_shape, weight_shape, geometry))
    return "spectral" if spectral < direct else "direct"


# Choosing takes as long as a tiny convolution.
_cached_method = lru_cache(maxsize=1024)(_faster_method)


def direct_work(input_shape: Shape, weight_shape: Shape, geometry: Geometry) -> Work:
    """One convolution per kernel size, and a stack of framed maps.

    Channels are counted as if there were no groups: with them a convolution is hardly faster.
    """
    down, across = geometry.stride
    products = 0.0
    for size in geometry.kernel_sizes:
        height, width = geometry.extents(size)
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
    frame, sizes = geometry.frame, geometry.kernel_sizes
    frequencies = [(frame.period(0, size) // 2, frame.period(1, size) // 2) for size in sizes]
    extents = [geometry.extents(size) for size in sizes]
    products = spectral_multiply_adds(
        input_shape, weight_shape, frequencies, extents, geometry.stride
    )
    pixels = sum(geometry.areas())
    return Work(len(extents), products / 1e6, input_shape[0] * weight_shape[0] * pixels / 1e6)
