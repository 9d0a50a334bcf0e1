"""Global max pooling over all axes after the channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equiscale.core.errors import ShapeError


class GlobalMaxPool(nn.Module):
    """`[N, C, *] -> [N, C]`: the maximum over all remaining axes.

    The gradient flows to one element per sample and channel, the first maximum, so that the layer
    before it can use a sparse backward pass.

    Examples:
        >>> GlobalMaxPool()(torch.arange(12.0).reshape(1, 2, 2, 3))
        tensor([[ 5., 11.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, *] -> [N, C]`."""
        if x.ndim < 3 or 0 in x.shape[2:]:
            raise ShapeError(
                f"GlobalMaxPool needs [N, C, ...] with more axes, none empty, got {list(x.shape)}"
            )
        if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
            # A gradient in the order of the map: one in another order is slow to go on with.
            return x.permute(0, 2, 3, 1).flatten(1, 2).max(dim=1).values
        return x.flatten(2).max(dim=2).values
