"""Layers for any network: scaled convolutions, scale channels, and other methods to compare."""

from equiscale.layers.baselines.gaussian_derivative import GaussianDerivativeConv2d
from equiscale.layers.baselines.multi_scale import KanazawaConv2d, XuConv2d
from equiscale.layers.baselines.riesz import RieszConv2d
from equiscale.layers.baselines.steerable import SteerableConv2d, SteerableLift2d
from equiscale.layers.channels import (
    RescaledViews,
    ScaleChannels,
    pool_views,
    scale_channels,
    scale_factors,
)
from equiscale.layers.conversion import convert
from equiscale.layers.global_pool import GlobalMaxPool
from equiscale.layers.random_views import RandomViews
from equiscale.layers.scaled.conv import SConv2d, scaled_conv2d
from equiscale.layers.scaled.pooling import ScalePool, scale_pool
from equiscale.layers.search import ObjectSearch

__all__ = [
    "GaussianDerivativeConv2d",
    "GlobalMaxPool",
    "KanazawaConv2d",
    "ObjectSearch",
    "RandomViews",
    "RescaledViews",
    "RieszConv2d",
    "SConv2d",
    "ScaleChannels",
    "ScalePool",
    "SteerableConv2d",
    "SteerableLift2d",
    "XuConv2d",
    "convert",
    "pool_views",
    "scale_channels",
    "scale_factors",
    "scale_pool",
    "scaled_conv2d",
]
