"""The spectral method with the signature of the direct one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equiscale.layers.scaled.direct import extend
from equiscale.layers.scaled.geometry import Geometry
from equiscale.layers.scaled.kernel_scaling import Interpolation
from equiscale.layers.scaled.pooling import PoolMode, scale_pool
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
    strided = geometry.stride != (1, 1)
    whole_maps_compete = strided and pool not in (None, "pixel")
    fused = None if whole_maps_compete else pool
    x, settings = _prepare(x, geometry, interpolation, groups, fused)
    track = fused is not None and (return_indices or _is_trained(x, weight, bias))
    values, choice = spectral_operator(x, weight, bias, settings, track)
    if fused == "global":
        return values, choice // math.prod(geometry.full_size) if return_indices else None
    if strided:
        values = _every(geometry.stride, values)
    if whole_maps_compete:
        assert pool is not None
        values, choice = scale_pool(values, pool, return_indices=True, areas=geometry.areas())
    elif strided and pool == "pixel" and track:
        choice = _every(geometry.stride, choice)
    return values, choice.long() if return_indices else None


def _every(stride: tuple[int, int], maps: Tensor) -> Tensor:
    down, across = stride
    return maps[..., ::down, ::across]


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
        list(frame.output_size or ()),
        frame.zero_extended,
        interpolation,
        groups,
        pool or NO_POOL,
    )
    return x, settings
