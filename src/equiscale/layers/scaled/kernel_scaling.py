"""Rescaling a k×k kernel to K×K as a fixed linear map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.core.registry import unknown_name_message

Interpolation = Literal["bicubic", "bilinear", "nearest", "area"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
Array = np.ndarray[Any, np.dtype[np.float64]]


def check_interpolation(interpolation: str) -> None:
    """Raise `OptionError` unless `interpolation` names an interpolation."""
    if interpolation not in INTERPOLATIONS:
        raise OptionError(unknown_name_message("interpolation", interpolation, INTERPOLATIONS))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def resampling_matrix(size: int, new_size: int, interpolation: Interpolation) -> Tensor:
    """Return the `[new_size, size]` matrix A, in float64, that resamples one axis.

    All four interpolations are separable, so a kernel w becomes `A w Aᵀ`. The entries are those of
    `torch.nn.functional.interpolate` with `align_corners=False`. The paper only enlarges kernels.
    Bicubic and bilinear antialias when they shrink, so that a smaller kernel keeps its mean.

    Examples:
        >>> resampling_matrix(2, 4, "bilinear")
        tensor([[1.0000, 0.0000],
                [0.7500, 0.2500],
                [0.2500, 0.7500],
                [0.0000, 1.0000]], dtype=torch.float64)
    """
    check_interpolation(interpolation)
    return torch.from_numpy(_WEIGHTS[interpolation](size, new_size))


# NumPy, so that an exported program holds the matrices as constants: other runtimes may interpolate
# by other rules.


def _nearest(size: int, new_size: int) -> Array:
    source = np.arange(new_size) * size // new_size
    return (source[:, None] == np.arange(size)).astype(np.float64)


def _area(size: int, new_size: int) -> Array:
    first = np.arange(new_size) * size // new_size
    last = -(-(np.arange(new_size) + 1) * size // new_size)
    pixels = np.arange(size)
    inside = (pixels >= first[:, None]) & (pixels < last[:, None])
    return inside / inside.sum(axis=1, keepdims=True)


def _smooth(size: int, new_size: int, radius: int, curve: Callable[[Array], Array]) -> Array:
    """Weight pixels by a function of their distance; the last pixel repeats beyond the border."""
    position = (np.arange(new_size) + 0.5) * size / new_size - 0.5
    result = np.zeros((new_size, size))
    for offset in range(1 - radius, radius + 1):
        pixel = np.floor(position).astype(int) + offset
        weight = curve(np.abs(position - pixel))
        np.add.at(result, (np.arange(new_size), pixel.clip(0, size - 1)), weight)
    return result


def _antialiased(size: int, new_size: int, radius: int, curve: Callable[[Array], Array]) -> Array:
    """Weight pixels by a function as wide as the step between samples, normalised."""
    step = size / new_size
    position = (np.arange(new_size) + 0.5) * step
    distance = np.abs(np.arange(size) + 0.5 - position[:, None])
    weight = np.where(distance < radius * step, curve(distance / step), 0.0)
    return weight / weight.sum(axis=1, keepdims=True)


def _triangle(distance: Array) -> Array:
    return np.maximum(1 - distance, 0)


def _cubic(distance: Array, a: float) -> Array:
    """Cubic convolution (Keys 1981) with free parameter a."""
    d = distance
    inner = ((a + 2) * d - (a + 3)) * d**2 + 1
    outer = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, inner, np.where(d < 2, outer, 0.0))


def _bilinear(size: int, new_size: int) -> Array:
    resize = _antialiased if new_size < size else _smooth
    return resize(size, new_size, 1, _triangle)


def _bicubic(size: int, new_size: int) -> Array:
    if new_size < size:  # torch uses another parameter to antialias
        return _antialiased(size, new_size, 2, lambda distance: _cubic(distance, -0.5))
    return _smooth(size, new_size, 2, lambda distance: _cubic(distance, -0.75))


_WEIGHTS: dict[Interpolation, Callable[[int, int], Array]] = {
    "bicubic": _bicubic,
    "bilinear": _bilinear,
    "nearest": _nearest,
    "area": _area,
}


def scaling_matrix(size: int, new_size: int, interpolation: Interpolation) -> Tensor:
    """Return the `[new_size, size]` matrix that resamples one axis and keeps its mass.

    It is the resampling matrix times `size / new_size`; applied to both axes this gives the
    paper's factor `k² / K²`, which keeps responses at different kernel sizes comparable.
    """
    return resampling_matrix(size, new_size, interpolation) * (size / new_size)


def rescale_kernel(weight: Tensor, new_size: int, interpolation: Interpolation) -> Tensor:
    """`[O, C, k, k] -> [O, C, K, K]`: the kernel at another size, with comparable responses."""
    A = scaling_matrix(weight.shape[-1], new_size, interpolation).to(weight)
    return A @ weight @ A.T
