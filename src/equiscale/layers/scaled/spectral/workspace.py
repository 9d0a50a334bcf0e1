"""What one call of the layer works with: memory, and compiled functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equiscale.layers.scaled.spectral.native import native_for


class Workspace:
    """Memory that lives as long as one call and is used again for every kernel size.

    Fresh memory of this size costs more than the arithmetic done in it.

    Attributes:
        native: Compiled functions, where they can be had for such numbers.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self.native = native_for(like)
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return an uninitialised tensor; what an earlier call of this name returned is lost."""
        size = math.prod(shape)
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = self._like.new_empty(size)
        return self._buffers[name][:size].view(shape)


def butterfly(first: Tensor, second: Tensor) -> None:
    """Replace two tensors by their difference and their sum, in place: the cache is small."""
    torch.sub(first, second, out=first)
    torch.add(first, second, alpha=2, out=second)
