"""How far the features of an object at one size are from those at another, resized."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from equiscale.core.errors import OptionError
from equiscale.core.spec import CANVAS, OBJECT_SIZES, Split, thirds
from equiscale.data.dataset import Selection, StirDataset, to_float
from equiscale.metrics.accuracy import EVALUATION_BATCH, device_of, evaluating
from equiscale.runs.record import Measurement

SizePairs = tuple[tuple[int, int], ...]
Stages = Callable[[Tensor], dict[str, Tensor]]


def size_pairs(sizes: Iterable[int] = OBJECT_SIZES) -> SizePairs:
    """Return the pairs (s₁, s₂) of object sizes that the paper compares: the ends of each third.

    The map of s₁ is resized to that of s₂.

    Examples:
        >>> size_pairs()
        ((64, 49), (49, 64), (48, 33), (33, 48), (32, 17), (17, 32))
    """
    ends = [(part[-1], part[0]) for part in reversed(thirds(sizes)) if len(part) > 1]
    return tuple(pair for large, small in ends for pair in ((large, small), (small, large)))


SIZE_PAIRS = size_pairs()


@dataclass(frozen=True, eq=False)
class EquivarianceErrors:
    """The errors of every test object.

    Attributes:
        pairs: Pairs (s₁, s₂) of object sizes.
        errors: `[pairs, objects]` by stage, float32; NaN is 0/0, infinity is x/0.
        skipped: Why a stage was not measured, by stage.
    """

    pairs: tuple[tuple[int, int], ...]
    errors: Mapping[str, NDArray[np.float32]]
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def undefined(self) -> int:
        """How many errors are 0/0 or infinite, in all stages and pairs."""
        return sum(int(np.count_nonzero(~np.isfinite(e))) for e in self.errors.values())

    def mean(self, stage: str, pair: tuple[int, int]) -> float | None:
        """Return the mean over the objects whose error is defined; None if there are none."""
        row = self.errors[stage][self.pairs.index(pair)]
        finite = row[np.isfinite(row)]
        return float(finite.mean(dtype=np.float64)) if len(finite) else None


def equivariance_error(
    model: nn.Module,
    dataset: StirDataset,
    pairs: Sequence[tuple[int, int]] | None = None,
    batch_size: int = EVALUATION_BATCH // 2,
) -> EquivarianceErrors:
    """Measure the equivariance error of every test object, stage and pair of object sizes.

    Both feature maps are cut to the object's box, which a valid convolution that made the map p
    pixels smaller narrows to `size − p`. The map x₁ of the first size is resized (bicubic) to that
    of the second, x₂, and the error is `‖x₁ − x₂‖² / ‖x₂‖²` over channels and pixels.

    Args:
        model: Offers `stages(x)`, the feature maps `[N, O, H, W]` by name.
        dataset: Its test split is used.
        pairs: Pairs (s₁, s₂) of object sizes; None means `size_pairs` of the dataset.
        batch_size: Objects at a time.

    Raises:
        OptionError: The model has no `stages`.
    """
    stages = stages_of(model)
    if stages is None:
        raise OptionError(
            f"{type(model).__name__} has no method stages(x) that returns feature maps by name, "
            "so that its equivariance error cannot be measured"
        )
    if pairs is None:
        pairs = size_pairs([size for size in dataset.sizes if size <= dataset.canvas])
    sizes = sorted({size for pair in pairs for size in pair})
    selections = {size: dataset.select(Split.TEST, [size]) for size in sizes}
    first, device = selections[sizes[0]], device_of(model)
    parts: list[dict[str, NDArray[np.float32]]] = []
    with evaluating(model), torch.inference_mode():
        usable, skipped = _probe_stages(stages, to_float(first.pixels[:1].to(device)), sizes[0])
        for start in range(0, len(first) if usable else 0, batch_size):
            chosen = slice(start, start + batch_size)
            boxes = _object_boxes(stages, usable, selections, chosen, device)
            parts.append({stage: _errors(boxes[stage], pairs) for stage in usable})
    errors = {stage: np.concatenate([part[stage] for part in parts], axis=1) for stage in usable}
    return EquivarianceErrors(tuple(pairs), errors, skipped)


def stages_of(model: nn.Module) -> Stages | None:
    """Return a model's method `stages`, or None."""
    stages = getattr(model, "stages", None)
    return stages if callable(stages) else None


