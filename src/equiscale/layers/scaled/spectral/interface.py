"""The spectral method with the signature of the direct one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equiscale.layers.scaled.direct import extend
from equiscale.layers.scaled.geometry import Geometry
from equiscale.layers.scaled.kernel_scaling import Interpolation
from equiscale.layers.scaled.pooling import PoolMode
from equiscale.layers.scaled.spectral.operators import NO_POOL, Settings, spectral_operator


def spectral_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    groups: int,
    interpolation: Interpolation,
    pool: PoolMode | None,
    return_indices: bool,
) -> tuple[Tensor, Tensor | None]:
    """`[N, C, H, W] -> [N, O, (S,) H', W']`, or `[N, O]`; equal to `direct_conv` up to rounding."""
    x, settings = _prepare(x, geometry, interpolation, groups, pool)
    track = pool is not None and (return_indices or _is_trained(x, weight, bias))
    values, choice = spectral_operator(x, weight, bias, settings, track)
    if not return_indices:
        return values, None
    if pool == "global":
        return values, choice // math.prod(geometry.full_size)
    return values, choice.long()


def _is_trained(*tensors: Tensor | None) -> bool:
    """Whether a gradient may be needed."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _prepare(
    x: Tensor,
    geometry: Geometry,
    interpolation: Interpolation,
    groups: int,
    pool: PoolMode | None,
) -> tuple[Tensor, Settings]:
    """Pad the input unless it continues as zeros, and collect the settings."""
    frame = geometry.frame
    if frame.input_size != geometry.input_size:
        x = extend(x, geometry.extension(geometry.kernel_sizes[-1]), geometry.padding_mode)
    settings = Settings(
        list(geometry.kernel_sizes),
        list(geometry.stride),
        list(frame.output_size or ()),
        frame.zero_extended,
        interpolation,
        groups,
        pool or NO_POOL,
    )
    return x, settings
