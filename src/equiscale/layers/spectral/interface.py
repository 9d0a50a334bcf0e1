"""The spectral method behind the same signature as the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from equiscale.layers.direct import extend
from equiscale.layers.geometry import Geometry
from equiscale.layers.kernel_scaling import Interpolation
from equiscale.layers.scale_pool import PoolMode, scale_pool
from equiscale.layers.spectral.ops import NO_POOL, Settings, spectral_operator

_HALF_PRECISION = (torch.float16, torch.bfloat16)


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
    """`[N, C, H, W] -> [N, O, (S,) H', W']`, equal to `direct_conv` up to rounding.

    Half-precision inputs are transformed in float32 and rounded at the end; under autocast
    everything is float32.
    """
    dtype = x.dtype
    autocast = torch.is_autocast_enabled(x.device.type)
    if autocast or dtype in _HALF_PRECISION:
        x, weight = x.float(), weight.float()
        bias = None if bias is None else bias.float()
    strided = geometry.stride != (1, 1)
    fused = None if strided and pool != "pixel" else pool
    x, settings = _prepare(x, geometry, interpolation, groups, fused)
    tensors = (x, weight) if bias is None else (x, weight, bias)
    tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    values, choice = spectral_operator(x, weight, bias, settings, tracked or return_indices)
    indices = choice.long() if pool is not None and return_indices else None
    if strided:
        values, indices = _subsample(values, indices, geometry, pool, fused, return_indices)
    return values if autocast else values.to(dtype), indices


def _prepare(
    x: Tensor,
    geometry: Geometry,
    interpolation: Interpolation,
    groups: int,
    pool: PoolMode | None,
) -> tuple[Tensor, Settings]:
    """Extend the input where it does not continue as zeros, and collect the settings."""
    sizes, zero_extended = list(geometry.kernel_sizes), False
    output_size: list[int] = []
    if geometry.padding == "same":
        output_size = list(geometry.full_size)
        zero_extended = geometry.padding_mode == "zeros"
        if not zero_extended:
            x = extend(x, sizes[-1], geometry.padding_mode)
    name = pool or NO_POOL
    return x, Settings(sizes, output_size, zero_extended, interpolation, groups, name)


def _subsample(
    values: Tensor,
    indices: Tensor | None,
    geometry: Geometry,
    pool: PoolMode | None,
    fused: PoolMode | None,
    return_indices: bool,
) -> tuple[Tensor, Tensor | None]:
    """Keep every stride-th pixel; a pool that looks at whole maps comes after that."""
    down, across = geometry.stride
    values = values[..., ::down, ::across]
    if fused == "pixel":
        return values, None if indices is None else indices[..., ::down, ::across]
    if pool is None:
        return values, None
    values, chosen = scale_pool(values, pool, return_indices=True)
    return values, chosen if return_indices else None
