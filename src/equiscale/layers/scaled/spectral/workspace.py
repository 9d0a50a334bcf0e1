"""Memory and compiled functions of one call."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equiscale.layers.scaled.spectral.native import native_for


class Workspace:
    """Memory that one call reuses for every kernel size.

    Allocating it anew would take longer than the arithmetic.

    Attributes:
        native: Compiled functions, or None if there are none for this dtype and device.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self.native = native_for(like)
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return an uninitialised tensor; it overwrites the last one of this name."""
        size = math.prod(shape)
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = self._like.new_empty(size)
        return self._buffers[name][:size].view(shape)


def butterfly(first: Tensor, second: Tensor) -> None:
    """Replace two tensors by their difference and their sum, in place."""
    torch.sub(first, second, out=first)
    torch.add(first, second, alpha=2, out=second)
