"""A contact sheet of a dataset: classes down, object sizes across."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equiscale.build.extras import import_extra
from equiscale.core.errors import OptionError
from equiscale.core.files import atomic_write
from equiscale.core.spec import Split, describe_sizes
from equiscale.data.schema import StirArrays

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_COLUMNS = 7
_GAP = 4
_HEADER_HEIGHT = 16
_PAPER, _INK, _BOX = (255, 255, 255), (0, 0, 0), (255, 0, 0)


def draw_preview(
    arrays: StirArrays,
    split: Split = Split.TRAIN,
    sizes: Sequence[int] = (),
    instance: int = 0,
    boxes: bool = False,
) -> Image:
    """Draw one instance of every class at some object sizes.

    Args:
        arrays: The dataset's contents.
        split: Which part.
        sizes: Object sizes, from left to right; by default seven of them at most.
        instance: Which instance of each class.
        boxes: Draw a frame around each object's box.
    """
    if not 0 <= instance < arrays.num_instances:
        raise OptionError(f"instance {instance}: choose 0…{arrays.num_instances - 1}")
    sizes = sizes or _some_sizes(arrays.sizes)
    if not set(sizes) <= set(arrays.sizes):
        known = describe_sizes(arrays.sizes)
        raise OptionError(f"object sizes {list(sizes)}: choose some of {known}")
    pillow: Any = import_extra("PIL.Image", "pillow")
    drawing: Any = import_extra("PIL.ImageDraw", "pillow")
    names = [_shortened(name) for name in arrays.class_names]
    margin = 3 * _GAP + 6 * max(map(len, names))
    cell = arrays.canvas + _GAP
    shape = (margin + len(sizes) * cell, _HEADER_HEIGHT + arrays.num_classes * cell)
    sheet: Image = pillow.new("RGB", shape, _PAPER)
    pen: Any = drawing.Draw(sheet)
    for column, size in enumerate(sizes):
        pen.text((margin + column * cell, 2), f"{size} px", fill=_INK)
    part = list(Split).index(split)
    for label, name in enumerate(names):
        y = _HEADER_HEIGHT + label * cell
        pen.text((_GAP, y + arrays.canvas // 2 - 6), name, fill=_INK)
        for column, size in enumerate(sizes):
            where = (part, arrays.sizes.index(size), label, instance)
            picture = pillow.fromarray(np.ascontiguousarray(arrays.images[where])).convert("RGB")
            if boxes:
                left, top = map(int, arrays.positions[where])
                frame: Any = drawing.Draw(picture)  # as far as the canvas shows it
                frame.rectangle((left, top, left + size - 1, top + size - 1), outline=_BOX)
            sheet.paste(picture, (margin + column * cell, y))
    return sheet


def write_preview(path: Path, sheet: Image) -> None:
    """Write a contact sheet as PNG, atomically."""
    with atomic_write(path) as file:
        sheet.save(file, format="PNG")


def _some_sizes(sizes: Sequence[int]) -> list[int]:
    """Return sizes at equal distances: for 64…17, those are 64, 56, 48, 41, 33, 25 and 17."""
    rows = np.linspace(0, len(sizes) - 1, min(MAX_COLUMNS, len(sizes)))
    return [sizes[row] for row in rows.round().astype(int)]


def _shortened(name: str, longest: int = 24) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"
