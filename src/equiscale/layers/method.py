"""Which way to compute a scaled convolution, and which is faster."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from equiscale.core.errors import OptionError
from equiscale.core.registry import unknown_name_message
from equiscale.layers.geometry import Geometry

Method = Literal["auto", "direct", "spectral"]
METHODS: tuple[Method, ...] = get_args(Method)


def check_method(method: str) -> None:
    """Raise `OptionError` unless `method` names a way to compute."""
    if method not in METHODS:
        raise OptionError(unknown_name_message("method", method, METHODS))


def choose_method(x: Tensor, weight: Tensor, geometry: Geometry) -> Literal["direct", "spectral"]:
    """Return the method that is estimated to be faster."""
    if torch.compiler.is_exporting():
        return "direct"
    return "spectral"
