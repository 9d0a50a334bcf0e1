"""Global max pooling over all axes after the channels."""

from __future__ import annotations

from torch import Tensor, nn

from equiscale.core.errors import ShapeError


class GlobalMaxPool(nn.Module):
    """`[N, C, *] -> [N, C]`: the maximum over all remaining axes.

    The gradient flows to one element per sample and channel, the first maximum, so that the layer
    before it can use a sparse backward pass.

    Examples:
        >>> import torch
        >>> GlobalMaxPool()(torch.arange(12.0).reshape(1, 2, 2, 3))
        tensor([[ 5., 11.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, *] -> [N, C]`."""
        if x.ndim < 3 or 0 in x.shape[2:]:
            raise ShapeError(
                f"GlobalMaxPool needs [N, C, ...] with more axes, none empty, got {list(x.shape)}"
            )
        return x.flatten(2).max(dim=2).values
