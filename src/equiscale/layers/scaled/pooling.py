"""Pooling over the scale axis: `[N, C, S, H, W] -> [N, C, H, W]`, or `[N, C]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args, overload

from torch import Tensor, nn

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.registry import unknown_name_message

PoolMode = Literal["pixel", "slice", "energy", "mean_energy", "global"]
POOL_MODES: tuple[PoolMode, ...] = get_args(PoolMode)


def check_pool_mode(mode: str) -> None:
    """Raise `OptionError` unless `mode` names a way to pool over scale."""
    if mode not in POOL_MODES:
        raise OptionError(unknown_name_message("pool", mode, POOL_MODES))


@overload
def scale_pool(
    stack: Tensor,
    mode: PoolMode,
    return_indices: Literal[False] = False,
    areas: Sequence[int] | None = None,
) -> Tensor: ...
@overload
def scale_pool(
    stack: Tensor,
    mode: PoolMode,
    return_indices: Literal[True],
    areas: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def scale_pool(
    stack: Tensor, mode: PoolMode, return_indices: bool, areas: Sequence[int] | None = None
) -> Tensor | tuple[Tensor, Tensor]: ...
def scale_pool(
    stack: Tensor,
    mode: PoolMode,
    return_indices: bool = False,
    areas: Sequence[int] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`[N, C, S, H, W] -> [N, C, H, W]`, or `[N, C]`: pool a stack of aligned maps over scale.

    - `pixel`: the maximum over S at every pixel.
    - `slice`: for each sample and channel the whole slice that holds the maximum over (S, H, W).
    - `energy`: the slice with the largest sum over (H, W).
    - `mean_energy`: the slice with the largest mean over its valid area, the pixels inside its
      frame of zeros. It removes the bias of `energy` towards small kernels, whose frames are thin.
    - `global`: the maximum over (S, H, W), one number per sample and channel. It equals pixel or
      slice pooling followed by global max pooling, and costs less.

    The first scale index wins a tie, and NaN propagates as in `torch.max`.

    Args:
        stack: Maps at S scales, aligned to one size.
        mode: `"pixel"`, `"slice"`, `"energy"`, `"mean_energy"` or `"global"`.
        return_indices: Also return the chosen scale indices, int64: `[N, C, H, W]` for
            pixel, `[N, C]` for the others.
        areas: Number of pixels of each map inside its frame, which mean_energy needs:
            `layer.geometry((H, W)).areas()` of the `SConv2d` that made the stack.

    Raises:
        OptionError: The mode does not exist, or mean_energy was given no areas.

    Examples:
        >>> import torch
        >>> stack = torch.tensor([[0.0, 3.0], [2.0, 2.0]]).reshape(1, 1, 2, 1, 2)
        >>> scale_pool(stack, "pixel").flatten().tolist()
        [2.0, 3.0]
        >>> scale_pool(stack, "slice").flatten().tolist()
        [0.0, 3.0]
        >>> scale_pool(stack, "energy").flatten().tolist()
        [2.0, 2.0]
        >>> scale_pool(stack, "global").flatten().tolist()
        [3.0]
    """
    check_pool_mode(mode)
    if stack.ndim != 5 or 0 in stack.shape[2:]:
        raise ShapeError(
            f"scale_pool needs [N, C, S, H, W] with S, H and W at least 1, got {list(stack.shape)}"
        )
    if mode == "pixel":
        values, indices = stack.max(dim=2)
    elif mode == "global":
        values, places = stack.flatten(2).max(dim=2)
        indices = places // (stack.shape[3] * stack.shape[4])
    else:
        score = stack.amax(dim=(3, 4)) if mode == "slice" else stack.sum(dim=(3, 4))
        if mode == "mean_energy":
            score = score / score.new_tensor(_check_areas(areas, stack.shape[2]))
        indices = score.max(dim=2).indices
        values = select_slices(stack, indices)
    return (values, indices) if return_indices else values


def _check_areas(areas: Sequence[int] | None, num_scales: int) -> list[int]:
    if areas is None:
        raise OptionError(
            "mean_energy needs the areas of the maps inside their frames: pass "
            "areas=layer.geometry((H, W)).areas() of the layer that made the stack, or let the "
            'layer pool: SConv2d(..., pool="mean_energy")'
        )
    if len(areas) != num_scales:
        raise ShapeError(f"areas must have one number per scale, {num_scales}, got {len(areas)}")
    return [max(1, area) for area in areas]


def select_slices(stack: Tensor, indices: Tensor) -> Tensor:
    """`[N, C, S, H, W], [N, C] -> [N, C, H, W]`: one slice per sample and channel."""
    chosen = indices[:, :, None, None, None].expand(-1, -1, 1, *stack.shape[3:])
    return stack.gather(2, chosen).squeeze(2)


class ScalePool(nn.Module):
    """`[N, C, S, H, W] -> [N, C, H, W]`, or `[N, C]`: module form of `scale_pool`.

    Args:
        mode: `"pixel"`, `"slice"`, `"energy"`, `"mean_energy"` or `"global"`, see `scale_pool`.
        return_indices: Return `(values, indices)` instead of values alone.
    """

    def __init__(self, mode: PoolMode, return_indices: bool = False) -> None:
        super().__init__()
        check_pool_mode(mode)
        self.mode: PoolMode = mode
        self.return_indices = return_indices

    def forward(
        self, stack: Tensor, areas: Sequence[int] | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`[N, C, S, H, W] -> [N, C, H, W]`, or `[N, C]`; and the indices if requested."""
        return scale_pool(stack, self.mode, self.return_indices, areas)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"{self.mode!r}" + (", return_indices=True" if self.return_indices else "")
