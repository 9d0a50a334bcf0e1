"""`RandomObjectSize` among the transforms of Albumentations."""

from __future__ import annotations

from typing import Any

import albumentations
import numpy as np

from equiscale.training.augmentation import RandomObjectSize


class ObjectSizeTransform(albumentations.DualTransform):  # type: ignore[misc]
    """A `RandomObjectSize` for `albumentations.Compose`, whose boxes are shares of the image."""

    def __init__(self, transform: RandomObjectSize, p: float = 1.0) -> None:
        super().__init__(p=p)
        self.transform = transform

    def __call__(self, *, force_apply: bool = False, **data: Any) -> dict[str, Any]:  # noqa: ANN401
        """Transform `image`, `mask` and `bboxes`, or leave them as they are."""
        if not force_apply and self.py_random.random() >= self.p:
            return data
        if "bboxes" not in data:
            return dict(self.transform(**data))
        boxes, (height, width) = np.array(data["bboxes"], np.float32), data["image"].shape[:2]
        boxes[:, :4] *= (width, height, width, height)
        found = dict(self.transform(**data | {"bboxes": boxes}))
        found["bboxes"][:, :4] /= (width, height, width, height)
        return found
