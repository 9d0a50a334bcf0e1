"""Augmentation of training images; the paper uses none."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from equiscale.core.errors import OptionError, ShapeError
from equiscale.core.options import check_numbers
from equiscale.core.protocol import Augmentation
from equiscale.core.spec import OBJECT_SIZES

SIZE_RANGE = (min(OBJECT_SIZES), max(OBJECT_SIZES))
MAX_FACTOR = 2.0
MAX_SHIFT = 8


def augment(
    images: Tensor,
    kind: Augmentation,
    generator: torch.Generator,
    boxes: Tensor | None = None,
    size_range: tuple[int, int] = SIZE_RANGE,
) -> Tensor:
    """`[N, C, H, W] -> [N, C, H, W]`: augment each image independently.

    `rescale` resizes about the centre by a factor that is log-uniform in [1/2, 2]; part of an
    object may leave the canvas. `rescale_object` needs the boxes, `[N, 3]` left, top and size: it
    resizes with antialiasing, so that the object size is log-uniform in `size_range`, and places
    the object anywhere on the canvas. `shift` moves by up to 8 pixels. Pixels from outside the
    image are black. The generator is on the CPU, so that all devices draw the same numbers.
    """
    if kind == "none":
        return images
    count = len(images)
    if kind == "rescale_object":
        if boxes is None:
            raise OptionError("augmentation='rescale_object' needs the boxes of the objects")
        draws = torch.rand(count, 3, generator=generator)
        return _replace_objects(images, boxes, draws, size_range)
    if kind == "rescale":
        exponent = torch.rand(count, generator=generator) * 2 - 1
        factor, shift = torch.exp(math.log(MAX_FACTOR) * exponent), torch.zeros(count, 2)
    else:
        pixels = torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, (count, 2), generator=generator)
        extent = torch.tensor([images.shape[3], images.shape[2]])
        factor, shift = torch.ones(count), -2 * pixels / extent
    return _sample(images, factor.to(images.device), shift.to(images.device))


def _sample(images: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """`[N, C, H, W], [N], [N, 2] -> [N, C, H, W]`: enlarge by `factor` and shift."""
    diagonal = torch.eye(2, device=images.device) / factor[:, None, None]
    theta = torch.cat([diagonal, shift[:, :, None]], dim=2).to(images.dtype)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def _replace_objects(
    images: Tensor, boxes: Tensor, draws: Tensor, size_range: tuple[int, int]
) -> Tensor:
    """`[N, C, H, W], [N, 3], [N, 3] -> [N, C, H, W]`: draws in [0, 1] give sizes and places."""
    draws = draws.to(images.device)
    left, top, size = boxes.to(images.dtype).unbind(1)
    smallest, largest = size_range
    new_size = smallest * (largest / smallest) ** draws[:, 0]
    height, width = images.shape[2:]
    factor, reach = new_size / size, 2 * math.ceil(largest / smallest)
    across = _resizing(width, left, draws[:, 1] * (width - new_size), factor, reach)
    down = _resizing(height, top, draws[:, 2] * (height - new_size), factor, reach)
    return down[:, None] @ images @ across[:, None].transpose(2, 3)


def _resizing(
    length: int,
    start: Tensor,
    new_start: Tensor,
    factor: Tensor,
    reach: int = 8,
    edge: bool = False,
) -> Tensor:
    """`[N] × 3 -> [N, length, length]`: matrices of bilinear resizing with antialiasing.

    The pixel at `start` moves to `new_start`; distances grow by `factor`. Weights of the smallest
    factor reach `reach` pixels beyond both ends, which are black unless the edge is repeated.
    """
    pixels = torch.arange(-reach, length + reach, device=start.device) + 0.5
    places = (pixels[reach:-reach] - new_start[:, None]) / factor[:, None] + start[:, None]
    if edge:
        places = places.clamp(0.5, length - 0.5)
    support = (1 / factor).clamp_min(1)[:, None, None]
    weights = (1 - (places[:, :, None] - pixels).abs() / support).clamp_min(0)
    inside = weights[:, :, reach:-reach]
    if edge:
        return inside / inside.sum(dim=2, keepdim=True)
    # Places far outside have no weights: 0 / expected, not 0 / 0.
    total = weights.sum(dim=2, keepdim=True)
    expected = torch.maximum(total, 0.9 * support)
    return inside / expected


class RandomObjectSize:
    """Give the object of an image a random size and place: a transform for training pipelines.

    The longer side of the object becomes log-uniform in `sizes`, and the object is put anywhere on
    the canvas, which keeps its size. Objects are enlarged and reduced with antialiasing, together
    with their surroundings.

    It takes images `[C, H, W]` or batches `[N, C, H, W]`, of floating-point numbers or bytes,
    alone or with a target, and returns what it was given, as the transforms of torchvision v2 do.
    A target that is a dictionary says where the object is: `boxes`, `[4]` or `[1, 4]` of left, top,
    right, bottom (of a batch `[N, 4]`), or `masks`, `[H, W]` or `[1, H, W]` (of a batch
    `[N, H, W]`). They follow the object. Without either, the object is the whole picture.

    It also takes a NumPy image `[H, W, C]` or `[H, W]`, perhaps with `bboxes` (one box, in pixels;
    further fields are kept) or `mask` `[H, W]` (of one object) by keyword, and returns all in a
    dictionary, as the transforms of Albumentations do. Other keywords are returned as they are.
    `for_albumentations` makes it a part of an `albumentations.Compose`.

    Args:
        sizes: Smallest and largest object size in pixels; larger objects than the canvas are not
            made.
        outside: What lies beyond the picture: its border pixels (`"edge"`) or `"black"`.
        generator: Random generator on the CPU; torch's global one by default, which differs
            between the workers of a `DataLoader`.

    Raises:
        OptionError: The sizes are not two positive numbers in ascending order, or `outside` does
            not exist.

    Examples:
        >>> transform = RandomObjectSize((16, 32), generator=torch.Generator().manual_seed(0))
        >>> image, target = torch.ones(3, 64, 64), {"boxes": torch.tensor([8, 8, 56, 40])}
        >>> smaller, target = transform(image, target)
        >>> left, top, right, bottom = target["boxes"].tolist()
        >>> 16 <= right - left <= 32
        True
    """

    def __init__(
        self,
        sizes: tuple[float, float],
        outside: Literal["edge", "black"] = "edge",
        generator: torch.Generator | None = None,
    ) -> None:
        check_numbers("sizes", sizes)
        if len(sizes) != 2 or not 0 < sizes[0] <= sizes[1]:
            raise OptionError(f"sizes must be the smallest and the largest, got {sizes!r}")
        if outside not in ("edge", "black"):
            raise OptionError(f'outside must be "edge" or "black", got {outside!r}')
        self.sizes, self.outside, self.generator = sizes, outside, generator

    def __call__(
        self,
        image: Tensor | npt.NDArray[Any],
        target: Any = None,  # noqa: ANN401 - as given
        **named: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """`[C, H, W]` or `[N, C, H, W]`, and a target if there is one, with other object sizes."""
        if isinstance(image, np.ndarray):
            return self._transform_arrays(image, named)
        if not isinstance(image, Tensor) or image.ndim not in (3, 4):
            found = list(image.shape) if isinstance(image, Tensor) else type(image).__name__
            raise ShapeError(f"expected [C, H, W], [N, C, H, W] or a NumPy array, got {found}")
        if named:
            raise OptionError(f"{', '.join(named)}: keywords go with NumPy images, not tensors")
        images = image if image.ndim == 4 else image[None]
        boxes = _object_boxes(images, target if isinstance(target, dict) else {})
        down, across, moved = self._matrices(images, boxes)
        result = _resample(images, down, across).reshape(image.shape)
        if target is None:
            return result
        if isinstance(target, dict):
            target = dict(target)
            if "boxes" in target:
                target["boxes"] = moved.reshape(target["boxes"].shape)
            if "masks" in target:
                masks = target["masks"]
                several = masks.reshape(len(images), 1, *images.shape[2:]).float()
                target["masks"] = (_resample(several, down, across) > 0.5).reshape(masks.shape)
        return result, target

    def for_albumentations(self, p: float = 1.0) -> Any:  # noqa: ANN401 - of another package
        """Return this transform as one for `albumentations.Compose`, applied with probability p."""
        from equiscale.training.albumentations import ObjectSizeTransform

        return ObjectSizeTransform(self, p)

    def _transform_arrays(self, image: npt.NDArray[Any], named: dict[str, Any]) -> dict[str, Any]:
        """Transform an image `[H, W, C]` or `[H, W]` and what is given by Albumentations' names."""
        pixels = image.reshape(*image.shape[:2], -1).transpose(2, 0, 1)
        target = {}
        if named.get("bboxes") is not None:
            target["boxes"] = torch.tensor(
                [[float(edge) for edge in box[:4]] for box in named["bboxes"]]
            )
        if named.get("mask") is not None:
            target["masks"] = torch.from_numpy(named["mask"] != 0)
        moved, target = self(torch.from_numpy(pixels.copy()), target)
        result = {"image": moved.numpy().transpose(1, 2, 0).reshape(image.shape), **named}
        if "boxes" in target:
            boxes = zip(target["boxes"].tolist(), named["bboxes"], strict=True)
            result["bboxes"] = [(*new, *old[4:]) for new, old in boxes]
            if isinstance(named["bboxes"], np.ndarray):
                result["bboxes"] = np.array(result["bboxes"], np.float32)
        if "masks" in target:
            mask = named["mask"]
            result["mask"] = target["masks"].numpy() * mask.max()
            result["mask"] = result["mask"].astype(mask.dtype)
        return result

    def _matrices(self, images: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return resizing matrices `[N, H, H]` and `[N, W, W]`, and the new boxes `[N, 4]`."""
        draws = torch.rand(len(images), 3, generator=self.generator).to(images.device)
        height, width = images.shape[2:]
        extent = boxes[:, 2:] - boxes[:, :2]
        smallest, largest = self.sizes
        size = smallest * (largest / smallest) ** draws[:, 0]
        fitting = torch.tensor([width, height], device=images.device) / extent
        factor = torch.minimum(size / extent.amax(dim=1), fitting.amin(dim=1))
        room = torch.tensor([width, height], device=images.device) - extent * factor[:, None]
        corner = draws[:, 1:] * room.clamp_min(0)
        reach = 2 * math.ceil(float((1 / factor).amax().clamp_min(1)))
        edge = self.outside == "edge"
        across = _resizing(width, boxes[:, 0], corner[:, 0], factor, reach, edge)
        down = _resizing(height, boxes[:, 1], corner[:, 1], factor, reach, edge)
        return down, across, torch.cat([corner, corner + extent * factor[:, None]], dim=1)


def _object_boxes(images: Tensor, target: dict[str, Any]) -> Tensor:
    """`[N, C, H, W] -> [N, 4]`: the boxes of the target, of its masks, or of whole images."""
    count, _, height, width = images.shape
    if "boxes" in target:
        boxes = target["boxes"].reshape(-1, 4).to(images.device, torch.float32)
    elif "masks" in target:
        masks = target["masks"].reshape(count, height, width).to(images.device) != 0
        boxes = torch.stack([_box(mask) for mask in masks])
    else:
        boxes = torch.tensor([[0.0, 0.0, width, height]], device=images.device).expand(count, 4)
    if len(boxes) != count or not (boxes[:, 2:] > boxes[:, :2]).all():
        raise ShapeError(
            f"{count} images need {count} boxes [left, top, right, bottom] that are not empty, got "
            f"{boxes.tolist()[:4]}"
        )
    return boxes


def _box(mask: Tensor) -> Tensor:
    """`[H, W] -> [4]`: the smallest box around what is not zero."""
    places = mask.nonzero()
    if not len(places):
        return torch.zeros(4, device=mask.device)
    (top, left), (bottom, right) = places.amin(dim=0), places.amax(dim=0) + 1
    return torch.stack([left, top, right, bottom]).float()


def _resample(images: Tensor, down: Tensor, across: Tensor) -> Tensor:
    whole = images if images.is_floating_point() else images.float()
    result = down[:, None].to(whole) @ whole @ across[:, None].to(whole).transpose(2, 3)
    if images.is_floating_point():
        return result
    return result.round().to(images.dtype)