def measure_equivariance(model: nn.Module, dataset: StirDataset) -> Measurement | None:
    """Return the errors for a record; None for a model without usable feature maps."""
    if stages_of(model) is None:
        return None
    measured = equivariance_error(model, dataset)
    if not measured.errors:
        return None
    values: dict[str, Any] = {
        "pairs": [list(pair) for pair in measured.pairs],
        "stages": list(measured.errors),
        "objects": len(next(iter(measured.errors.values()))[0]),
        "undefined": measured.undefined,
        "skipped": dict(measured.skipped),
    }
    for stage, errors in measured.errors.items():
        for pair, row in zip(measured.pairs, errors, strict=True):
            name = f"{stage}_{pair[0]}_{pair[1]}"
            values[name] = measured.mean(stage, pair)
            values[f"{name}_undefined"] = int(np.count_nonzero(~np.isfinite(row)))
    return Measurement(values=values, arrays=dict(measured.errors))


def _probe_stages(stages: Stages, image: Tensor, smallest: int) -> tuple[list[str], dict[str, str]]:
    """Return the stages that can be measured, and why the others cannot, from one image."""
    usable, skipped = [], {}
    for stage, maps in stages(image).items():
        if reason := _reason_to_skip(maps, smallest, image.shape[-1]):
            skipped[stage] = reason
        else:
            usable.append(stage)
    return usable, skipped


def _object_boxes(
    stages: Stages,
    usable: Sequence[str],
    selections: Mapping[int, Selection],
    chosen: slice,
    device: torch.device,
) -> dict[str, dict[int, Tensor]]:
    """Return `[N, O, side, side]` by stage and object size."""
    boxes: dict[str, dict[int, Tensor]] = {stage: {} for stage in usable}
    for size, selection in selections.items():
        positions = selection.positions[chosen]
        images = to_float(selection.pixels[chosen].to(device))
        maps = stages(images)
        for stage in usable:
            boxes[stage][size] = crop_objects(maps[stage], positions, size, images.shape[-1])
    return boxes


def _reason_to_skip(maps: Tensor, smallest: int, canvas: int) -> str | None:
    if maps.ndim != 4:
        return f"its maps have {maps.ndim} axes, not [N, O, H, W]"
    height, width = maps.shape[2:]
    if height != width or height > canvas:
        return (
            f"its maps are {height}×{width}, not those of a {canvas}×{canvas} image, cut or whole"
        )
    if height <= canvas - smallest:
        return f"its maps are {height}×{width}: no object of {smallest} pixels is left on them"
    return None


def crop_objects(maps: Tensor, positions: Tensor, object_size: int, canvas: int = CANVAS) -> Tensor:
    """`[N, O, H, W], [N, 2] -> [N, O, side, side]`: cut out the box of every object.

    Args:
        maps: Feature maps of the images, smaller by what valid convolutions lost.
        positions: Left and top distance of each box on the image.
        object_size: Side of the boxes on the image.
        canvas: Side of the images.
    """
    side = object_size - (canvas - maps.shape[-1])
    boxes = [
        one[:, top : top + side, left : left + side]
        for one, (left, top) in zip(maps, positions.tolist(), strict=True)
    ]
    return torch.stack(boxes)


def _errors(boxes: Mapping[int, Tensor], pairs: Sequence[tuple[int, int]]) -> NDArray[np.float32]:
    """Return `[pairs, N]`."""
    rows = [relative_error(boxes[first], boxes[second]) for first, second in pairs]
    return torch.stack(rows).cpu().numpy().astype(np.float32)


def relative_error(first: Tensor, second: Tensor) -> Tensor:
    """`[N, O, a, a], [N, O, b, b] -> [N]`: resize the first to the second, compare."""
    first, second = first.double(), second.double()
    resized = F.interpolate(first, second.shape[2:], mode="bicubic", align_corners=False)
    return (resized - second).square().sum((1, 2, 3)) / second.square().sum((1, 2, 3))
