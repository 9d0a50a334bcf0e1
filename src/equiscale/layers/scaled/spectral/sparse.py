"""Backward pass with a sparse gradient, which visits only the pixels that have one.

Before a global max pooling, one pixel per sample and channel has a gradient. Its response is
`Σ w ⊙ (T_y x T_xᵀ)`, where the rows of T are the kernel's resampling weights placed at the pixel,
and both gradients follow from this formula without a transform.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equiscale.layers.scaled.spectral.plan import AxisPlan, Plan


def sparse_backward(
    x: Tensor, weight: Tensor, grad: Tensor, scale_index: Tensor, plan: Plan, input_wanted: bool
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of input and weight, for groups = 1.

    Args:
        x: `[N, C, H, W]` input.
        weight: `[O, C, k, k]`.
        grad: `[N, O, H', W']` gradient of the pooled maps, zero at most pixels.
        scale_index: `[N, O, H', W']` scale that each pixel belongs to.
        plan: That of the forward pass.
        input_wanted: Whether the input's gradient is needed.
    """
    places = grad.nonzero()
    sample, channel, row, column = places.unbind(1)
    values = grad[sample, channel, row, column]
    scales = scale_index[sample, channel, row, column].long()
    over_rows = _windows(plan.rows, plan.resampling, scales, row, x.shape[2])
    over_columns = _windows(plan.columns, plan.resampling, scales, column, x.shape[3])
    over_rows *= values[:, None, None]
    per_place = weight.new_empty(len(places), *weight.shape[1:])
    x_grad = torch.zeros_like(x) if input_wanted else None
    first = 0
    for index, count in enumerate(torch.bincount(sample, minlength=len(x)).tolist()):
        own = slice(first, first + count)
        first += count
        per_place[own] = _weight_terms(x[index], over_rows[own], over_columns[own])
        if x_grad is not None:
            kernels = weight[channel[own]]
            x_grad[index] = _input_terms(kernels, over_rows[own], over_columns[own])
    return x_grad, torch.zeros_like(weight).index_add_(0, channel, per_place)


def _windows(
    axis: AxisPlan, resampling: Tensor, scales: Tensor, position: Tensor, length: int
) -> Tensor:
    """Return `[P, k, n]`: the kernels' resampling weights where they lie on the input."""
    extents = torch.tensor(axis.extents, device=position.device)
    starts = torch.tensor(axis.starts, device=position.device)
    margin = (extents[0] - extents[scales]) // 2
    start = position - margin + starts[scales]
    offset = torch.arange(length, device=position.device) - start[:, None]
    beyond = resampling.shape[2] - 1  # the column of zeros
    offset = torch.where((offset < 0) | (offset > beyond), beyond, offset)
    return resampling[scales].gather(2, offset[:, None].expand(-1, resampling.shape[1], -1))


def _weight_terms(image: Tensor, over_rows: Tensor, over_columns: Tensor) -> Tensor:
    """`[C, H, W], [P, k, H], [P, k, W] -> [P, C, k, k]`: `T_y x T_xᵀ` at every place."""
    P, k = over_rows.shape[:2]
    rows = (over_rows.flatten(0, 1) @ image).unflatten(1, (P, k))
    return (rows.permute(1, 0, 2, 3).flatten(1, 2) @ over_columns.transpose(1, 2)).unflatten(
        1, (-1, k)
    )


def _input_terms(kernels: Tensor, over_rows: Tensor, over_columns: Tensor) -> Tensor:
    """`[P, C, k, k], [P, k, H], [P, k, W] -> [C, H, W]`: `T_yᵀ w T_x` summed over places."""
    columns = (kernels.flatten(1, 2) @ over_columns).unflatten(1, kernels.shape[1:3])
    return over_rows.flatten(0, 1).T @ columns.permute(1, 0, 2, 3).flatten(1, 2)
