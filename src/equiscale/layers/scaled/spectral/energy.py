"""Which scale has the largest energy, without computing a map.

The sum of a map is linear in the input and in the weight, so k×k numbers per input channel and
kernel size are enough.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.layers.scaled.spectral.plan import AxisPlan, Plan


def winning_scales(
    x: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan, groups: int, mean: bool = False
) -> Tensor:
    """Return `[N, O]`: the scale index whose map has the largest sum; the first wins a tie.

    With `mean`, the sum divided by the number of pixels inside the map's frame. Only pixels that
    the stride keeps count.
    """
    scores = map_sums(x, weight, bias, plan, groups)
    if mean:
        scores = scores / _areas(plan, x).clamp(min=1)
    return scores.max(dim=0).indices


def _areas(plan: Plan, like: Tensor) -> Tensor:
    """Return `[S, 1, 1]`: the pixels of each map inside its frame that are kept."""
    return plan.keep(plan.reached).sum((1, 2), dtype=like.dtype)[:, None, None]


def map_sums(x: Tensor, weight: Tensor, bias: Tensor | None, plan: Plan, groups: int) -> Tensor:
    """`[N, C, H, W] -> [S, N, O]`: the sum of every map, bias included."""
    over_rows = _window_sums(plan.rows, plan.resampling, x.shape[2], plan.stride[0])
    over_columns = _window_sums(plan.columns, plan.resampling, x.shape[3], plan.stride[1])
    S, k = over_rows.shape[:2]
    N, C = x.shape[:2]
    rows = (over_rows.flatten(0, 1) @ x).unflatten(2, (S, k))
    moments = rows.permute(2, 0, 1, 3, 4).flatten(1, 3) @ over_columns.transpose(1, 2)
    by_group = moments.view(S * N, groups, C // groups * k * k).transpose(0, 1)
    sums = by_group @ weight.reshape(groups, -1, C // groups * k * k).transpose(1, 2)
    sums = sums.transpose(0, 1).reshape(S, N, -1)
    if bias is not None:
        sums = sums + _areas(plan, x) * bias
    return sums


def _window_sums(axis: AxisPlan, resampling: Tensor, length: int, stride: int) -> Tensor:
    """Return `[S, k, n]`: how much each input pixel adds to a map's sum, per base pixel."""
    device = resampling.device
    extents = torch.tensor(axis.extents, device=device)[:, None]
    first = -((extents[0] - extents) // 2) % stride  # pixel of the map that is kept
    kept = (extents - first + stride - 1) // stride
    # Sums of every stride-th weight, padded so that each offset has one.
    steps = -(-(length + resampling.shape[2]) // stride)
    padded = F.pad(resampling, (0, steps * stride - resampling.shape[2]))
    cumulative = padded.unflatten(2, (steps, stride)).cumsum(2).flatten(2)
    cumulative = F.pad(cumulative, (1, 0))

    def up_to(offset: Tensor) -> Tensor:
        index = (offset + 1).clamp(0, cumulative.shape[2] - 1)[:, None]
        return cumulative.gather(2, index.expand(-1, cumulative.shape[1], -1))

    starts = torch.tensor(axis.starts, device=device)[:, None]
    offset = torch.arange(length, device=device) - starts - first
    return up_to(offset) - up_to(offset - kept * stride)
