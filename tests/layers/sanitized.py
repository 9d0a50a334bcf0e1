"""Runs the library given on the command line over many shapes; its sanitizers end the process."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import torch

from equiscale.layers import scaled_conv2d
from equiscale.layers.scaled import native
from equiscale.layers.scaled.pooling import POOL_MODES

SHAPES = [(1, 1, 16, 1), (3, 2, 17, 1), (9, 5, 24, 1), (2, 4, 40, 2)]
"""Samples, input channels, output channels, groups."""

SIZES = [(7, 7, 3), (12, 9, 4), (11, 16, 5), (13, 13, 3)]
"""Height, width, kernel size."""


def main() -> None:
    """Run forward and backward passes over all shapes, pools, types and paddings."""
    library = native.Library(Path(sys.argv[1]))
    native._load = lambda: library  # type: ignore[assignment]
    pools, types = (None, *POOL_MODES), (torch.float32, torch.float64)
    layouts = list(zip(SHAPES, SIZES, strict=True))
    cases: Any = itertools.product(layouts, pools, types, ("valid", "same"))
    strides: Any = itertools.cycle((1, 2, (3, 1)))
    for ((shape, size), pool, dtype, padding), stride in zip(cases, strides, strict=False):
        (samples, channels, outputs, groups), (height, width, base) = shape, size
        x = torch.randn(samples, channels, height, width, dtype=dtype).requires_grad_()
        weight = torch.randn(outputs, channels // groups, base, base, dtype=dtype).requires_grad_()
        output = scaled_conv2d(
            x, weight, None, stride, padding, groups=groups, pool=pool, method="spectral"
        )
        output.square().sum().backward()


if __name__ == "__main__":
    main()
