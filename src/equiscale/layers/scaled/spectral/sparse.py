"""Backward pass with a sparse gradient: the few pixels that carry one are visited directly.

In front of a global maximum a single pixel per sample and channel has a gradient. Its response is
`Σ w ⊙ (T_y x T_xᵀ)`, where the rows of T are the kernel's resampling weights placed at the pixel.
Both gradients follow from this line without any transform.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equiscale.layers.scaled.spectral.plan import AxisPlan, Plan


@dataclass(frozen=True)
class Places:
    """P pixels of each sample and group that carry a gradient; all fields are `[N, G, P]`.

    Attributes:
        values: The gradient; 0 fills up.
        channel: Output channel, counted over all groups.
        scale: Scale index.
        row: Row of the aligned maps.
        column: Column of the aligned maps.
    """

    values: Tensor
    channel: Tensor
    scale: Tensor
    row: Tensor
    column: Tensor


def peak_places(grad: Tensor, flat: Tensor, plan: Plan, groups: int) -> Places:
    """Return one place per sample and channel: `[N, O]` gradients, indices into `[S, H, W]`."""
    H, W = plan.output_size
    channel = torch.arange(grad.shape[1], device=grad.device).expand_as(flat)
    scale, row, column = flat // (H * W), flat // W % H, flat % W
    inside = plan.reached[scale, row, column]
    fields = (torch.where(inside, grad, 0.0), channel, scale, row, column)
    return Places(*(field.unflatten(1, (groups, -1)) for field in fields))


def nonzero_places(grad: Tensor, scale: Tensor, plan: Plan, groups: int) -> Places:
    """Return the places where a gradient `[N, O, H', W']` is not zero; waits for the device."""
    per_group = grad.unflatten(1, (groups, -1)).flatten(0, 1)
    found = per_group.flatten(1).nonzero()
    block, flat = found.unbind(1)
    counts = torch.bincount(block, minlength=len(per_group))
    slot = torch.arange(len(found), device=grad.device) - (counts.cumsum(0) - counts)[block]
    most = max(1, int(counts.max()))
    places = torch.zeros(len(per_group), most, dtype=torch.long, device=grad.device)
    places[block, slot] = flat
    values = torch.zeros(places.shape, dtype=grad.dtype, device=grad.device)
    values[block, slot] = per_group.flatten(1)[block, flat]
    (O, H, W), G = per_group.shape[1:], groups
    first = torch.arange(G, device=grad.device).repeat(len(grad))[:, None] * O
    scales = scale.unflatten(1, (groups, -1)).flatten(0, 1).flatten(1).gather(1, places).long()
    down, across = plan.stride
    rows, columns = places // W % H * down, places % W * across
    fields = (values, first + places // (H * W), scales, rows, columns)
    return Places(*(field.unflatten(0, (-1, groups)) for field in fields))


def sparse_backward(
    x: Tensor, weight: Tensor, places: Places, plan: Plan, input_wanted: bool
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of input and weight.

    Args:
        x: `[N, C, H, W]` input.
        weight: `[O, C/G, k, k]`.
        places: The pixels that carry a gradient.
        plan: Constants of the forward pass.
        input_wanted: Whether the input's gradient is needed.
    """
    N, G, P = places.values.shape
    images = x.unflatten(1, (G, -1))
    over_rows = _windows(plan.rows, plan.resampling, places.scale, places.row, x.shape[2])
    over_columns = _windows(plan.columns, plan.resampling, places.scale, places.column, x.shape[3])
    over_rows = over_rows * places.values[..., None, None]
    rows = over_rows.flatten(2, 3)[:, :, None] @ images
    per_place = rows.unflatten(3, (P, -1)) @ over_columns.transpose(3, 4)[:, :, None]
    weight_grad = torch.zeros_like(weight)
    weight_grad.index_add_(0, places.channel.flatten(), per_place.transpose(2, 3).flatten(0, 2))
    if not input_wanted:
        return None, weight_grad
    kernels = weight[places.channel.flatten()].unflatten(0, (N, G, P))
    columns = (kernels @ over_columns[:, :, :, None]).transpose(3, 4)
    x_grad = over_rows.flatten(2, 3).transpose(2, 3) @ columns.flatten(2, 3).flatten(3)
    return x_grad.unflatten(3, (-1, x.shape[3])).transpose(2, 3).flatten(1, 2), weight_grad


def _windows(
    axis: AxisPlan, resampling: Tensor, scales: Tensor, position: Tensor, length: int
) -> Tensor:
    """Return `[..., k, n]`: the kernels' resampling weights where they lie on the input."""
    start = position + axis.aligned_starts.to(position.device)[scales]
    offset = torch.arange(length, device=position.device) - start[..., None]
    beyond = resampling.shape[2] - 1  # the column of zeros
    offset = torch.where((offset < 0) | (offset > beyond), beyond, offset)
    weights = resampling[scales]
    return weights.gather(-1, offset[..., None, :].expand(*weights.shape[:-1], -1))
