"""Rescaling a k×k kernel to K×K as a fixed linear map."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.core.registry import unknown_name_message

Interpolation = Literal["bicubic", "bilinear", "nearest", "area"]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)


def check_interpolation(interpolation: str) -> None:
    """Raise `OptionError` unless `interpolation` names a way to resample."""
    if interpolation not in INTERPOLATIONS:
        raise OptionError(unknown_name_message("interpolation", interpolation, INTERPOLATIONS))


def resampling_matrix(size: int, new_size: int, interpolation: Interpolation) -> Tensor:
    """Return the `[new_size, size]` matrix A, in float64, that resamples one axis.

    All four interpolations act on rows and columns separately, so that a kernel w becomes
    `A w Aᵀ`. The entries are those of `torch.nn.functional.interpolate` with
    `align_corners=False`; enlarging is the paper's case. Smooth interpolations antialias when
    they shrink, so that a smaller kernel keeps the mean of the original.

    Example:
        >>> resampling_matrix(2, 4, "bilinear")
        tensor([[1.0000, 0.0000],
                [0.7500, 0.2500],
                [0.2500, 0.7500],
                [0.0000, 1.0000]], dtype=torch.float64)
    """
    check_interpolation(interpolation)
    unit_vectors = torch.eye(size, dtype=torch.float64)[:, None, None, :]
    smooth = interpolation in ("bicubic", "bilinear")
    resampled = F.interpolate(
        unit_vectors,
        size=(1, new_size),
        mode=interpolation,
        align_corners=False if smooth else None,
        antialias=smooth and new_size < size,
    )
    return resampled[:, 0, 0, :].T.contiguous()


def scaling_matrix(size: int, new_size: int, interpolation: Interpolation) -> Tensor:
    """Return the `[new_size, size]` matrix that resamples one axis and keeps its mass.

    It is the resampling matrix times `size / new_size`; applied to both axes this gives the
    paper's factor `k² / K²`, which keeps responses at different kernel sizes comparable.
    """
    return resampling_matrix(size, new_size, interpolation) * (size / new_size)


def rescale_kernel(weight: Tensor, new_size: int, interpolation: Interpolation) -> Tensor:
    """`[O, C, k, k] -> [O, C, K, K]`: the kernel at another size, comparable in response."""
    A = scaling_matrix(weight.shape[-1], new_size, interpolation).to(weight)
    return A @ weight @ A.T
