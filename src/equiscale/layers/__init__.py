"""Layers to drop into any network. Knows only torch and `equiscale.core`."""

from equiscale.layers.channel_pool import pool_channels
from equiscale.layers.conversion import convert
from equiscale.layers.gaussian_derivative import GaussianDerivativeConv2d
from equiscale.layers.global_pool import GlobalMaxPool
from equiscale.layers.multi_scale import KanazawaConv2d, XuConv2d
from equiscale.layers.pooling import ScalePool, scale_pool
from equiscale.layers.pyramid import (
    ImagePyramid,
    ScaleChannels,
    scale_channels,
    scale_factors,
)
from equiscale.layers.riesz import RieszConv2d
from equiscale.layers.scaled_conv import SConv2d, scaled_conv2d
from equiscale.layers.steerable import SteerableConv2d, SteerableLift2d

__all__ = [
    "GaussianDerivativeConv2d",
    "GlobalMaxPool",
    "ImagePyramid",
    "KanazawaConv2d",
    "RieszConv2d",
    "SConv2d",
    "ScaleChannels",
    "ScalePool",
    "SteerableConv2d",
    "SteerableLift2d",
    "XuConv2d",
    "convert",
    "pool_channels",
    "scale_channels",
    "scale_factors",
    "scale_pool",
    "scaled_conv2d",
]
