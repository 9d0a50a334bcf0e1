"""How far the features of an object at one size are from those at another, resized."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.core.errors import ShapeError


def equivariance_error(
    maps_a: Tensor,
    maps_b: Tensor,
    boxes_a: Tensor | None = None,
    boxes_b: Tensor | None = None,
    canvas: int | None = None,
) -> Tensor:
    """Compare the feature maps of the same objects at two sizes.

    `maps_a` are resized (bicubic) to the size of `maps_b`. The error of an object is
    `‖a − b‖² / ‖b‖²` over channels and pixels, in float64. 0/0 is NaN and x/0 is infinite.

    Args:
        maps_a: `[N, O, Ha, Wa]`.
        maps_b: `[N, O, Hb, Wb]`, of the same objects.
        boxes_a: `[N, 3]` left, top and size of each object in the images of `maps_a`, to compare
            the objects only; see `crop_boxes`. Without boxes, whole maps are compared.
        boxes_b: `[N, 3]` in the images of `maps_b`.
        canvas: Side of the images in pixels, if boxes are given.

    Returns:
        `[N]`, float64.

    Examples:
        >>> maps = torch.rand(2, 3, 5, 5)
        >>> equivariance_error(maps, 2 * maps)
        tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    if maps_a.ndim != 4 or maps_a.shape[:2] != maps_b.shape[:2]:
        raise ShapeError(
            "expected maps [N, O, H, W] with equal N and O, got "
            f"{list(maps_a.shape)} and {list(maps_b.shape)}"
        )
    if boxes_a is None and boxes_b is None:
        return _relative_error(maps_a, maps_b)
    if boxes_a is None or boxes_b is None or canvas is None:
        raise ShapeError("boxes_a, boxes_b and canvas must be given together")
    errors = torch.empty(len(maps_a), dtype=torch.float64, device=maps_a.device)
    sizes = torch.stack([boxes_a[:, 2], boxes_b[:, 2]], dim=1)
    for pair in sizes.unique(dim=0):  # maps of one shape at a time
        chosen = (sizes == pair).all(dim=1)
        a = crop_boxes(maps_a[chosen], boxes_a[chosen], canvas)
        b = crop_boxes(maps_b[chosen], boxes_b[chosen], canvas)
        errors[chosen] = _relative_error(a, b)
    return errors


def crop_boxes(maps: Tensor, boxes: Tensor, canvas: int) -> Tensor:
    """`[N, O, H, W], [N, 3] -> [N, O, side, side]`: cut out each object.

    Valid convolutions make a map p = `canvas` − side pixels smaller than the image. A box then
    keeps `size` − p pixels from the same left and top. Strided maps have no such boxes.

    Args:
        maps: Square feature maps.
        boxes: Left, top and size of each object in the image; all sizes are equal.
        canvas: Side of the images in pixels.

    Raises:
        ShapeError: Nothing is left of the objects, or their sizes differ.
    """
    sizes = set(boxes[:, 2].tolist())
    if len(sizes) != 1:
        raise ShapeError(f"all boxes must have one size, got {sorted(sizes)}")
    size = int(sizes.pop())
    side = size - (canvas - maps.shape[-1])
    if side < 1 or maps.shape[-1] != maps.shape[-2] or maps.shape[-1] > canvas:
        raise ShapeError(
            f"maps of {maps.shape[-2]}×{maps.shape[-1]} pixels leave nothing to compare of an "
            f"object of {size} pixels on a canvas of {canvas}; maps must be square and unstrided"
        )
    objects = [
        one[:, top : top + side, left : left + side]
        for one, (left, top, _) in zip(maps, boxes.tolist(), strict=True)
    ]
    return torch.stack(objects)


def _relative_error(first: Tensor, second: Tensor) -> Tensor:
    """`[N, O, a, a], [N, O, b, b] -> [N]`."""
    first, second = first.double(), second.double()
    resized = F.interpolate(first, second.shape[2:], mode="bicubic", align_corners=False)
    return (resized - second).square().sum((1, 2, 3)) / second.square().sum((1, 2, 3))
