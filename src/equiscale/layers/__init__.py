"""Layers to drop into any network. Knows only torch and `equiscale.core`."""

from equiscale.layers.global_pool import GlobalMaxPool
from equiscale.layers.scale_pool import ScalePool, scale_pool
from equiscale.layers.scaled_conv import SConv2d, scaled_conv2d

__all__ = ["GlobalMaxPool", "SConv2d", "ScalePool", "scale_pool", "scaled_conv2d"]
